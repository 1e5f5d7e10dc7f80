// The runs whose last page may go, of one queue: a heap by access that also gives samples in constant time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace stratakv {

// They lie in blocks, so that no call ever moves all of them. Least access first; equal ones: the least tie first. Whoever owns
// the runs keeps where each of them stands (`places`).
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

  bool empty() const { return size_ == 0; }
  std::uint32_t size() const { return size_; }
  const Leaf& operator[](std::uint32_t at) const { return (*blocks_[at / kBlock])[at % kBlock]; }

  // `moved(run, place)` is told of each place that changes.
  template <class Moved>
  void add(const Leaf& leaf, const Moved& moved) {
    if (size_ == blocks_.size() * kBlock) blocks_.push_back(std::make_unique<Block>());
    rise(size_++, leaf, moved);
  }

  template <class Moved>
  void remove(std::uint32_t at, const Moved& moved) {
    moved((*this)[at].run, kNowhere);
    const Leaf last = (*this)[--size_];
    if (at < size_) settle(at, last, moved);
  }

  void prefetch(std::uint32_t at) const { __builtin_prefetch(&(*this)[at]); }

  void set_kind(std::uint32_t at, std::uint32_t kind) { place(at).kind = kind; }

  template <class Moved>
  void change(std::uint32_t at, const Leaf& leaf, const Moved& moved) {
    settle(at, leaf, moved);
  }

 private:
  static constexpr std::uint32_t kFan = 4, kBlock = 1024;
  using Block = std::array<Leaf, kBlock>;

  Leaf& place(std::uint32_t at) { return (*blocks_[at / kBlock])[at % kBlock]; }

  template <class Moved>
  void settle(std::uint32_t at, const Leaf& leaf, const Moved& moved) {
    if (at > 0 && leaf.before((*this)[(at - 1) / kFan])) {
      rise(at, leaf, moved);
    } else {
      sink(at, leaf, moved);
    }
  }

  template <class Moved>
  void put(std::uint32_t at, const Leaf& leaf, const Moved& moved) {
    place(at) = leaf;
    moved(leaf.run, at);
  }

  template <class Moved>
  void rise(std::uint32_t at, const Leaf leaf, const Moved& moved) {
    while (at > 0) {
      const std::uint32_t up = (at - 1) / kFan;
      if (!leaf.before((*this)[up])) break;
      put(at, (*this)[up], moved);
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
        if ((*this)[child].before((*this)[least])) least = child;
      }
      if (!(*this)[least].before(leaf)) break;
      put(at, (*this)[least], moved);
      at = least;
    }
    put(at, leaf, moved);
  }

  std::vector<std::unique_ptr<Block>> blocks_;
  std::uint32_t size_ = 0;
};

}  // namespace stratakv
