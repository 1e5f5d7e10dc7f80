// Which of a bucket's eight ways carry a fingerprint, as a bit mask, without branches.
#pragma once

#include <cstdint>

#include "layout.hpp"

#if defined(__SSE2__) && !defined(STRATAKV_TSAN)
#include <emmintrin.h>
#define STRATAKV_SSE2_SCAN
#endif

namespace stratakv {

// Bit i: way i carries the fingerprint. Ways are candidates only: the caller loads the way again, and the entry's
// generation decides. Loads are acquire: what a way's publisher wrote before it is seen behind it.
#ifdef STRATAKV_SSE2_SCAN
inline std::uint32_t ways_with(const Bucket& bucket, std::uint32_t fingerprint) {
  // An aligned 16-byte load reads each 8-byte word whole on every x86-64, and x86 does not reorder loads.
  const auto* words = reinterpret_cast<const __m128i*>(&bucket);
  const __m128i wanted = _mm_set1_epi32(static_cast<int>(fingerprint));
  const auto high_halves = [&](int at) {
    const __m128 a = _mm_castsi128_ps(_mm_load_si128(words + at));
    const __m128 b = _mm_castsi128_ps(_mm_load_si128(words + at + 1));
    return _mm_cmpeq_epi32(_mm_castps_si128(_mm_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1))), wanted);
  };
  const int low = _mm_movemask_ps(_mm_castsi128_ps(high_halves(0)));
  const int high = _mm_movemask_ps(_mm_castsi128_ps(high_halves(2)));
  std::atomic_signal_fence(std::memory_order_acquire);
  return static_cast<std::uint32_t>(low | high << 4);
}
#else
inline std::uint32_t ways_with(const Bucket& bucket, std::uint32_t fingerprint) {
  std::uint32_t equal = 0;
  for (std::uint32_t i = 0; i < kBucketWays; ++i) {
    const std::uint64_t way = bucket.way[i].load(std::memory_order_acquire);
    equal |= static_cast<std::uint32_t>(way >> 32 == fingerprint) << i;
  }
  return equal;
}
#endif
static_assert(kBucketWays == 8);

}  // namespace stratakv
