// Which hazard words of this process's row are taken: a lock-free bitmap private to the process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace stratakv {

class LeaseSlots {
 public:
  explicit LeaseSlots(std::uint32_t slots)
      : slots_(slots), words_((slots + 63) / 64), free_(new std::atomic<std::uint64_t>[words_]) {
    for (std::uint32_t w = 0; w < words_; ++w) {
      const std::uint32_t here = w + 1 == words_ && slots % 64 != 0 ? slots % 64 : 64;
      free_[w].store(here == 64 ? ~0ULL : (1ULL << here) - 1, std::memory_order_relaxed);
    }
  }

  // Takes up to `count` slots, lowest first, into `out`; returns how many it got.
  std::uint32_t claim(std::uint32_t count, std::uint32_t* out) noexcept {
    std::uint32_t got = 0;
    std::uint32_t word = hint_.load(std::memory_order_relaxed);
    for (std::uint32_t visited = 0; visited < words_ && got < count; ++visited) {
      got += claim_in(word, count - got, out + got);
      if (got == count) break;
      word = word + 1 == words_ ? 0 : word + 1;
    }
    if (got != 0) hint_.store(out[got - 1] / 64, std::memory_order_relaxed);
    return got;
  }

  // Gives back the slots of one word: slot 64 · word + b for each bit b.
  void release_in(std::uint32_t word, std::uint64_t slots) noexcept {
    free_[word].fetch_or(slots, std::memory_order_release);
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
  std::uint32_t claim_in(std::uint32_t word, std::uint32_t wanted, std::uint32_t* out) noexcept {
    std::uint64_t free = free_[word].load(std::memory_order_relaxed);
    while (free != 0) {
      std::uint64_t taken = free;
      if (wanted < 64) {
        std::uint64_t left = free;
        for (std::uint32_t i = 0; i < wanted && left != 0; ++i) left &= left - 1;
        taken = free & ~left;
      }
      // Acquire: a slot's last use by another thread is over before ours begins.
      if (!free_[word].compare_exchange_weak(free, free & ~taken, std::memory_order_acquire, std::memory_order_relaxed)) {
        continue;
      }
      std::uint32_t got = 0;
      for (; taken != 0; taken &= taken - 1) {
        out[got++] = word * 64 + static_cast<std::uint32_t>(__builtin_ctzll(taken));
      }
      return got;
    }
    return 0;
  }

  std::uint32_t slots_;
  std::uint32_t words_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> free_;
  std::atomic<std::uint32_t> hint_{0};
};

}  // namespace stratakv
