// What an invalidation names, in the numbers that entries hold; conditions combine by "and".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "index.hpp"
#include "layout.hpp"

namespace stratakv {

constexpr std::uint64_t kUnbounded = ~0ULL;  // upper bound of times and revisions that bounds nothing

// A set of small numbers as a bitmap that somebody else keeps: number n is bit n % 8 of byte n / 8. Without one: all.
struct NumberSet {
  const std::uint8_t* bits = nullptr;
  std::size_t bytes = 0;

  bool is_all() const { return bits == nullptr; }
  bool contains(std::uint64_t number) const {
    return is_all() || (number / 8 < bytes && (bits[number / 8] >> (number % 8) & 1) != 0);
  }
};

struct Selection {
  std::optional<PageKey> key;  // this page and what stands on it
  NumberSet namespaces;
  NumberSet provenances;
  std::uint64_t since_ms = 0, until_ms = kUnbounded;  // of the computation, already widened by the skew bound
  std::uint64_t since_revision = 0, until_revision = kUnbounded;  // of the stamp

  // Whether it depends on how a page came to be, which nobody knows of a page that is not published yet.
  bool names_origin() const {
    return !provenances.is_all() || since_ms != 0 || until_ms != kUnbounded || since_revision != 0 ||
           until_revision != kUnbounded;
  }

  // What is not known matches: unknown lineage, an overflown provenance, a time of 0 (invariant I6).
  bool matches_origin(const Entry& entry) const {
    const auto get = [](const Word& word) { return word.load(std::memory_order_relaxed); };
    const std::uint64_t producer = get(entry.producer);
    if ((producer & kLineageUnknown) != 0 || !names_origin()) return true;
    const std::uint64_t provenance = producer & 0xFFFFFFFFu;
    const std::uint64_t from_ms = get(entry.computed_from_ms);
    const std::uint64_t last_ms = get(entry.computed_until_ms);
    const std::uint64_t revision = get(entry.revision);
    return (provenance == kProvenanceOverflow || provenances.contains(provenance)) &&
           (last_ms == 0 || last_ms >= since_ms) && (from_ms == 0 || from_ms <= until_ms) &&
           revision >= since_revision && revision <= until_revision;
  }
};

}  // namespace stratakv
