// Ways to copy a page, chosen by measurement: libc's memcpy is not the fastest everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace stratakv {

struct CopyKernel {
  const char* name;
  void (*copy)(std::byte* destination, const std::byte* source, std::size_t bytes);
};

// Kernels that this processor can run. A kernel's number is its place here; 0 is always libc's memcpy.
const std::vector<CopyKernel>& copy_kernels();

// The kernel of that number, or memcpy when this processor has no such kernel.
const CopyKernel& copy_kernel(std::uint32_t number);

// Calls that move fewer bytes than this fit the inner caches, where streaming stores lose: they have a kernel of their own.
constexpr std::size_t kLargeCopyBytes = 512 * 1024;

// The kernel of this process where nobody names one: what was measured last for calls of that size, here or by the
// sidecar; memcpy before that.
std::uint32_t default_copy_kernel(std::size_t call_bytes) noexcept;
void set_default_copy_kernel(std::size_t call_bytes, std::uint32_t number) noexcept;

struct KernelTimes {
  const char* name;
  double cold_s;  // source and destination long out of every cache
  double warm_s;  // destination just written
};

struct Calibration {
  std::uint32_t kernel = 0;
  std::vector<KernelTimes> times;
};

// Measures every kernel on copies of `bytes`. Picks the one whose worse ratio to the fastest, over cold and warm, is
// smallest. Takes about a tenth of a second at 1 MiB.
Calibration calibrate_copy(std::size_t bytes);

}  // namespace stratakv
