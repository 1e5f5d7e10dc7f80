// XXH3-64 with seed 0 over memory that fills up from its start: the checksum of payloads as they come and go.
//
// Written from the algorithm's published description. The whole length is known before the first byte, so nothing is
// buffered: what has arrived is taken in stripes where it lies, but for the last stripe, which ends with the last byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stratakv::l3 {

// Takes `stripes` stripes of 64 bytes into the eight lanes; `first` is the number of the first of them in its block of 16.
using TakeStripes = void (*)(std::uint64_t* lanes, const std::byte* data, std::size_t first, std::size_t stripes);

struct Xxh3Kernel {
  std::string name;
  TakeStripes take;
};

// Those that this processor can run, the best first; the last one needs nothing in particular.
const std::vector<Xxh3Kernel>& xxh3_kernels();

class RunningXxh3 {
 public:
  RunningXxh3() = default;
  RunningXxh3(const std::byte* data, std::size_t bytes, std::size_t kernel = 0);

  // The first `arrived` bytes are there now; fewer than before change nothing.
  void advance(std::size_t arrived) noexcept;
  // All bytes are there.
  std::uint64_t finish() noexcept;
  // How far `advance` has come.
  std::size_t taken() const noexcept { return taken_stripes_ * 64; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t taken_stripes_ = 0;
  TakeStripes take_ = nullptr;
  alignas(64) std::uint64_t lanes_[8] = {};
};

std::uint64_t xxh3_64(const std::byte* data, std::size_t bytes) noexcept;

}  // namespace stratakv::l3
