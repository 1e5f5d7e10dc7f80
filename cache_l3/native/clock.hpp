// CLOCK_BOOTTIME, by which deadlines are meant.
#pragma once

#include <ctime>

#include <cstdint>

namespace stratakv::l3 {

inline std::uint64_t boottime_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000ULL + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace stratakv::l3
