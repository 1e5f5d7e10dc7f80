// The ladder of slot sizes: 16 steps a doubling, aligned to 4 KiB, so that a slot wastes at most 1/16 and one page.
#pragma once

#include <cstdint>

#include "layout.hpp"

namespace stratakv {

constexpr std::uint32_t kStepsPerDoubling = 16;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t step) { return (value + step - 1) / step * step; }

// Bytes of the slot that a payload takes. `payload_bytes` must be 1 … 2^40.
constexpr std::uint64_t slot_bytes_of(std::uint64_t payload_bytes) {
  const std::uint64_t aligned = round_up(payload_bytes, kSlotAlign);
  std::uint64_t octave = kSlotAlign;
  while (octave * 2 <= aligned) octave *= 2;
  const std::uint64_t step = octave / kStepsPerDoubling > kSlotAlign ? octave / kStepsPerDoubling : kSlotAlign;
  return round_up(aligned, step);
}

static_assert(slot_bytes_of(1) == 4096);
static_assert(slot_bytes_of(1 << 20) == 1 << 20);
static_assert(slot_bytes_of((1 << 20) + 1) == (1 << 20) + (1 << 16));

}  // namespace stratakv
