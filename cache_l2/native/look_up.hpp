// The lock-free walk along a chain of keys: which entries carry it, as far as it is resident.
//
// Nothing here pins anything. What it finds is a claim about the moment of each generation load; the caller publishes
// hazards and re-checks (reader.cpp), or is content with the claim (match).
#pragma once

#include <cstddef>
#include <cstdint>

#include "geometry.hpp"
#include "index.hpp"

namespace stratakv {

struct FoundPage {
  std::uint64_t generation;
  std::uint64_t offset;  // in the data file
  std::uint32_t entry;
  std::uint32_t payload_bytes;
  std::uint32_t expiry_s;
};

inline std::uint64_t instance_of(const FoundPage& page) { return instance_of(page.generation, page.entry); }

struct Walk {
  std::size_t pages = 0;          // found, from keys[start]
  std::uint64_t collisions = 0;   // other keys met under the same fingerprint
  std::uint32_t expiry_s_min = 0xFFFFFFFFu;  // earliest expiry met, the parent of keys[start] included
  FoundPage parent{};             // of keys[start] when start > 0
};

// A chain of packed keys (32 bytes each), of which [start … count) are looked up, under the sidecar's number of a namespace.
struct Chain {
  std::uint64_t namespace_slot;
  const std::uint8_t* keys;
  std::size_t start;
  std::size_t count;
  bool is_noted = false;   // the eviction policy is to hear of it: the one look-up of a request that is counted
  bool may_await = false;  // an absent page that a client has posted is waited for, for a bounded time

  std::size_t wanted() const { return count - start; }
  const std::uint8_t* key(std::size_t page) const { return keys + (start + page) * kKeyBytes; }
};

// Walks a chain and writes what it finds to `found`; pages of another namespace are none. Numbers out of shared memory
// are bounded before use.
Walk walk_chain(const ArenaView& arena, const Chain& chain, FoundPage* found);

// True while the page is the one that the walk saw.
inline bool still_there(const ArenaView& arena, const FoundPage& page) {
  return arena.entries[page.entry].generation.load(std::memory_order_relaxed) == page.generation;
}

}  // namespace stratakv
