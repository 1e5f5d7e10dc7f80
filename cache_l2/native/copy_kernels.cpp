// Copy loops and their calibration.
#include "copy_kernels.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>

#include "mapping.hpp"
#include "size_classes.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace stratakv {
namespace {

#if defined(STRATAKV_TSAN)

// Under ThreadSanitizer a copy may race with the next writer of a slot whose copy lease ran out; the generation check
// afterwards discards the bytes. That one race is meant, so these loads and stores are not watched.
__attribute__((no_sanitize_thread, optimize("no-tree-loop-distribute-patterns"))) void copy_unwatched(
    std::byte* destination, const std::byte* source, std::size_t bytes) {
  std::size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    *reinterpret_cast<volatile std::uint64_t*>(destination + at) = *reinterpret_cast<const volatile std::uint64_t*>(source + at);
  }
  for (; at < bytes; ++at) destination[at] = source[at];
}

std::vector<CopyKernel> supported_kernels() { return {{"memcpy", copy_unwatched}}; }

#else

void copy_libc(std::byte* destination, const std::byte* source, std::size_t bytes) {
  std::memcpy(destination, source, bytes);
}

#if defined(__x86_64__)

void copy_rep_movsb(std::byte* destination, const std::byte* source, std::size_t bytes) {
  asm volatile("rep movsb" : "+D"(destination), "+S"(source), "+c"(bytes) : : "memory");
}

// No software prefetch: measured from 1 to 16 KiB ahead, it only costs; the processor's own prefetchers do better.

// Bytes to copy before the destination reaches a multiple of `align`.
std::size_t head_bytes(const std::byte* destination, std::size_t align, std::size_t bytes) {
  return std::min(bytes, (align - reinterpret_cast<std::uintptr_t>(destination) % align) % align);
}

__attribute__((target("avx2"))) void copy_avx2(std::byte* destination, const std::byte* source, std::size_t bytes) {
  const std::size_t head = head_bytes(destination, 32, bytes);
  std::memcpy(destination, source, head);
  std::size_t at = head;
  for (; at + 128 <= bytes; at += 128) {
    const auto* from = reinterpret_cast<const __m256i*>(source + at);
    auto* to = reinterpret_cast<__m256i*>(destination + at);
    const __m256i a = _mm256_loadu_si256(from), b = _mm256_loadu_si256(from + 1);
    const __m256i c = _mm256_loadu_si256(from + 2), d = _mm256_loadu_si256(from + 3);
    _mm256_store_si256(to, a);
    _mm256_store_si256(to + 1, b);
    _mm256_store_si256(to + 2, c);
    _mm256_store_si256(to + 3, d);
  }
  std::memcpy(destination + at, source + at, bytes - at);
}

__attribute__((target("avx2"))) void copy_avx2_stream(std::byte* destination, const std::byte* source, std::size_t bytes) {
  const std::size_t head = head_bytes(destination, 32, bytes);
  std::memcpy(destination, source, head);
  std::size_t at = head;
  for (; at + 128 <= bytes; at += 128) {
    const auto* from = reinterpret_cast<const __m256i*>(source + at);
    auto* to = reinterpret_cast<__m256i*>(destination + at);
    const __m256i a = _mm256_loadu_si256(from), b = _mm256_loadu_si256(from + 1);
    const __m256i c = _mm256_loadu_si256(from + 2), d = _mm256_loadu_si256(from + 3);
    _mm256_stream_si256(to, a);
    _mm256_stream_si256(to + 1, b);
    _mm256_stream_si256(to + 2, c);
    _mm256_stream_si256(to + 3, d);
  }
  _mm_sfence();
  std::memcpy(destination + at, source + at, bytes - at);
}

__attribute__((target("avx512f"))) void copy_avx512(std::byte* destination, const std::byte* source, std::size_t bytes) {
  const std::size_t head = head_bytes(destination, 64, bytes);
  std::memcpy(destination, source, head);
  std::size_t at = head;
  for (; at + 256 <= bytes; at += 256) {
    const __m512i a = _mm512_loadu_si512(source + at), b = _mm512_loadu_si512(source + at + 64);
    const __m512i c = _mm512_loadu_si512(source + at + 128), d = _mm512_loadu_si512(source + at + 192);
    _mm512_store_si512(destination + at, a);
    _mm512_store_si512(destination + at + 64, b);
    _mm512_store_si512(destination + at + 128, c);
    _mm512_store_si512(destination + at + 192, d);
  }
  std::memcpy(destination + at, source + at, bytes - at);
}

