// What the writer and the readers of the stress test have in common.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "arena.hpp"
#include "held_pages.hpp"
#include "stress_loads.hpp"

namespace stratakv::stress {

constexpr std::uint64_t kNs = 1'000'000'000ULL;
constexpr int kReaders = 4;
constexpr int kPosters = 2;
constexpr int kClients = kReaders + kPosters;
constexpr std::size_t kHoldings = 12;
constexpr std::size_t kLatePuts = 4;

// A page that was found, and how its bytes began.
struct Met {
  const Prompt* prompt = nullptr;
  std::size_t depth = 0;
  FoundPage page{};
  std::uint64_t nonce = 0;
};

// A lease that was released while some of its pages are still looked at.
struct Holding {
  HeldPages* held;
  std::vector<Met> views;
  std::size_t first = 0;  // depth of its first page
};

struct Shared {
  explicit Shared(Arena& arena) : view(arena.view()) {
    auto files = arena.duplicate_descriptors(true);
    data = std::make_unique<Mapping>(files[2].get(), view.geometry.data_bytes, true);
    view.data = data->data();
  }
  // What a killed process held: it ends with its row, and must not end what another has in that row afterwards.
  void bury(std::vector<Holding> holdings) {
    static auto* const graves = new std::vector<std::vector<Holding>>();
    const std::lock_guard<std::mutex> guard(burying);
    graves->push_back(std::move(holdings));
  }
  std::mutex burying;
  ArenaView view;
  std::unique_ptr<Mapping> data;
  Told told;
  Load loads[kLoads];
  std::atomic<bool> stop{false};
  std::atomic<int> wanted_row[kClients];  // a row asked for (-1), given (>= 0), or neither (-2)
  std::atomic<int> given_up[kClients];    // a row to end, or -1
  std::atomic<std::uint64_t> epoch{1};    // what a request that begins now may claim
  std::atomic<std::uint64_t> posts{0}, looks{0}, copies{0}, expired{0}, hits{0}, events{0}, pins{0}, views{0};
};

inline void check_sums(const CountsSnapshot& counts) {
  std::uint64_t sum = counts.l1 + counts.l2 + counts.l3;
  for (const std::uint64_t missed : counts.miss) sum += missed;
  if (counts.requested != sum || counts.begun < sum) fail("counters: pages requested are not accounted for");
}

}  // namespace stratakv::stress
