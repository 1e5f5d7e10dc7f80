// Ways to copy a page, chosen by measurement: libc's memcpy is not the fastest everywhere.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace stratakv {

struct CopyKernel {
  const char* name;
  void (*copy)(std::byte* destination, const std::byte* source, std::size_t bytes);
  bool streams;  // past the caches, so that whoever reads the destination next fetches it from memory
};

// Kernels that this processor can run. A kernel's number is its place here; 0 is always libc's memcpy.
const std::vector<CopyKernel>& copy_kernels();

// The kernel of that number, or memcpy when this processor has no such kernel.
const CopyKernel& copy_kernel(std::uint32_t number);

// Places of a destination that are looked at to tell whether it is in the caches.
constexpr std::size_t kProbes = 4;
using ProbedPlaces = std::array<std::byte*, kProbes>;

// Two kernels by number: streaming stores win where the destination is out of the caches and lose where it is in them, so
// each page's destination is probed first. Probing costs some locked no-ops, a hundredth of the copy of a large page.
struct CopyChoice {
  std::uint32_t cold = 0;
  std::uint32_t warm = 0;

  void copy(std::byte* destination, const std::byte* source, std::size_t bytes) const;
  // One of the two for all copies of parts of a destination: it is probed once.
  CopyChoice decided(std::byte* destination, std::size_t bytes) const;
  CopyChoice decided(const ProbedPlaces& places, std::size_t bytes) const;
};

// True when a few places of a destination answer as fast as caches do. Changes nothing in it, and faults its pages in as
// the copy would. Always false where the processor's clock can't be read cheaply.
bool in_caches(std::byte* destination, std::size_t bytes) noexcept;
bool in_caches(const ProbedPlaces& places) noexcept;

// The choice of this process where nobody names a kernel: what was measured last, here or by the sidecar; memcpy before.
CopyChoice default_copy_choice() noexcept;
void set_default_copy_choice(CopyChoice choice) noexcept;

struct KernelTimes {
  const char* name;
  double cold_s;  // source and destination long out of every cache
  double warm_s;  // destination just written
};

struct Calibration {
  CopyChoice choice;
  std::vector<KernelTimes> times;
};

// Measures every kernel on copies of `bytes` and picks the fastest for cold destinations, and for warm ones the fastest
// that leaves them warm: what a streaming kernel saves there, the destination's next reader pays. Takes about a tenth of
// a second at 1 MiB.
Calibration calibrate_copy(std::size_t bytes);

}  // namespace stratakv