__attribute__((target("avx512f"))) void copy_avx512_stream(
    std::byte* destination, const std::byte* source, std::size_t bytes) {
  const std::size_t head = head_bytes(destination, 64, bytes);
  std::memcpy(destination, source, head);
  std::size_t at = head;
  for (; at + 256 <= bytes; at += 256) {
    const __m512i a = _mm512_loadu_si512(source + at), b = _mm512_loadu_si512(source + at + 64);
    const __m512i c = _mm512_loadu_si512(source + at + 128), d = _mm512_loadu_si512(source + at + 192);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(destination + at), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(destination + at + 64), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(destination + at + 128), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(destination + at + 192), d);
  }
  _mm_sfence();
  std::memcpy(destination + at, source + at, bytes - at);
}

std::vector<CopyKernel> supported_kernels() {
  std::vector<CopyKernel> kernels{{"memcpy", copy_libc}, {"rep_movsb", copy_rep_movsb}};
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) {
    kernels.push_back({"avx2", copy_avx2});
    kernels.push_back({"avx2_stream", copy_avx2_stream});
  }
  if (__builtin_cpu_supports("avx512f")) {
    kernels.push_back({"avx512", copy_avx512});
    kernels.push_back({"avx512_stream", copy_avx512_stream});
  }
  return kernels;
}

#else

std::vector<CopyKernel> supported_kernels() { return {{"memcpy", copy_libc}}; }

#endif
#endif

std::atomic<std::uint32_t> default_kernel{0}, default_small_kernel{0};

std::atomic<std::uint32_t>& default_for(std::size_t call_bytes) {
  return call_bytes < kLargeCopyBytes ? default_small_kernel : default_kernel;
}

using Clock = std::chrono::steady_clock;

double seconds_of(const CopyKernel& kernel, std::byte* destination, const std::byte* source, std::size_t bytes) {
  const auto begin = Clock::now();
  kernel.copy(destination, source, bytes);
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The lower quartile: what a copy takes when nobody else disturbs it much.
double typical(std::vector<double>& values) {
  const std::size_t at = values.size() / 4;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

constexpr std::size_t kRounds = 25;
constexpr std::size_t kColdBytes = 64ULL << 20;  // walked through between two uses of one place

}  // namespace

const std::vector<CopyKernel>& copy_kernels() {
  static const std::vector<CopyKernel> kernels = supported_kernels();
  return kernels;
}

const CopyKernel& copy_kernel(std::uint32_t number) {
  const auto& kernels = copy_kernels();
  return kernels[number < kernels.size() ? number : 0];
}

std::uint32_t default_copy_kernel(std::size_t call_bytes) noexcept {
  return default_for(call_bytes).load(std::memory_order_relaxed);
}

void set_default_copy_kernel(std::size_t call_bytes, std::uint32_t number) noexcept {
  default_for(call_bytes).store(number, std::memory_order_relaxed);
}

Calibration calibrate_copy(std::size_t bytes) {
  const std::size_t places = std::max<std::size_t>(2, kColdBytes / bytes);
  const auto free_aligned = [](std::byte* p) { ::operator delete[](p, std::align_val_t(4096)); };
  using Buffer = std::unique_ptr<std::byte[], decltype(free_aligned)>;
  const auto make = [&](std::size_t size) {
    Buffer buffer(static_cast<std::byte*>(::operator new[](size, std::align_val_t(4096))), free_aligned);
    std::memset(buffer.get(), 1, size);
    return buffer;
  };
  const Buffer destination = make(places * bytes), warm = make(bytes);
  // The source is what pages live in, a mapped memory file, which the kernel backs with small pages.
  const std::uint64_t source_bytes = round_up(places * bytes, kSlotAlign);
  const Descriptor file = create_memory_file("stratakv-calibration", source_bytes);
  const Mapping mapping(file.get(), source_bytes, true, true);
  const std::byte* source = mapping.data();

  const auto& kernels = copy_kernels();
  std::vector<std::vector<double>> cold(kernels.size()), hot(kernels.size());
  std::size_t place = 0;
  for (std::size_t round = 0; round < kRounds; ++round) {
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      place = (place + places / 2 + 1) % places;
      cold[k].push_back(seconds_of(kernels[k], destination.get() + place * bytes, source + place * bytes, bytes));
      std::memset(warm.get(), static_cast<int>(round), bytes);
      place = (place + places / 2 + 1) % places;
      hot[k].push_back(seconds_of(kernels[k], warm.get(), source + place * bytes, bytes));
    }
  }

  Calibration result;
  double best_cold = 1e9, best_hot = 1e9;
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    result.times.push_back({kernels[k].name, typical(cold[k]), typical(hot[k])});
    best_cold = std::min(best_cold, result.times.back().cold_s);
    best_hot = std::min(best_hot, result.times.back().warm_s);
  }
  double best_ratio = 1e9;
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    const double ratio = std::max(result.times[k].cold_s / best_cold, result.times[k].warm_s / best_hot);
    if (ratio >= best_ratio) continue;
    best_ratio = ratio;
    result.kernel = static_cast<std::uint32_t>(k);
  }
  return result;
}

}  // namespace stratakv
