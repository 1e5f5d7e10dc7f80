// What one look-up adds to the page accounts, in one phase or in two with a load between them (rule R20).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "outcomes.hpp"
#include "reader.hpp"

namespace stratakv {

// What a look-up of a chain adds to the accounts, all that it found being L2's.
inline CountsDelta counts_of(const LookUpResult& result, const Chain& chain, std::uint64_t bytes_read) {
  CountsDelta delta;
  delta.requested = chain.count;
  delta.l1 = chain.start;
  delta.l2 = result.pages;
  delta.missed = chain.wanted() - result.pages;
  delta.reason = result.reason;
  delta.bytes_read = bytes_read;
  delta.collisions = result.collisions;
  delta.look_ups = 1;
  return delta;
}

// Counts a look-up that was begun, unless it may be loaded what it lacks: then somebody completes it later.
inline void settle(Reader& reader, std::uint32_t counter, const CountsDelta& delta, bool may_load) {
  if (!may_load || delta.reason != kMissAbsent) {
    reader.account(counter, delta);
  } else if (delta.collisions != 0) {
    CountsDelta collided;
    collided.collisions = delta.collisions;
    reader.account(counter, collided);
  }
}

// Tells what a look-up found that followed a load: what the load brought, and why it brought no more.
inline void tell_loaded(LookUpResult& result, CountsDelta& delta, std::size_t first, std::optional<std::uint64_t> l3_from,
                        std::uint32_t reason) {
  const std::size_t end = first + result.pages;
  const std::size_t loaded_from = std::max<std::size_t>(first, l3_from.value_or(end));
  delta.l3 = end > loaded_from ? end - loaded_from : 0;
  delta.l2 = result.pages - delta.l3;
  if (result.reason == kMissAbsent && reason != kMissNone) result.reason = delta.reason = reason;
}

}  // namespace stratakv
