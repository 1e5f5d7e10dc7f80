// A row's ring of notes: what a client's look-ups found, in two words each, from which the sidecar learns what is reused.
//
// Lossy by design. A note that is overwritten before it is read, or read while it is written, is lost or belongs to two
// look-ups; nothing but the order of evictions depends on it, and every number in it is bounded before use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "index.hpp"
#include "layout.hpp"
#include "limits.hpp"

namespace stratakv {

// What one counted look-up found: the deepest page of the chain that was there, and how many pages of it were not.
struct LookUpNote {
  std::uint64_t deepest = kNoInstance;  // none: no page was there
  std::uint32_t digest = 0;             // of the first page that was missing, where none was there
  std::uint64_t missing = 0;
  std::uint64_t time_ns = 0;            // CLOCK_BOOTTIME, in steps of kNoteStepNs
};

// First word: 0 (1 bit) | entry (24 bits) | pages that were missing (17) | generation / 2 (22), or, where no page was there,
// 1 (1 bit) | pages (17) | digest (32). Second word: time in steps (52) | number of the note (12).
constexpr std::uint32_t kNoteEntryBits = 24, kNoteMissingBits = 17, kNoteGenerationBits = 22, kNoteNumberBits = 12;
constexpr std::uint64_t kNoteStepNs = 64;  // 52 bits of them are 9 years
constexpr std::uint64_t kNoteOfNone = 1ULL << 63;
constexpr std::uint64_t kNotesLostAtOnce = 1ULL << 32;  // a client may say that it wrote more
static_assert(1 + kNoteEntryBits + kNoteMissingBits + kNoteGenerationBits == 64);
static_assert(kEntriesMax <= 1ULL << kNoteEntryBits && kChainPagesMax < 1ULL << kNoteMissingBits);
static_assert(1ULL << kNoteNumberBits > kNotesPerRow);

constexpr std::uint64_t low_bits(std::uint64_t word, std::uint32_t bits) { return word & ((1ULL << bits) - 1); }

// What a note keeps of an instance's generation.
constexpr std::uint64_t noted_generation(std::uint64_t instance) { return low_bits(instance >> 33, kNoteGenerationBits); }

constexpr std::uint64_t noted_page(const LookUpNote& note) {
  const std::uint64_t missing = std::min(note.missing, kChainPagesMax);
  if (note.deepest == kNoInstance) return kNoteOfNone | missing << 32 | note.digest;
  const std::uint64_t entry = low_bits((note.deepest & 0xFFFFFFFFu) - 1, kNoteEntryBits);
  return entry << (kNoteMissingBits + kNoteGenerationBits) | missing << kNoteGenerationBits | noted_generation(note.deepest);
}

// By any thread of the row's process. Release: who finds the second word finds the first, or a later one.
inline void write_note(Notes& notes, const LookUpNote& note) noexcept {
  const std::uint64_t number = notes.written.fetch_add(1, std::memory_order_relaxed);
  Note& place = notes.ring[number % kNotesPerRow];
  place.page.store(noted_page(note), std::memory_order_relaxed);
  place.time.store(note.time_ns / kNoteStepNs << kNoteNumberBits | low_bits(number, kNoteNumberBits), std::memory_order_release);
}

// What the sidecar reads of one.
struct ReadNote {
  std::uint32_t entry = kNoEntry;  // none: no page was there
  std::uint32_t digest = 0;
  std::uint64_t generation = 0;    // as noted_generation
  std::uint32_t missing = 0;
  std::uint64_t time_ns = 0;
};

// The note of a number; nothing where another one stands there, or none yet.
inline std::optional<ReadNote> read_note(const Notes& notes, std::uint64_t number) {
  const Note& place = notes.ring[number % kNotesPerRow];
  const std::uint64_t time = place.time.load(std::memory_order_acquire);
  if (low_bits(time, kNoteNumberBits) != low_bits(number, kNoteNumberBits)) return std::nullopt;
  const std::uint64_t page = place.page.load(std::memory_order_relaxed);
  ReadNote note;
  note.time_ns = (time >> kNoteNumberBits) * kNoteStepNs;
  const bool is_none = (page & kNoteOfNone) != 0;
  const std::uint64_t missing = low_bits(page >> (is_none ? 32 : kNoteGenerationBits), kNoteMissingBits);
  note.missing = static_cast<std::uint32_t>(std::min(missing, kChainPagesMax));
  if (is_none) {
    note.digest = static_cast<std::uint32_t>(page);
  } else {
    note.entry = static_cast<std::uint32_t>(page >> (kNoteMissingBits + kNoteGenerationBits));
    note.generation = low_bits(page, kNoteGenerationBits);
  }
  return note;
}

}  // namespace stratakv
