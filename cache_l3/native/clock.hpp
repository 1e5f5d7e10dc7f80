// CLOCK_BOOTTIME, by which deadlines are meant, and timers that go by it.
#pragma once

#include <sys/timerfd.h>

#include <algorithm>
#include <cstdint>
#include <ctime>

namespace stratakv::l3 {

inline std::uint64_t boottime_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000ULL + static_cast<std::uint64_t>(now.tv_nsec);
}

// A timerfd of that clock is readable from then on, until it is read or set again.
inline void set_timer(int descriptor, std::uint64_t at_ns) noexcept {
  const std::uint64_t due_ns = std::max<std::uint64_t>(at_ns, 1);  // 0 would disarm it
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(due_ns / 1'000'000'000U);
  when.it_value.tv_nsec = static_cast<long>(due_ns % 1'000'000'000U);
  ::timerfd_settime(descriptor, TFD_TIMER_ABSTIME, &when, nullptr);
}

}  // namespace stratakv::l3
