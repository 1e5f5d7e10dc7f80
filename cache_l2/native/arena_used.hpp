// Which pages of an arena were asked for since they were stored, a bounded part of it at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "geometry.hpp"
#include "index.hpp"

namespace stratakv {

constexpr std::uint32_t kUsedEntriesAtOnce = 65'536;  // a ms at most

// Adds the instances of visible pages that readers have looked up, of `count` entries from `begin` on; returns the entry to go
// on from, 0 at the end. What changes meanwhile is told as it was or as it is: whoever uses an instance pins it first.
inline std::uint32_t find_used(const ArenaView& view, std::uint32_t begin, std::uint32_t count,
                               std::vector<std::uint64_t>& found) {
  const auto entries = static_cast<std::uint32_t>(view.geometry.entries);
  const std::uint32_t first = std::min(begin, entries);
  const std::uint32_t end = first + std::min(count, entries - first);
  for (std::uint32_t entry = first; entry < end; ++entry) {
    if (view.access[entry].last.load(std::memory_order_relaxed) == 0) continue;
    const std::uint64_t generation = view.entries[entry].generation.load(std::memory_order_relaxed);
    if (generation != 0 && generation % 2 == 0) found.push_back(instance_of(generation, entry));
  }
  return end == entries ? 0 : end;
}

}  // namespace stratakv
