// Ages of pages on a scale of bins, two to each doubling, and the little arithmetic on them.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

namespace stratakv {

// Bin 0 is below 50 ms; the others begin at 50 ms times 1, 1.5, 2, 3, 4, 6, 8, …; the last one begins at 39 days and has no end.
class AgeScale {
 public:
  static constexpr std::uint32_t kBins = 53;
  static constexpr double kFirstEdgeS = 0.05;

  struct Place {
    std::uint32_t bin;
    float within;  // share of the bin that has passed, in [0, 1)
  };

  static Place place(double age_s) {
    const auto octaves = static_cast<float>(age_s * (1 / kFirstEdgeS));
    if (!(octaves >= 1)) return {0, octaves > 0 ? octaves : 0};
    std::uint32_t bits;
    std::memcpy(&bits, &octaves, sizeof bits);
    const std::uint32_t exponent = (bits >> 23) - 127;
    const std::uint32_t mantissa = bits & 0x7FFFFFu;
    const std::uint32_t half = mantissa >> 22;
    const std::uint32_t bin = 1 + 2 * exponent + half;
    if (bin >= kBins) return {kBins - 1, 0};
    return {bin, static_cast<float>(mantissa & 0x3FFFFFu) * (1.0F / 0x400000)};
  }

  // Where a bin begins; that of kBins is where the last one would end by the rule.
  static double edge_s(std::uint32_t bin) {
    if (bin == 0) return 0;
    const std::uint32_t steps = bin - 1;
    return kFirstEdgeS * static_cast<double>(1ULL << (steps / 2)) * (steps % 2 == 0 ? 1.0 : 1.5);
  }
};

inline double seconds_between(std::uint64_t from_ns, std::uint64_t to_ns) {
  return to_ns > from_ns ? static_cast<double>(to_ns - from_ns) * 1e-9 : 0;
}

}  // namespace stratakv
