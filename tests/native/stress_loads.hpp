// Loads for the stress test: another thread moves bytes into reserved places while the writer goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "pauses.hpp"
#include "stress_pages.hpp"

namespace stratakv::stress {

constexpr std::size_t kLoads = 4;

struct Place {
  std::uint64_t reservation, offset;
  std::size_t depth;
};

// One run of pages on its way. While it moves it is the mover's, else the writer's.
struct Load {
  enum State { kIdle, kMoving, kArrived };
  std::atomic<State> state{kIdle};
  const Prompt* prompt = nullptr;
  Origin origin;
  std::uint64_t rests_on = 0;  // a line
  std::uint64_t nonce = 0;
  std::vector<Place> places;
};

// What a socket does: bytes arrive when they arrive, whoever has taken the key meanwhile.
inline void move_bytes(Load (&loads)[kLoads], std::byte* data, const std::atomic<bool>& stop) {
  while (!stop.load()) {
    for (Load& load : loads) {
      if (load.state.load(std::memory_order_acquire) != Load::kMoving) continue;
      for (const Place& place : load.places) {
        const std::size_t bytes = load.prompt->page_bytes();
        std::byte* at = data + place.offset;
        fill_page(at, bytes / 2, load.prompt->keys[place.depth], load.nonce, load.origin);
        pause_here();  // half of it is there
        fill_page(at, bytes, load.prompt->keys[place.depth], load.nonce, load.origin);
      }
      load.state.store(Load::kArrived, std::memory_order_release);
    }
    pause_here();
  }
}

}  // namespace stratakv::stress
