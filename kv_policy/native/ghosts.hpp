// Pages that were evicted lately: when they were last used and of which kind they were, to know them when they come back.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace stratakv {

// Buckets of eight words, each the last eight evictions that fell into it. A word holds 23 bits of the page's digest, the
// last access in 1/32 s (97 days, then it comes round), the cell, a weight and a flag. With the bucket's number that is all of a
// 32-bit digest, so that one page in some hundreds of millions is taken for another; only what is evicted depends on it.
class Ghosts {
 public:
  struct Ghost {
    std::uint32_t cell;
    std::uint32_t weight_class;  // it stands for 2^(−class/2) of a run
    bool goes_on;                // its request asked for more than a little on top of it
    double age_s;
  };
  static constexpr std::uint32_t kWays = 8;
  static constexpr std::uint32_t kWeightClasses = 16;
  static constexpr std::uint64_t kTickNs = 31'250'000;  // how exactly the last access is known

  // As many ghosts as `pages` times a factor that falls from eight to two as caches grow.
  explicit Ghosts(std::uint64_t pages) {
    const std::uint64_t wanted = pages * 8 <= kDeepGhosts ? pages * 8 : (pages * 2 > kDeepGhosts ? pages * 2 : kDeepGhosts);
    std::uint64_t buckets = kLeastBuckets;
    while (buckets * kWays < wanted && buckets < kMostBuckets) buckets *= 2;
    while (1ULL << bits_ < buckets) ++bits_;
    buckets_.resize(buckets);
  }

  std::uint64_t buckets() const { return buckets_.size(); }
  std::uint64_t bytes() const { return buckets_.size() * sizeof(Bucket); }
  void prefetch(std::uint32_t digest) const { __builtin_prefetch(&buckets_[number_of(digest)], 1); }

  // What had to be forgotten for it, if anything.
  std::optional<Ghost> add(std::uint32_t digest, std::uint64_t touched_ns, std::uint32_t cell, std::uint32_t weight_class,
                           bool goes_on, std::uint64_t now_ns) {
    const std::uint64_t last = push(digest, ticks(touched_ns), cell, weight_class, goes_on);
    if ((last & kUsed) == 0) return std::nullopt;
    return unpacked(last, now_ns);
  }

  // As one of another life, whose age is told in 1/32 s.
  void restore(std::uint32_t digest, std::uint32_t age_ticks, std::uint32_t cell, std::uint32_t weight_class, bool goes_on,
               std::uint64_t now_ns) {
    push(digest, ticks(now_ns) - age_ticks, cell, weight_class, goes_on);
  }

  // Finds and forgets a page.
  std::optional<Ghost> take(std::uint32_t digest, std::uint64_t now_ns) {
    Bucket& bucket = buckets_[number_of(digest)];
    for (std::uint32_t i = 0; i < kWays; ++i) {
      const std::uint64_t word = bucket.way[i];
      if ((word & kUsed) == 0) break;
      if ((word >> 40 & kMarkMask) != (digest & kMarkMask)) continue;
      for (; i + 1 < kWays; ++i) bucket.way[i] = bucket.way[i + 1];
      bucket.way[kWays - 1] = 0;
      return unpacked(word, now_ns);
    }
    return std::nullopt;
  }

  // Calls `each(digest, ghost)` for those of one bucket, the latest first.
  template <class Each>
  void visit(std::uint64_t bucket, std::uint64_t now_ns, const Each& each) const {
    for (const std::uint64_t word : buckets_[bucket].way) {
      if ((word & kUsed) == 0) return;
      const auto digest = static_cast<std::uint32_t>((bucket >> (bits_ - kLeastBits)) << kMarkBits | (word >> 40 & kMarkMask));
      each(digest, unpacked(word, now_ns));
    }
  }

 private:
  static constexpr std::uint64_t kDeepGhosts = 1 << 20;
  static constexpr std::uint32_t kMarkBits = 23, kLeastBits = 9;  // a bucket's number holds the bits that a word does not
  static constexpr std::uint64_t kLeastBuckets = 1ULL << kLeastBits;
  static constexpr std::uint64_t kMostBuckets = 1ULL << 24;
  static constexpr std::uint64_t kUsed = 1ULL << 63;
  static constexpr std::uint64_t kMarkMask = (1ULL << kMarkBits) - 1;
  static constexpr std::uint64_t kTickMask = (1ULL << 28) - 1;
  struct alignas(64) Bucket {
    std::uint64_t way[kWays] = {};
  };

  // The word that falls out of the bucket.
  std::uint64_t push(std::uint32_t digest, std::uint64_t tick, std::uint32_t cell, std::uint32_t weight_class, bool goes_on) {
    Bucket& bucket = buckets_[number_of(digest)];
    const std::uint64_t last = bucket.way[kWays - 1];
    for (std::uint32_t i = kWays - 1; i > 0; --i) bucket.way[i] = bucket.way[i - 1];
    bucket.way[0] = kUsed | std::uint64_t{digest & kMarkMask} << 40 | std::uint64_t{goes_on} << 39 |
                    (tick & kTickMask) << 11 | cell << 4 | weight_class;
    return last;
  }

  static std::uint64_t ticks(std::uint64_t ns) { return ns / kTickNs; }
  std::uint64_t number_of(std::uint32_t digest) const { return digest >> (32 - bits_); }
  static Ghost unpacked(std::uint64_t word, std::uint64_t now_ns) {
    const std::uint64_t age = (ticks(now_ns) - (word >> 11)) & kTickMask;
    return {static_cast<std::uint32_t>(word >> 4 & 0x7F), static_cast<std::uint32_t>(word & 0xF), (word >> 39 & 1) != 0,
            static_cast<double>(age) * (static_cast<double>(kTickNs) * 1e-9)};
  }

  std::vector<Bucket> buckets_;
  std::uint32_t bits_ = 0;  // of a bucket's number
};

}  // namespace stratakv
