// Pages in runs of memory for Python: made from addresses, copied from and to, and taken as sources of puts.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <vector>

#include "buffers.hpp"
#include "page_runs.hpp"

namespace stratakv {

// One page at addresses that its owner keeps valid. Neighbouring runs are one.
class ScatteredPage {
 public:
  ScatteredPage(nanobind::object owner, const std::uint64_t* addresses, const std::uint64_t* run_bytes, std::size_t runs);
  PageRuns runs() const { return {runs_.data(), runs_.size()}; }
  std::size_t bytes() const { return bytes_; }
  bool has_gaps() const { return has_gaps_; }

  // Under the GIL, all of them: nobody begins to read it any more. Who has begun is over when `is_read` is false.
  void revoke() { is_revoked_ = true; }
  bool is_read() const { return readers_ != 0; }
  void begin_reading();
  void end_reading() { --readers_; }

 private:
  nanobind::object owner_;
  std::vector<PageRun> runs_;
  std::size_t bytes_ = 0;
  bool has_gaps_ = false;
  bool is_revoked_ = false;
  std::size_t readers_ = 0;
};

// Pages that are read, for as long as this lives; made and destroyed under the GIL.
class Reading {
 public:
  Reading() = default;
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  ~Reading() {
    for (ScatteredPage* page : pages_) page->end_reading();
  }
  void add(nanobind::handle object, ScatteredPage& page) {
    page.begin_reading();
    pages_.push_back(&page);
    kept_.push_back(nanobind::borrow(object));
  }

 private:
  std::vector<nanobind::object> kept_;
  std::vector<ScatteredPage*> pages_;
};

// Where the bytes of pages to store are: one buffer for all of them, or a sequence of a buffer or ScatteredPage each.
class BorrowedSources {
 public:
  BorrowedSources(nanobind::handle object, std::size_t pages, std::size_t page_bytes);
  const PageRuns* pages() const { return pages_.data(); }

 private:
  void take(nanobind::handle item, std::size_t page_bytes);

  std::vector<Borrowed> buffers_;
  Reading scattered_;
  std::vector<PageRun> whole_;
  std::vector<PageRuns> pages_;
};

}  // namespace stratakv
