// Keys of pages that were evicted lately, and when: what tells that more memory would have kept a page.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "index.hpp"

namespace stratakv {

// Buckets of eight, each the last eight evictions that fell into it: about as many keys as the arena has entries. A key, a
// digest, is known by 32 bits of itself, so that one in some hundred millions is taken for another; nothing but the choice
// of what is evicted depends on it.
class EvictedKeys {
 public:
  explicit EvictedKeys(std::uint64_t entries) {
    std::uint64_t buckets = 1;
    while (buckets * 2 * kWays <= entries + entries / 2) buckets *= 2;
    buckets_.resize(buckets);
  }

  // Has what `add` and `take` look at for a key come into the caches meanwhile.
  void prefetch(const PageKey& key) const { __builtin_prefetch(&buckets_[number_of(key)], 1); }

  // `at` is the number of pages that the key's size class had evicted, modulo 2^32.
  void add(const PageKey& key, std::uint32_t at) {
    is_empty_ = false;
    Bucket& bucket = of(key);
    for (std::uint32_t i = kWays - 1; i > 0; --i) bucket.way[i] = bucket.way[i - 1];
    bucket.way[0] = mark(key) << 32 | at;
  }

  // When a key was evicted, which is forgotten then; nothing if it was not, or too long ago.
  std::optional<std::uint32_t> take(const PageKey& key) {
    if (is_empty_) return std::nullopt;
    for (std::uint64_t& way : of(key).way) {
      if (way >> 32 != mark(key)) continue;
      const auto at = static_cast<std::uint32_t>(way);
      way = 0;
      return at;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::uint64_t kWays = 8;
  struct alignas(64) Bucket {
    std::uint64_t way[kWays] = {};
  };

  // Never 0, which an empty way has.
  static std::uint64_t mark(const PageKey& key) { return (key.word[1] & 0xFFFFFFFFu) | 1; }
  std::uint64_t number_of(const PageKey& key) const { return (key.word[0] ^ key.word[2]) & (buckets_.size() - 1); }
  Bucket& of(const PageKey& key) { return buckets_[number_of(key)]; }

  std::vector<Bucket> buckets_;
  bool is_empty_ = true;  // nothing was evicted yet
};

}  // namespace stratakv
