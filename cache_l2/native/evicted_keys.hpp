// Keys of pages that were evicted lately, and when: what tells that more memory would have kept a page.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "index.hpp"

namespace stratakv {

// Buckets of sixteen, each the last sixteen evictions that fell into it: about as many keys as the arena has entries. A
// key, a digest, is known by its bucket and 20 bits of itself, so that one in some ten thousands is taken for another; nothing
// but which page size gets memory depends on it. When it was evicted is kept in steps, a thousandth of the arena each.
class EvictedKeys {
 public:
  explicit EvictedKeys(std::uint64_t entries) {
    std::uint64_t buckets = 1;
    while (buckets * 2 * kWays <= entries + entries / 2) buckets *= 2;
    buckets_.resize(buckets);
    while (entries >> step_shift_ > kSteps) ++step_shift_;
  }

  // Has what `add` and `take` look at for a key come into the caches meanwhile.
  void prefetch(const PageKey& key) const { __builtin_prefetch(&buckets_[number_of(key)], 1); }

  // `at` is the number of pages that the key's size class had evicted.
  void add(const PageKey& key, std::uint64_t at) {
    is_empty_ = false;
    Bucket& bucket = of(key);
    for (std::uint32_t i = kWays - 1; i > 0; --i) bucket.way[i] = bucket.way[i - 1];
    bucket.way[0] = mark(key) << kStepBits | step_of(at);
  }

  // How many pages its class had evicted since a key was, which is forgotten then; nothing if it was not, or too long ago.
  std::optional<std::uint64_t> take(const PageKey& key, std::uint64_t now) {
    if (is_empty_) return std::nullopt;
    for (std::uint32_t& way : of(key).way) {
      if (way >> kStepBits != mark(key)) continue;
      const std::uint32_t steps = (step_of(now) - way) & kStepMask;
      way = 0;
      return std::uint64_t{steps} << step_shift_;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::uint64_t kWays = 16;
  static constexpr std::uint32_t kStepBits = 12, kStepMask = (1u << kStepBits) - 1;
  static constexpr std::uint64_t kSteps = 1 << (kStepBits - 2);  // of as many evictions as there are entries
  struct alignas(64) Bucket {
    std::uint32_t way[kWays] = {};
  };

  // Never 0, which an empty way has.
  static std::uint32_t mark(const PageKey& key) { return (static_cast<std::uint32_t>(key.word[1]) >> kStepBits) | 1; }
  std::uint32_t step_of(std::uint64_t at) const { return static_cast<std::uint32_t>(at >> step_shift_) & kStepMask; }
  std::uint64_t number_of(const PageKey& key) const { return (key.word[0] ^ key.word[2]) & (buckets_.size() - 1); }
  Bucket& of(const PageKey& key) { return buckets_[number_of(key)]; }

  std::vector<Bucket> buckets_;
  std::uint32_t step_shift_ = 0;
  bool is_empty_ = true;  // nothing was evicted yet
};

}  // namespace stratakv
