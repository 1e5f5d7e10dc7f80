// Which leaf goes next: the interface, and least recently used among the leaves (tails first, prefix-closed).
//
// Only pages without a resident child are ever offered, so whatever is chosen leaves no hole in a chain.
#pragma once

#include <cstdint>
#include <optional>
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
  virtual void remove(std::uint32_t entry) = 0;
  virtual bool contains(std::uint32_t entry) const = 0;
  // The next victim of a size class; it stays until removed.
  virtual std::optional<Victim> coldest(std::uint32_t size_class) = 0;
};

// Last access of a page; a page that nobody has read yet counts from its commit.
inline std::uint64_t accessed_ns(const ArenaView& arena, std::uint32_t entry) {
  const std::uint64_t last = arena.access[entry].last.load(std::memory_order_relaxed);
  return last != 0 ? last : arena.entries[entry].committed_ns.load(std::memory_order_relaxed);
}

// One heap a size class over the access times that readers write. A reader's access moves a page only away from the
// top, so a heap may be out of date below its top: the top is compared with the present time and sinks when newer.
// Equal times: the lowest entry number first.
class TailFirstLru final : public EvictionPolicy {
 public:
  explicit TailFirstLru(const ArenaView& arena) : arena_(arena), places_(arena.geometry.entries) {}

  void add(std::uint32_t entry, std::uint32_t size_class) override {
    if (contains(entry)) return;
    if (heaps_.size() <= size_class) heaps_.resize(size_class + 1);
    Heap& heap = heaps_[size_class];
    places_[entry] = {size_class, static_cast<std::uint32_t>(heap.size()), true};
    heap.push_back({accessed_ns(arena_, entry), entry});
    rise(heap, heap.size() - 1);
  }

  void remove(std::uint32_t entry) override {
    if (!contains(entry)) return;
    Heap& heap = heaps_[places_[entry].size_class];
    const std::size_t at = places_[entry].at;
    places_[entry].present = false;
    const Node last = heap.back();
    heap.pop_back();
    if (at == heap.size()) return;
    put(heap, at, last);
    rise(heap, at);
    sink(heap, places_[last.entry].at);
  }

  bool contains(std::uint32_t entry) const override { return places_[entry].present; }

  std::optional<Victim> coldest(std::uint32_t size_class) override {
    if (heaps_.size() <= size_class) return std::nullopt;
    Heap& heap = heaps_[size_class];
    while (!heap.empty()) {
      const std::uint64_t now = accessed_ns(arena_, heap[0].entry);
      if (now <= heap[0].accessed_ns) return Victim{heap[0].entry, heap[0].accessed_ns};
      heap[0].accessed_ns = now;
      sink(heap, 0);
    }
    return std::nullopt;
  }

 private:
  struct Node {
    std::uint64_t accessed_ns;
    std::uint32_t entry;
    bool before(const Node& other) const {
      return accessed_ns != other.accessed_ns ? accessed_ns < other.accessed_ns : entry < other.entry;
    }
  };
  struct Place {
    std::uint32_t size_class = 0;
    std::uint32_t at = 0;
    bool present = false;
  };
  using Heap = std::vector<Node>;

  void put(Heap& heap, std::size_t at, const Node& node) {
    heap[at] = node;
    places_[node.entry].at = static_cast<std::uint32_t>(at);
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
  std::vector<Place> places_;
  std::vector<Heap> heaps_;
};

}  // namespace stratakv
