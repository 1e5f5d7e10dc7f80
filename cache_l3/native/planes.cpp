// Planes: loops that compilers make vectors of, compiled once more for wider ones.
#include "planes.hpp"

#include <cstdint>
#include <cstring>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read from memory as they lie there");

namespace stratakv::l3 {
namespace {

template <typename Word>
STRATAKV_INLINE void split(const std::byte* numbers, std::size_t count, std::byte* out) noexcept {
  constexpr std::size_t kWidth = sizeof(Word);
  constexpr unsigned kBits = 8 * kWidth;
  auto* const planes = reinterpret_cast<std::uint8_t*>(out);
  for (std::size_t at = 0; at < count; ++at) {
    Word word;
    std::memcpy(&word, numbers + at * kWidth, kWidth);
    word = static_cast<Word>(word << 1 | word >> (kBits - 1));
    for (std::size_t place = 0; place < kWidth; ++place) planes[place * count + at] = static_cast<std::uint8_t>(word >> (8 * place));
  }
}

template <typename Word>
STRATAKV_INLINE void join(const std::byte* const* in, std::size_t count, std::byte* numbers) noexcept {
  constexpr std::size_t kWidth = sizeof(Word);
  constexpr unsigned kBits = 8 * kWidth;
  const std::uint8_t* planes[kWidth];
  for (std::size_t place = 0; place < kWidth; ++place) planes[place] = reinterpret_cast<const std::uint8_t*>(in[place]);
  for (std::size_t at = 0; at < count; ++at) {
    Word word = 0;
    for (std::size_t place = 0; place < kWidth; ++place) word = static_cast<Word>(word | static_cast<Word>(planes[place][at]) << (8 * place));
    word = static_cast<Word>(word >> 1 | word << (kBits - 1));
    std::memcpy(numbers + at * kWidth, &word, kWidth);
  }
}

STRATAKV_INLINE void split_any(const std::byte* numbers, std::size_t count, std::size_t width, std::byte* planes) noexcept {
  switch (width) {
    case 2: return split<std::uint16_t>(numbers, count, planes);
    case 4: return split<std::uint32_t>(numbers, count, planes);
    case 8: return split<std::uint64_t>(numbers, count, planes);
    default: std::memcpy(planes, numbers, count);  // a byte is its own plane
  }
}

STRATAKV_INLINE void join_any(const std::byte* const* planes, std::size_t count, std::size_t width, std::byte* numbers) noexcept {
  switch (width) {
    case 2: return join<std::uint16_t>(planes, count, numbers);
    case 4: return join<std::uint32_t>(planes, count, numbers);
    case 8: return join<std::uint64_t>(planes, count, numbers);
    default: std::memcpy(numbers, planes[0], count);
  }
}

#if defined(__x86_64__)
STRATAKV_WIDE void split_wide(const std::byte* numbers, std::size_t count, std::size_t width, std::byte* planes) noexcept {
  split_any(numbers, count, width, planes);
}
STRATAKV_WIDE void join_wide(const std::byte* const* planes, std::size_t count, std::size_t width, std::byte* numbers) noexcept {
  join_any(planes, count, width, numbers);
}
#endif

}  // namespace

void split_planes(const std::byte* numbers, std::size_t count, std::size_t width, std::byte* planes, Kernel kernel) noexcept {
  if (count == 0) return;  // memory of no bytes may be nowhere
#if defined(__x86_64__)
  if (kernel == Kernel::Best && has_wide_vectors()) return split_wide(numbers, count, width, planes);
#else
  static_cast<void>(kernel);
#endif
  split_any(numbers, count, width, planes);
}

void join_planes(const std::byte* const* planes, std::size_t count, std::size_t width, std::byte* numbers, Kernel kernel) noexcept {
  if (count == 0) return;
#if defined(__x86_64__)
  if (kernel == Kernel::Best && has_wide_vectors()) return join_wide(planes, count, width, numbers);
#else
  static_cast<void>(kernel);
#endif
  join_any(planes, count, width, numbers);
}

}  // namespace stratakv::l3
