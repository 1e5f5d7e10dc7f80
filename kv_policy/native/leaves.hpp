// The runs whose last page may go, of one queue: a heap by access that also gives samples in constant time.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace stratakv {

// Least access first; equal ones: the least tie first. Whoever owns the runs keeps where each of them stands (`places`).
class LeafHeap {
 public:
  static constexpr std::uint32_t kNowhere = 0xFFFFFFFFu;
  struct Leaf {
    std::uint64_t touched_ns;
    std::uint32_t run;
    std::uint32_t tie;   // its last page
    std::uint32_t kind;  // what its value depends on besides (PrefixPolicy::kind_of)
    std::uint32_t depth;  // of its last page
    bool before(const Leaf& other) const {
      return touched_ns != other.touched_ns ? touched_ns < other.touched_ns : tie < other.tie;
    }
  };

  bool empty() const { return leaves_.empty(); }
  std::uint32_t size() const { return static_cast<std::uint32_t>(leaves_.size()); }
  const Leaf& operator[](std::uint32_t at) const { return leaves_[at]; }

  // `moved(run, place)` is told of each place that changes.
  template <class Moved>
  void add(const Leaf& leaf, const Moved& moved) {
    leaves_.push_back(leaf);
    rise(size() - 1, leaf, moved);
  }

  template <class Moved>
  void remove(std::uint32_t at, const Moved& moved) {
    moved(leaves_[at].run, kNowhere);
    const Leaf last = leaves_.back();
    leaves_.pop_back();
    if (at < size()) settle(at, last, moved);
  }

  void prefetch(std::uint32_t at) const { __builtin_prefetch(&leaves_[at]); }

  void set_kind(std::uint32_t at, std::uint32_t kind) { leaves_[at].kind = kind; }

  template <class Moved>
  void change(std::uint32_t at, const Leaf& leaf, const Moved& moved) {
    settle(at, leaf, moved);
  }

 private:
  static constexpr std::uint32_t kFan = 4;

  template <class Moved>
  void settle(std::uint32_t at, const Leaf& leaf, const Moved& moved) {
    if (at > 0 && leaf.before(leaves_[(at - 1) / kFan])) {
      rise(at, leaf, moved);
    } else {
      sink(at, leaf, moved);
    }
  }

  template <class Moved>
  void put(std::uint32_t at, const Leaf& leaf, const Moved& moved) {
    leaves_[at] = leaf;
    moved(leaf.run, at);
  }

  template <class Moved>
  void rise(std::uint32_t at, const Leaf leaf, const Moved& moved) {
    while (at > 0) {
      const std::uint32_t up = (at - 1) / kFan;
      if (!leaf.before(leaves_[up])) break;
      put(at, leaves_[up], moved);
      at = up;
    }
    put(at, leaf, moved);
  }

  template <class Moved>
  void sink(std::uint32_t at, const Leaf leaf, const Moved& moved) {
    for (;;) {
      const std::uint64_t first = std::uint64_t{at} * kFan + 1;
      if (first >= size()) break;
      auto least = static_cast<std::uint32_t>(first);
      const auto end = static_cast<std::uint32_t>(first + kFan < size() ? first + kFan : size());
      for (std::uint32_t child = least + 1; child < end; ++child) {
        if (leaves_[child].before(leaves_[least])) least = child;
      }
      if (!leaves_[least].before(leaf)) break;
      put(at, leaves_[least], moved);
      at = least;
    }
    put(at, leaf, moved);
  }

  std::vector<Leaf> leaves_;
};

}  // namespace stratakv
