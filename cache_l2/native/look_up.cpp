// Chain walk in a software pipeline of three stages: buckets, candidates, entries.
//
// Every acquire load makes the compiler forget what it knows about memory, so the walk keeps what it needs in values.
#include "look_up.hpp"

#include <algorithm>

#include "bucket_scan.hpp"
#include "fences.hpp"

namespace stratakv {
namespace {

constexpr std::size_t kGroup = 16;            // keys a stage; three groups are under way at once
constexpr std::size_t kProbes = 4 * kGroup;   // a power of two that holds three groups
constexpr std::uint32_t kNever = 0xFFFFFFFFu;

struct Tables {
  const Bucket* buckets;
  const Entry* entries;
  std::uint64_t data_bytes;
  std::uint32_t entry_count;
};

struct Probe {
  KeyHash hash;
  std::uint32_t candidate;
};

struct PageFields {
  std::uint64_t generation;
  std::uint64_t place;
  std::uint64_t parent_generation;
  std::uint64_t parent_and_expiry;
};

enum class Match { kYes, kNo, kOtherKey };

// Reads an entry between two loads of its generation.
inline Match read_entry(const Entry& entry, const std::uint8_t* key, PageFields& out) {
  out.generation = entry.generation.load(std::memory_order_acquire);
  if (out.generation == 0 || (out.generation & 1) != 0) return Match::kNo;
  const bool equal = key_equals(entry, PageKey::load(key));
  out.place = entry.place.load(std::memory_order_relaxed);
  out.parent_generation = entry.parent_generation.load(std::memory_order_relaxed);
  out.parent_and_expiry = entry.parent_and_expiry.load(std::memory_order_relaxed);
  fence_acquire();
  if (entry.generation.load(std::memory_order_relaxed) != out.generation) return Match::kNo;
  return equal ? Match::kYes : Match::kOtherKey;
}

inline std::uint32_t entry_in(const Tables& t, std::uint32_t bucket, std::uint32_t way) {
  const std::uint64_t value = t.buckets[bucket].way[way].load(std::memory_order_acquire);
  const auto entry = static_cast<std::uint32_t>(value) - 1;
  return entry < t.entry_count ? entry : kNoEntry;
}

inline std::uint32_t candidate(const Tables& t, const KeyHash& hash) {
  const std::uint32_t first = ways_with(t.buckets[hash.first], hash.fingerprint);
  if (first != 0) return entry_in(t, hash.first, static_cast<std::uint32_t>(__builtin_ctz(first)));
  const std::uint32_t second = ways_with(t.buckets[hash.second], hash.fingerprint);
  if (second != 0) return entry_in(t, hash.second, static_cast<std::uint32_t>(__builtin_ctz(second)));
  return kNoEntry;
}

// Looks at every way with the fingerprint, for the rare key whose first candidate was another page.
std::uint32_t find_among_all(Tables t, KeyHash hash, const std::uint8_t* key, PageFields& fields, std::uint64_t& collisions) {
  for (const std::uint32_t bucket : {hash.first, hash.second}) {
    for (std::uint32_t ways = ways_with(t.buckets[bucket], hash.fingerprint); ways != 0; ways &= ways - 1) {
      const std::uint32_t entry = entry_in(t, bucket, static_cast<std::uint32_t>(__builtin_ctz(ways)));
      if (entry == kNoEntry) continue;
      const Match match = read_entry(t.entries[entry], key, fields);
      if (match == Match::kYes) return entry;
      collisions += match == Match::kOtherKey;
    }
  }
  return kNoEntry;
}

// The page under keys[start − 1], which another tier has served: ours must still stand on it.
bool parent_stands(Tables t, const std::uint8_t* key, const PageFields& child, FoundPage& parent) {
  const auto entry = static_cast<std::uint32_t>(child.parent_and_expiry >> 32) - 1;
  if (entry >= t.entry_count) return false;
  PageFields fields{};
  if (read_entry(t.entries[entry], key, fields) != Match::kYes || fields.generation != child.parent_generation) return false;
  parent.entry = entry;
  parent.generation = fields.generation;
  parent.expiry_s = static_cast<std::uint32_t>(fields.parent_and_expiry);
  return true;
}

// Asked of the first page that is found: a page and its parent are of one namespace, so that it tells of all behind it.
bool is_of_namespace(const Entry& entry, std::uint64_t generation, std::uint64_t namespace_slot) {
  const bool equal = entry.namespace_slot.load(std::memory_order_relaxed) == namespace_slot;
  fence_acquire();
  return equal && entry.generation.load(std::memory_order_relaxed) == generation;
}

inline std::uint32_t earlier(std::uint32_t least, std::uint32_t expiry_s) {
  return std::min(least, expiry_s == 0 ? kNever : expiry_s);
}

}  // namespace

Walk walk_chain(const ArenaView& arena, const Chain& chain, FoundPage* found) {
  const Geometry g = arena.geometry;
  const Tables t{arena.buckets, arena.entries, g.data_bytes, g.entries};
  const std::uint8_t* const keys = chain.keys + chain.start * kKeyBytes;
  const std::size_t left = chain.wanted();
  Probe probes[kProbes];
  std::uint32_t expiry_s_min = kNever;
  std::uint64_t collisions = 0;
  std::uint32_t parent_plus_one = 0;
  std::uint64_t parent_generation = 0;
  FoundPage parent{};
  std::size_t pages = 0;
  std::size_t hashed = 0;
  std::size_t probed = 0;

  for (bool whole = true; whole && pages < left;) {
    for (const std::size_t end = std::min(left, pages + 3 * kGroup); hashed < end; ++hashed) {
      const KeyHash hash = hash_key(PageKey::load(keys + hashed * kKeyBytes), g);
      probes[hashed % kProbes].hash = hash;
      __builtin_prefetch(&t.buckets[hash.first]);
      __builtin_prefetch(&t.buckets[hash.second]);
    }
    for (const std::size_t end = std::min(left, pages + 2 * kGroup); probed < end; ++probed) {
      Probe& probe = probes[probed % kProbes];
      probe.candidate = candidate(t, probe.hash);
      if (probe.candidate != kNoEntry) __builtin_prefetch(&t.entries[probe.candidate]);
    }
    for (const std::size_t end = std::min(left, pages + kGroup); pages < end; ++pages) {
      const Probe& probe = probes[pages % kProbes];
      const std::uint8_t* const key = keys + pages * kKeyBytes;
      std::uint32_t entry = probe.candidate;
      PageFields fields{};
      if (entry != kNoEntry && read_entry(t.entries[entry], key, fields) != Match::kYes) {
        entry = find_among_all(t, probe.hash, key, fields, collisions);
      }
      const std::uint64_t offset = (fields.place >> 32) * kSlotAlign;
      const auto payload_bytes = static_cast<std::uint32_t>(fields.place);
      whole = entry != kNoEntry && offset + payload_bytes <= t.data_bytes;
      if (whole && pages == 0) whole = is_of_namespace(t.entries[entry], fields.generation, chain.namespace_slot);
      if (whole && pages == 0 && chain.start != 0) {
        whole = parent_stands(t, keys - kKeyBytes, fields, parent);
        expiry_s_min = earlier(expiry_s_min, parent.expiry_s);
      } else if (whole) {
        whole = fields.parent_and_expiry >> 32 == parent_plus_one && fields.parent_generation == parent_generation;
      }
      if (!whole) break;
      const auto expiry_s = static_cast<std::uint32_t>(fields.parent_and_expiry);
      expiry_s_min = earlier(expiry_s_min, expiry_s);
      found[pages] = {fields.generation, offset, entry, payload_bytes, expiry_s};
      parent_plus_one = entry + 1;
      parent_generation = fields.generation;
    }
  }
  return {pages, collisions, expiry_s_min, parent};
}

}  // namespace stratakv
