// One source of a loop, compiled for what every processor of the kind can do and for wider vectors.
#pragma once

#define STRATAKV_INLINE [[gnu::always_inline]] inline
#if defined(__x86_64__)
// No fused multiply-add: every kernel gives the same bits.
#define STRATAKV_WIDE __attribute__((target("avx2")))
#endif

namespace stratakv::l3 {

// Which of a source's kernels work: the widest that there is, or for tests the one that every processor has.
enum class Kernel { Best, Plain };

#if defined(__x86_64__)
inline bool has_wide_vectors() noexcept {
  static const bool kHas = __builtin_cpu_supports("avx2") != 0;
  return kHas;
}
#endif

}  // namespace stratakv::l3
