// Which words of this process's row are taken, hazards or request views: a lock-free bitmap private to the process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace stratakv {

constexpr std::uint32_t kNoSlot = 0xFFFFFFFFu;

class LeaseSlots {
 public:
  explicit LeaseSlots(std::uint32_t slots)
      : slots_(slots), words_((slots + 63) / 64), free_(new std::atomic<std::uint64_t>[words_]) {
    for (std::uint32_t w = 0; w < words_; ++w) {
      const std::uint32_t here = w + 1 == words_ && slots % 64 != 0 ? slots % 64 : 64;
      free_[w].store(here == 64 ? ~0ULL : (1ULL << here) - 1, std::memory_order_relaxed);
    }
  }

  // Takes a slot, one of the lowest that are free; kNoSlot: all are taken.
  std::uint32_t claim() noexcept {
    const std::uint32_t hint = hint_.load(std::memory_order_relaxed);
    std::uint32_t word = hint;
    for (std::uint32_t visited = 0; visited < words_; ++visited) {
      const std::uint32_t slot = claim_in(word);
      if (slot != kNoSlot) {
        if (word != hint) hint_.store(word, std::memory_order_relaxed);
        return slot;
      }
      word = word + 1 == words_ ? 0 : word + 1;
    }
    return kNoSlot;
  }

  void release(std::uint32_t slot) noexcept {
    const std::uint32_t word = slot / 64;
    free_[word].fetch_or(1ULL << (slot % 64), std::memory_order_release);
    if (word < hint_.load(std::memory_order_relaxed)) hint_.store(word, std::memory_order_relaxed);
  }

  std::uint32_t held() const noexcept {
    std::uint32_t free = 0;
    for (std::uint32_t w = 0; w < words_; ++w) {
      free += static_cast<std::uint32_t>(__builtin_popcountll(free_[w].load(std::memory_order_relaxed)));
    }
    return slots_ - free;
  }
  std::uint32_t slots() const noexcept { return slots_; }

 private:
  std::uint32_t claim_in(std::uint32_t word) noexcept {
    std::uint64_t free = free_[word].load(std::memory_order_relaxed);
    while (free != 0) {
      // Acquire: a slot's last use by another thread is over before ours begins.
      if (!free_[word].compare_exchange_weak(free, free & (free - 1), std::memory_order_acquire, std::memory_order_relaxed)) {
        continue;
      }
      return word * 64 + static_cast<std::uint32_t>(__builtin_ctzll(free));
    }
    return kNoSlot;
  }

  std::uint32_t slots_;
  std::uint32_t words_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> free_;
  std::atomic<std::uint32_t> hint_{0};
};

}  // namespace stratakv
