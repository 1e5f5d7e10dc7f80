// Exact page accounting in two copies (rule R20): one process writes, at completion; the sidecar reads, even after a death.
//
// `selector` counts completed blocks; its lowest bit names the valid copy. The writer fills the other copy wholly and
// then advances the selector, so that a reader who sees the same selector before and after has read one block.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "fences.hpp"
#include "layout.hpp"
#include "pauses.hpp"

namespace stratakv {

constexpr std::uint32_t kCountWords = sizeof(PageCounts) / sizeof(Word);
static_assert(kCountWords == 8 + kMissReasons);

struct CountsSnapshot {
  std::uint64_t begun = 0;
  std::uint64_t requested = 0, l1 = 0, l2 = 0, l3 = 0;
  std::uint64_t miss[kMissReasons] = {};
  std::uint64_t bytes_read = 0, bytes_written = 0, collisions = 0, look_ups = 0;
};

// What one finished look-up or fill adds.
struct CountsDelta {
  std::uint64_t requested = 0, l1 = 0, l2 = 0, l3 = 0;
  std::uint64_t missed = 0;
  std::uint32_t reason = 0;
  std::uint64_t bytes_read = 0, bytes_written = 0, collisions = 0, look_ups = 0;
};

// Held for some forty stores; a thread that loses its processor meanwhile delays only its own process.
class SpinLock {
 public:
  void lock() noexcept {
    while (flag_.exchange(true, std::memory_order_acquire)) {
      while (flag_.load(std::memory_order_relaxed)) pause();
    }
  }
  void unlock() noexcept { flag_.store(false, std::memory_order_release); }

 private:
  static void pause() noexcept;
  std::atomic<bool> flag_{false};
};

inline Word* count_words(PageCounts& counts) { return &counts.requested; }

// What a process remembers of the block that it wrote last: in which of the reasons the two copies differ.
struct CountsMemory {
  std::uint64_t selector = 0;  // that it left; another one: somebody else has written since
  std::uint32_t reason = 0;
};

// Adds to the block of one namespace. The caller holds the process's lock for it.
inline void add_counts(NamespaceCounts& counts, const CountsDelta& delta, CountsMemory& memory) {
  const std::uint64_t selector = counts.selector.load(std::memory_order_relaxed);
  PageCounts& valid = counts.copy[selector & 1];
  PageCounts& spare = counts.copy[(selector + 1) & 1];
  const auto put = [](Word& to, const Word& from, std::uint64_t add) {
    to.store(from.load(std::memory_order_relaxed) + add, std::memory_order_relaxed);
  };
  fence_release();  // no word of the spare copy may be seen before the selector that made it the spare one
  put(spare.requested, valid.requested, delta.requested);
  pause_here();  // half written
  put(spare.l1, valid.l1, delta.l1);
  put(spare.l2, valid.l2, delta.l2);
  put(spare.l3, valid.l3, delta.l3);
  if (selector != 0 && memory.selector == selector) {  // all other reasons are the same in both
    put(spare.miss[memory.reason], valid.miss[memory.reason], 0);
    put(spare.miss[delta.reason], valid.miss[delta.reason], delta.missed);
  } else {
    for (std::uint32_t i = 0; i < kMissReasons; ++i) put(spare.miss[i], valid.miss[i], i == delta.reason ? delta.missed : 0);
  }
  memory = {selector + 1, delta.reason};
  put(spare.bytes_read, valid.bytes_read, delta.bytes_read);
  put(spare.bytes_written, valid.bytes_written, delta.bytes_written);
  put(spare.collisions, valid.collisions, delta.collisions);
  put(spare.look_ups, valid.look_ups, delta.look_ups);
  counts.selector.store(selector + 1, std::memory_order_release);
}

// Whether so many more pages may be completed: they were begun, and nobody has completed them. The caller holds the lock.
inline bool are_under_way(const NamespaceCounts& counts, std::uint64_t pages) {
  const PageCounts& valid = counts.copy[counts.selector.load(std::memory_order_relaxed) & 1];
  const std::uint64_t begun = counts.begun.load(std::memory_order_relaxed);
  const std::uint64_t finished = valid.requested.load(std::memory_order_relaxed);
  return finished <= begun && pages <= begun - finished;
}

// One consistent block, `begun` read last so that it is never below `requested`; nothing while it kept moving.
inline std::optional<CountsSnapshot> read_counts(NamespaceCounts& counts) {
  for (int attempt = 0; attempt < 10'000; ++attempt) {
    const std::uint64_t selector = counts.selector.load(std::memory_order_acquire);
    PageCounts& valid = counts.copy[selector & 1];
    CountsSnapshot out;
    const auto get = [](const Word& word) { return word.load(std::memory_order_relaxed); };
    out.requested = get(valid.requested);
    out.l1 = get(valid.l1);
    out.l2 = get(valid.l2);
    out.l3 = get(valid.l3);
    for (std::uint32_t i = 0; i < kMissReasons; ++i) out.miss[i] = get(valid.miss[i]);
    out.bytes_read = get(valid.bytes_read);
    out.bytes_written = get(valid.bytes_written);
    out.collisions = get(valid.collisions);
    out.look_ups = get(valid.look_ups);
    fence_acquire();
    if (counts.selector.load(std::memory_order_relaxed) != selector) continue;
    out.begun = counts.begun.load(std::memory_order_relaxed);
    return out;
  }
  return std::nullopt;
}

inline void clear_counts(NamespaceCounts& counts) {
  counts.begun.store(0, std::memory_order_relaxed);
  for (PageCounts& copy : counts.copy) {
    Word* words = count_words(copy);
    for (std::uint32_t i = 0; i < kCountWords; ++i) words[i].store(0, std::memory_order_relaxed);
  }
  counts.selector.store(0, std::memory_order_release);
}

inline void SpinLock::pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace stratakv
