// The index of page keys: hashing that both sides share, and the writer's half. Readers: look_up.hpp.
//
// Eight ways a bucket, two buckets a key, at most half full. A way never moves while its entry can be found.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "geometry.hpp"
#include "layout.hpp"

namespace stratakv {

constexpr std::uint32_t kNoEntry = 0xFFFFFFFFu;

struct PageKey {
  std::uint64_t word[kKeyWords];
  static PageKey load(const std::uint8_t* bytes) {
    PageKey key;
    std::memcpy(key.word, bytes, sizeof(key.word));
    return key;
  }
};
static_assert(sizeof(PageKey) == 32);
constexpr std::uint64_t kKeyBytes = sizeof(PageKey);

// By what the eviction policy knows a page again; keys are digests themselves.
inline std::uint32_t digest_of(const PageKey& key) { return static_cast<std::uint32_t>(key.word[3]); }

struct KeyHash {
  std::uint32_t first, second, fingerprint;
};

inline std::uint64_t fold_product(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline KeyHash hash_key(const PageKey& key, const Geometry& g) {
  const std::uint64_t low = fold_product(key.word[0] ^ g.hash_seed, key.word[1] ^ 0x9E3779B97F4A7C15ULL);
  const std::uint64_t high = fold_product(key.word[2] ^ g.hash_seed, key.word[3] ^ 0xD6E8FEB86659FD93ULL);
  const std::uint64_t cut = (low ^ (high << 1 | high >> 63)) & g.hash_mask;
  const std::uint64_t places = fold_product(cut ^ 0xA0761D6478BD642FULL, 0xE7037ED1A0B428DBULL);
  const std::uint64_t print = fold_product(cut ^ 0x8EBC6AF09C88C6E3ULL, 0x589965CC75374CC3ULL);
  const std::uint32_t mask = g.buckets - 1;
  const auto first = static_cast<std::uint32_t>(places) & mask;
  auto second = static_cast<std::uint32_t>(places >> 32) & mask;
  if (second == first) second ^= 1;
  return {first, second, static_cast<std::uint32_t>(print >> 32)};
}

inline bool key_equals(const Entry& entry, const PageKey& key) {
  std::uint64_t difference = 0;
  for (std::uint32_t i = 0; i < kKeyWords; ++i) {
    difference |= entry.key[i].load(std::memory_order_relaxed) ^ key.word[i];
  }
  return difference == 0;
}

inline PageKey key_of(const Entry& entry) {
  PageKey key;
  for (std::uint32_t i = 0; i < kKeyWords; ++i) key.word[i] = entry.key[i].load(std::memory_order_relaxed);
  return key;
}

// What tells a visible page from all others that its entry has held and will hold: reservation id plus 2^32.
constexpr std::uint64_t kNoInstance = 0;
constexpr std::uint64_t kUnknownInstance = ~0ULL;
inline std::uint64_t instance_of(std::uint64_t generation, std::uint32_t entry) { return generation << 32 | (entry + 1); }

// Writer's half. Entries under a key are visible or reserved; everything else has left the index.
class Index {
 public:
  explicit Index(const ArenaView& view) : view_(view) {}

  // The entry under a key, or kNoEntry.
  std::uint32_t find(const PageKey& key) const {
    const KeyHash hash = hash_key(key, view_.geometry);
    for (const std::uint32_t number : {hash.first, hash.second}) {
      for (const Word& way : view_.buckets[number].way) {
        const std::uint64_t value = way.load(std::memory_order_relaxed);
        if (value == 0 || value >> 32 != hash.fingerprint) continue;
        const auto entry = static_cast<std::uint32_t>(value) - 1;
        if (key_equals(view_.entries[entry], key)) return entry;
      }
    }
    return kNoEntry;
  }

  // Puts an entry under a key; false when both buckets are full.
  bool insert(const PageKey& key, std::uint32_t entry) {
    const KeyHash hash = hash_key(key, view_.geometry);
    Bucket& first = view_.buckets[hash.first];
    Bucket& second = view_.buckets[hash.second];
    // Readers look into the first bucket first: prefer it until it is well filled.
    const std::uint32_t first_load = load_of(first);
    Bucket& chosen = first_load <= kPreferFirst || first_load <= load_of(second) ? first : second;
    for (Word& way : chosen.way) {
      if (way.load(std::memory_order_relaxed) != 0) continue;
      way.store(static_cast<std::uint64_t>(hash.fingerprint) << 32 | (entry + 1), std::memory_order_release);
      return true;
    }
    return false;
  }

  // Takes an entry from under its key; false when it was not there.
  bool remove(const PageKey& key, std::uint32_t entry) {
    const KeyHash hash = hash_key(key, view_.geometry);
    for (const std::uint32_t number : {hash.first, hash.second}) {
      for (Word& way : view_.buckets[number].way) {
        if (static_cast<std::uint32_t>(way.load(std::memory_order_relaxed)) != entry + 1) continue;
        way.store(0, std::memory_order_relaxed);
        return true;
      }
    }
    return false;
  }

 private:
  static constexpr std::uint32_t kPreferFirst = 5;

  static std::uint32_t load_of(const Bucket& bucket) {
    std::uint32_t load = 0;
    for (const Word& way : bucket.way) load += way.load(std::memory_order_relaxed) != 0;
    return load;
  }

  ArenaView view_;
};

}  // namespace stratakv
