// The fences that the shared-memory protocol stands on, and their stand-ins for ThreadSanitizer.
//
// gcc's ThreadSanitizer does not model stand-alone fences. Its build (STRATAKV_TSAN) performs a read-modify-write on
// one common word instead: two of them are always ordered, and the later one synchronises with the earlier.
#pragma once

#include <atomic>
#include <cstdint>

namespace stratakv {

#ifdef STRATAKV_TSAN
inline std::atomic<std::uint64_t> fence_word{0};
inline void fence_seq_cst() noexcept { fence_word.fetch_add(1, std::memory_order_seq_cst); }
inline void fence_acquire() noexcept { fence_word.fetch_add(1, std::memory_order_acq_rel); }
inline void fence_release() noexcept { fence_word.fetch_add(1, std::memory_order_acq_rel); }
#else
inline void fence_seq_cst() noexcept { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void fence_acquire() noexcept { std::atomic_thread_fence(std::memory_order_acquire); }
inline void fence_release() noexcept { std::atomic_thread_fence(std::memory_order_release); }
#endif

}  // namespace stratakv
