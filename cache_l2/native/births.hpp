// Births: what tells one computation of a page from all others, in whichever arena and life it was made; lines: what tells
// a page with all that it stands on from the same page elsewhere.
#pragma once

#include <cstdint>

#include "index.hpp"

namespace stratakv {

// Numbers that differ within a life, and between lives as random ones do. None of them is one with a meaning of its own.
class Births {
 public:
  Births(std::uint64_t seed, std::uint64_t mask) : seed_(seed), mask_(mask) {}

  std::uint64_t draw() {
    std::uint64_t birth = kNoInstance;
    while (birth == kNoInstance || birth == kUnknownInstance) birth = mixed(seed_ + ++drawn_ * 0x9E3779B97F4A7C15ULL) ^ mask_;
    return birth;
  }

  // The line of a page of that birth on a page of the line `above`, 0: on none. A birth travels with its page, and may stand on
  // others elsewhere; a line is the births from the root on, so equal lines are equal chains.
  static std::uint64_t line(std::uint64_t above, std::uint64_t birth) {
    const std::uint64_t line = mixed(mixed(above + 0x9E3779B97F4A7C15ULL) ^ birth);
    return line == kNoInstance || line == kUnknownInstance ? 1 : line;
  }

 private:
  // The finaliser of SplitMix64: each step can be undone, so different numbers stay different.
  static std::uint64_t mixed(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }

  std::uint64_t seed_, mask_;
  std::uint64_t drawn_ = 0;
};

}  // namespace stratakv
