// Which leaf goes next: the interface, and least recently used among the leaves (tails first, prefix-closed).
//
// Only pages without a resident child are ever offered, so whatever is chosen leaves no hole in a chain.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "geometry.hpp"

namespace stratakv {

struct Victim {
  std::uint32_t entry;
  std::uint64_t accessed_ns;
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual void add(std::uint32_t entry, std::uint32_t size_class) = 0;
  // `size_class` is the one that it was added with.
  virtual void remove(std::uint32_t entry, std::uint32_t size_class) = 0;
  virtual bool contains(std::uint32_t entry) const = 0;
  // Victims are about to be asked for: access times are looked at once until the next round, whatever clients write.
  virtual void begin_round(std::uint64_t now_ns) = 0;
  // The next victim of a size class; it stays until removed.
  virtual std::optional<Victim> coldest(std::uint32_t size_class) = 0;
};

// Last access of a page; a page that nobody has read yet counts from its commit, and so does one whose time lies ahead of
// `now_ns`: clients write it, and garbage must not keep a page for ever. The margin is for reads since `now_ns`.
inline std::uint64_t accessed_ns(const ArenaView& arena, std::uint32_t entry, std::uint64_t now_ns) {
  constexpr std::uint64_t kMarginNs = 1'000'000'000;
  const std::uint64_t last = arena.access[entry].last.load(std::memory_order_relaxed);
  if (last != 0 && last <= now_ns + kMarginNs) return last;
  return arena.entries[entry].committed_ns.load(std::memory_order_relaxed);
}

// One heap a size class over the access times that readers write. A reader's access moves a page only away from the
// top, so a heap may be out of date below its top: the top is compared with the present time and sinks when newer.
// Equal times: the lowest entry number first.
//
// When all of a large heap was read since it was last asked, that would take as long as to build it. So a round looks at a
// bounded number of pages; once it has, the coldest of those goes first.
class TailFirstLru final : public EvictionPolicy {
 public:
  static constexpr std::uint32_t kLooksPerRound = 2048;  // of one size class; a third of a ms or so

  explicit TailFirstLru(const ArenaView& arena) : arena_(arena), places_(arena.geometry.entries, kNowhere) {}

  void add(std::uint32_t entry, std::uint32_t size_class) override {
    if (contains(entry)) return;
    if (classes_.size() <= size_class) classes_.resize(size_class + 1);
    Heap& heap = classes_[size_class].heap;
    heap.push_back({accessed_ns(arena_, entry, now_ns_), entry, 0});
    rise(heap, heap.size() - 1);
  }

  void remove(std::uint32_t entry, std::uint32_t size_class) override {
    if (!contains(entry)) return;
    Heap& heap = classes_[size_class].heap;
    const std::size_t at = std::exchange(places_[entry], kNowhere);
    const Node last = heap.back();
    heap.pop_back();
    if (at == heap.size()) return;
    put(heap, at, last);
    rise(heap, at);
    sink(heap, places_[last.entry]);
  }

  bool contains(std::uint32_t entry) const override { return places_[entry] != kNowhere; }

  void begin_round(std::uint64_t now_ns) override {
    now_ns_ = now_ns;
    ++round_;
  }

  std::optional<Victim> coldest(std::uint32_t size_class) override {
    if (classes_.size() <= size_class) return std::nullopt;
    SizeClass& of_size = classes_[size_class];
    if (std::exchange(of_size.round, round_) != round_) of_size.looked_at.clear();
    Heap& heap = of_size.heap;
    while (!heap.empty()) {
      Node& top = heap[0];
      const std::uint64_t accessed = accessed_ns(arena_, top.entry, now_ns_);
      if (top.round == round_ || accessed <= top.accessed_ns) return Victim{top.entry, top.accessed_ns};
      if (of_size.looked_at.size() >= kLooksPerRound) return coldest_looked_at(of_size);
      top.round = round_;
      top.accessed_ns = accessed;
      of_size.looked_at.push_back({accessed, top.entry, round_});
      std::push_heap(of_size.looked_at.begin(), of_size.looked_at.end(), Node::after);
      sink(heap, 0);
    }
    return std::nullopt;
  }

 private:
  static constexpr std::uint32_t kNowhere = 0xFFFFFFFFu;
  struct Node {
    std::uint64_t accessed_ns;
    std::uint32_t entry;
    std::uint32_t round;  // in which its access time was last looked at
    bool before(const Node& other) const {
      return accessed_ns != other.accessed_ns ? accessed_ns < other.accessed_ns : entry < other.entry;
    }
    static bool after(const Node& a, const Node& b) { return b.before(a); }
  };
  using Heap = std::vector<Node>;
  struct SizeClass {
    Heap heap;
    Heap looked_at;           // in `round`, the coldest first; a page may have left the heap since
    std::uint32_t round = 0;
  };

  // The top of the heap is out of date; these are not. With all of them gone, it is the top all the same.
  Victim coldest_looked_at(SizeClass& of_size) {
    for (Heap& looked_at = of_size.looked_at; !looked_at.empty();) {
      const Node& node = looked_at.front();
      const std::uint32_t at = places_[node.entry];
      const bool is_there = at < of_size.heap.size() && of_size.heap[at].entry == node.entry;
      if (is_there) return Victim{node.entry, node.accessed_ns};
      std::pop_heap(looked_at.begin(), looked_at.end(), Node::after);
      looked_at.pop_back();
    }
    return Victim{of_size.heap[0].entry, of_size.heap[0].accessed_ns};
  }

  void put(Heap& heap, std::size_t at, const Node& node) {
    heap[at] = node;
    places_[node.entry] = static_cast<std::uint32_t>(at);
  }

  void rise(Heap& heap, std::size_t at) {
    const Node node = heap[at];
    while (at > 0 && node.before(heap[(at - 1) / 2])) {
      put(heap, at, heap[(at - 1) / 2]);
      at = (at - 1) / 2;
    }
    put(heap, at, node);
  }

  void sink(Heap& heap, std::size_t at) {
    const Node node = heap[at];
    for (;;) {
      std::size_t child = 2 * at + 1;
      if (child >= heap.size()) break;
      if (child + 1 < heap.size() && heap[child + 1].before(heap[child])) ++child;
      if (!heap[child].before(node)) break;
      put(heap, at, heap[child]);
      at = child;
    }
    put(heap, at, node);
  }

  ArenaView arena_;
  std::vector<std::uint32_t> places_;  // in the heap of its size class, by entry
  std::vector<SizeClass> classes_;
  std::uint64_t now_ns_ = 0;
  std::uint32_t round_ = 0;
};

}  // namespace stratakv
