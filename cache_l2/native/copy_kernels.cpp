// Copy loops and their calibration.
#include "copy_kernels.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>

#include "layout.hpp"
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

std::vector<CopyKernel> supported_kernels() { return {{"memcpy", copy_unwatched, false}}; }

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
  std::vector<CopyKernel> kernels{{"memcpy", copy_libc, false}, {"rep_movsb", copy_rep_movsb, false}};
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) {
    kernels.push_back({"avx2", copy_avx2, false});
    kernels.push_back({"avx2_stream", copy_avx2_stream, true});
  }
  if (__builtin_cpu_supports("avx512f")) {
    kernels.push_back({"avx512", copy_avx512, false});
    kernels.push_back({"avx512_stream", copy_avx512_stream, true});
  }
  return kernels;
}

#else

std::vector<CopyKernel> supported_kernels() { return {{"memcpy", copy_libc, false}}; }

#endif
#endif

ProbedPlaces places_of(std::byte* destination, std::size_t bytes) {
  const std::size_t stride = bytes / kProbes;
  ProbedPlaces places{};
  for (std::size_t i = 0; i < kProbes; ++i) places[i] = destination + i * stride + stride / 2;
  return places;
}

std::atomic<std::uint64_t> default_choice{0};  // cold in the high 32 bits, warm in the low

constexpr std::size_t kProbedBytesMin = 32 * 1024;  // below it a probe would cost more than it could save

#if defined(__x86_64__) && !defined(STRATAKV_TSAN)

// A locked no-op waits for the line wherever it is, and asks for it as a store would.
void touch_line(std::byte* at) { asm volatile("lock orb $0, %0" : "+m"(*at)); }

std::uint64_t probe_ticks(const ProbedPlaces& places) {
  _mm_lfence();
  const std::uint64_t begin = __rdtsc();
  for (std::byte* place : places) touch_line(place);
  _mm_lfence();
  return __rdtsc() - begin;
}

// Between what probes cost in the caches and out of them on this machine, measured once.
std::uint64_t measure_warm_ticks_max() {
  constexpr std::size_t bytes = 64 * 1024;
  const auto buffer = std::make_unique<std::byte[]>(bytes);
  std::uint64_t warm = ~0ULL, cold = ~0ULL;
  for (int round = 0; round < 16; ++round) {
    for (std::size_t at = 0; at < bytes; at += kCacheLine) touch_line(buffer.get() + at);
    warm = std::min(warm, probe_ticks(places_of(buffer.get(), bytes)));
    for (std::size_t at = 0; at < bytes; at += kCacheLine) _mm_clflush(buffer.get() + at);
    _mm_mfence();
    cold = std::min(cold, probe_ticks(places_of(buffer.get(), bytes)));
  }
  return static_cast<std::uint64_t>(std::sqrt(static_cast<double>(warm) * static_cast<double>(cold)));
}

#endif

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

// Writes to every line with plain stores; memset may stream a large buffer past the caches.
void warm_up(std::byte* buffer, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kCacheLine) *const_cast<volatile std::byte*>(buffer + at) = std::byte{1};
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

bool in_caches(std::byte* destination, std::size_t bytes) noexcept { return in_caches(places_of(destination, bytes)); }

bool in_caches([[maybe_unused]] const ProbedPlaces& places) noexcept {
#if defined(__x86_64__) && !defined(STRATAKV_TSAN)
  static const std::uint64_t warm_ticks_max = measure_warm_ticks_max();
  return probe_ticks(places) <= warm_ticks_max;
#else
  return false;
#endif
}

void CopyChoice::copy(std::byte* destination, const std::byte* source, std::size_t bytes) const {
  copy_kernel(decided(destination, bytes).cold).copy(destination, source, bytes);
}

CopyChoice CopyChoice::decided(std::byte* destination, std::size_t bytes) const {
  return decided(places_of(destination, bytes), bytes);
}

CopyChoice CopyChoice::decided(const ProbedPlaces& places, std::size_t bytes) const {
  const bool is_warm = cold != warm && (bytes < kProbedBytesMin || in_caches(places));
  return is_warm ? CopyChoice{warm, warm} : CopyChoice{cold, cold};
}

CopyChoice default_copy_choice() noexcept {
  const std::uint64_t both = default_choice.load(std::memory_order_relaxed);
  return {static_cast<std::uint32_t>(both >> 32), static_cast<std::uint32_t>(both)};
}

void set_default_copy_choice(CopyChoice choice) noexcept {
  default_choice.store(static_cast<std::uint64_t>(choice.cold) << 32 | choice.warm, std::memory_order_relaxed);
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
  // A worker's buffers begin a little behind a page's border, as allocators place them; exactly on it, loads and stores
  // at the same place of a page would hinder each other.
  const Buffer destinations = make(places * bytes + kCacheLine), warm_buffer = make(bytes + kCacheLine);
  std::byte* const destination = destinations.get() + kCacheLine;
  std::byte* const warm = warm_buffer.get() + kCacheLine;
  // The source is what pages live in, a mapped memory file, which the kernel backs with small pages.
  const std::uint64_t source_bytes = round_up(places * bytes, kSlotAlign);
  const Descriptor file = create_memory_file("stratakv-calibration", source_bytes);
  Mapping mapping(file.get(), source_bytes, true);
  mapping.prepare(false, Prefault::kFirstUse);
  const std::byte* source = mapping.data();

  const auto& kernels = copy_kernels();
  std::vector<std::vector<double>> cold(kernels.size()), hot(kernels.size());
  std::size_t place = 0;
  for (std::size_t round = 0; round < kRounds; ++round) {
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      place = (place + places / 2 + 1) % places;
      cold[k].push_back(seconds_of(kernels[k], destination + place * bytes, source + place * bytes, bytes));
      warm_up(warm, bytes);
      place = (place + places / 2 + 1) % places;
      hot[k].push_back(seconds_of(kernels[k], warm, source + place * bytes, bytes));
    }
  }

  Calibration result;
  double best_cold = 1e9, best_warm = 1e9;
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    result.times.push_back({kernels[k].name, typical(cold[k]), typical(hot[k])});
    const KernelTimes& now = result.times.back();
    if (now.cold_s < best_cold) best_cold = now.cold_s, result.choice.cold = static_cast<std::uint32_t>(k);
    if (!kernels[k].streams && now.warm_s < best_warm) best_warm = now.warm_s, result.choice.warm = static_cast<std::uint32_t>(k);
  }
  return result;
}

}  // namespace stratakv
