// What the arena tells the eviction policy of its pages: their last accesses, as clients write them.
#pragma once

#include <cstdint>

#include "geometry.hpp"
#include "notes.hpp"

namespace stratakv {

// Victims of one round of which access times are looked at: clients may have read any number of pages without a note that came
// through, and looking at all of them would take as long. Some hundred µs. The next round goes on from there.
constexpr std::uint32_t kLooksPerRound = 4096;

// Last access of a page that anybody has read, 0 else. A time that lies ahead of `now_ns` is none: clients write it, and garbage
// must not keep a page for ever. The margin is for reads since `now_ns`.
inline std::uint64_t read_ns(const ArenaView& arena, std::uint32_t entry, std::uint64_t now_ns) {
  constexpr std::uint64_t kMarginNs = 1'000'000'000;
  const std::uint64_t last = arena.access[entry].last.load(std::memory_order_relaxed);
  return last <= now_ns + kMarginNs ? last : 0;
}

// The same; a page that nobody has read yet counts from its commit.
inline std::uint64_t accessed_ns(const ArenaView& arena, std::uint32_t entry, std::uint64_t now_ns) {
  const std::uint64_t read = read_ns(arena, entry, now_ns);
  return read != 0 ? read : arena.entries[entry].committed_ns.load(std::memory_order_relaxed);
}

}  // namespace stratakv
