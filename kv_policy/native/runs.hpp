// Runs: consecutive pages of one path that the same request used last and that are of one kind.
#pragma once

#include <cstdint>
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

// Numbers of runs, given and taken back.
class Runs {
 public:
  Run& operator[](std::uint32_t run) { return runs_[run]; }
  const Run& operator[](std::uint32_t run) const { return runs_[run]; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(runs_.size()); }
  std::uint32_t living() const { return size() - static_cast<std::uint32_t>(free_.size()); }
  std::uint64_t bytes() const { return runs_.capacity() * sizeof(Run) + free_.capacity() * sizeof(std::uint32_t); }

  std::uint32_t make(const Run& run) {
    if (free_.empty()) {
      runs_.push_back(run);
      return size() - 1;
    }
    const std::uint32_t number = free_.back();
    free_.pop_back();
    runs_[number] = run;
    return number;
  }

  void drop(std::uint32_t run) {
    runs_[run] = Run{};
    free_.push_back(run);
  }

 private:
  std::vector<Run> runs_;
  std::vector<std::uint32_t> free_;
};

}  // namespace stratakv
