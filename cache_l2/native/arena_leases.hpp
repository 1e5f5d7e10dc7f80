// How the writer reads clients' hazards. Rows are written by clients, so every number in them is bounded before use.
#pragma once

#include <algorithm>
#include <cstdint>

#include "geometry.hpp"

namespace stratakv {

inline std::uint64_t payload_bytes_of(const ArenaView& view, std::uint32_t entry) {
  return view.entries[entry].place.load(std::memory_order_relaxed) & 0xFFFFFFFFu;
}

// Calls visit(deepest entry, pages) for each hazard of a row that still binds the sidecar: views always, copies until their
// deadline. How many pages there really are below the deepest is for the visitor to find out.
template <typename Visit>
void each_live_lease(const ArenaView& view, std::uint32_t row, std::uint64_t now_ns, Visit visit) {
  const std::uint64_t high_water = view.row(row).lease_high_water.load(std::memory_order_acquire);
  const std::uint64_t end = std::min<std::uint64_t>(high_water, view.geometry.leases_per_row);
  const Lease* leases = view.leases(row);
  for (std::uint64_t i = 0; i < end; ++i) {
    // Acquire: a reader's last load under a hazard that is cleared now happened before we reuse the slot.
    const std::uint64_t word = leases[i].cover.load(std::memory_order_acquire);
    if (word == 0) continue;
    const std::uint64_t entry = (word & 0xFFFFFFFFu) - 1;
    if (entry >= view.geometry.entries) continue;
    if (kind_of(word) == kLeaseCopy && leases[i].deadline_ns.load(std::memory_order_relaxed) < now_ns) continue;
    visit(static_cast<std::uint32_t>(entry), static_cast<std::uint32_t>(word >> kCoverPagesShift & kCoverPagesMask));
  }
}

}  // namespace stratakv
