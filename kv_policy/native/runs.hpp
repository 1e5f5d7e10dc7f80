// Runs: consecutive pages of one path that the same request used last and that are of one kind.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "leaves.hpp"

namespace stratakv {

constexpr std::uint32_t kNoPage = 0xFFFFFFFFu;
constexpr std::uint32_t kNoRun = 0xFFFFFFFFu;

struct Run {
  std::uint64_t touched_ns = 0;
  std::uint32_t first = kNoPage, tail = kNoPage;
  std::uint32_t pages = 0;
  std::uint32_t whole = 0;       // pages that it had when its request used it: with those that were evicted since
  std::uint32_t depth = 0;       // of its tail; 1 stands at the root
  std::uint32_t path_depth = 0;  // of the last page that its request asked for
  std::uint32_t left = 0;        // pages that its request will put on top of it
  std::uint32_t unknown = 0;     // pages of its request that nobody knew
  std::uint32_t place = LeafHeap::kNowhere;
  std::uint32_t expires_s = 0;   // when its first page to expire does; 0: never
  std::uint16_t queue = 0;
  std::uint8_t cell = 0;
  bool reused : 1;
  bool fan : 1;
  bool last : 1;
  bool may_fan : 1;              // what was asked for besides was evicted, or is something else
  bool unasked : 1;              // no look-up came before it

  Run() : reused(false), fan(false), last(false), may_fan(false), unasked(false) {}
};

// Numbers of runs, given and taken back. They lie in blocks, so that no call ever moves all of them.
class Runs {
 public:
  Runs() = default;
  Runs(const Runs&) = delete;
  Runs& operator=(const Runs&) = delete;

  Run& operator[](std::uint32_t run) { return blocks_[run / kBlock][run % kBlock]; }
  const Run& operator[](std::uint32_t run) const { return blocks_[run / kBlock][run % kBlock]; }
  std::uint32_t size() const { return size_; }
  std::uint32_t living() const { return living_; }
  std::uint64_t bytes() const { return blocks_.size() * (kBlock * sizeof(Run) + sizeof(blocks_[0])); }

  std::uint32_t make(const Run& run) {
    std::uint32_t number = free_;
    if (number != kNoRun) {
      free_ = (*this)[number].first;
    } else {
      number = size_++;
      if (number % kBlock == 0) blocks_.push_back(std::make_unique<Run[]>(kBlock));
    }
    ++living_;
    (*this)[number] = run;
    return number;
  }

  // `first` of one that is free is the next that is free.
  void drop(std::uint32_t run) {
    (*this)[run] = Run{};
    (*this)[run].first = free_;
    free_ = run;
    --living_;
  }

 private:
  static constexpr std::uint32_t kBlock = 1024;
  std::vector<std::unique_ptr<Run[]>> blocks_;
  std::uint32_t size_ = 0, living_ = 0, free_ = kNoRun;
};

}  // namespace stratakv
