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

 private:
  nanobind::object owner_;
  std::vector<Run> runs_;
  std::size_t bytes_ = 0;
  bool has_gaps_ = false;
};

// Where the bytes of pages to store are: one buffer for all of them, or a sequence of a buffer or ScatteredPage each.
class BorrowedSources {
 public:
  BorrowedSources(nanobind::handle object, std::size_t pages, std::size_t page_bytes);
  const PageRuns* pages() const { return pages_.data(); }

 private:
  void take(nanobind::handle item, std::size_t page_bytes);

  std::vector<Borrowed> buffers_;
  std::vector<nanobind::object> scattered_;
  std::vector<Run> whole_;
  std::vector<PageRuns> pages_;
};

}  // namespace stratakv
