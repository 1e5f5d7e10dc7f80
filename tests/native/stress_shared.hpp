// What the writer and the readers of the stress test have in common.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "arena.hpp"
#include "stress_loads.hpp"

namespace stratakv::stress {

constexpr std::uint64_t kNs = 1'000'000'000ULL;
constexpr int kReaders = 4;
constexpr std::size_t kLatePuts = 4;

struct Shared {
  explicit Shared(Arena& arena) : view(arena.view()) {
    auto files = arena.duplicate_descriptors(true);
    data = std::make_unique<Mapping>(files[2].get(), view.geometry.data_bytes, true);
    view.data = data->data();
  }
  ArenaView view;
  std::unique_ptr<Mapping> data;
  Told told;
  Load loads[kLoads];
  std::atomic<bool> stop{false};
  std::atomic<int> wanted_row[kReaders];  // a row asked for (-1), given (>= 0)
  std::atomic<int> given_up[kReaders];    // a row to end, or -1
  std::atomic<std::uint64_t> looks{0}, copies{0}, expired{0}, hits{0}, events{0}, pins{0};
};

inline void check_sums(const CountsSnapshot& counts) {
  std::uint64_t sum = counts.l1 + counts.l2 + counts.l3;
  for (const std::uint64_t missed : counts.miss) sum += missed;
  if (counts.requested != sum || counts.begun < sum) fail("counters: pages requested are not accounted for");
}

}  // namespace stratakv::stress
