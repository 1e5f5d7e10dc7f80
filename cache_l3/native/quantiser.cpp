// Quantiser: one pass over a page for the largest numbers of its scale groups, one for the codes and what they lose.
#include "quantiser.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read from memory as they lie there");

namespace stratakv::l3 {
namespace {

STRATAKV_INLINE std::uint32_t bits_of(float value) noexcept {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
STRATAKV_INLINE float float_of(std::uint32_t bits) noexcept {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// --- the numbers of a page: their bits without the sign order them by size, and what is not finite is above all others ---

struct Bf16 {
  using Bits = std::uint16_t;
  static constexpr Bits kMagnitude = 0x7FFF, kInfinite = 0x7F80;
  static constexpr std::uint32_t kLargest = 0x7F7F0000U;  // as a float
  STRATAKV_INLINE static float load(Bits bits) noexcept { return float_of(static_cast<std::uint32_t>(bits) << 16); }
  STRATAKV_INLINE static Bits store(float value) noexcept {
    const std::uint32_t bits = bits_of(value);
    return static_cast<Bits>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
  }
};

struct Fp16 {
  using Bits = std::uint16_t;
  static constexpr Bits kMagnitude = 0x7FFF, kInfinite = 0x7C00;
  static constexpr std::uint32_t kLargest = 0x477FE000U;  // 65504
  STRATAKV_INLINE static float load(Bits bits) noexcept {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const float magnitude = float_of(static_cast<std::uint32_t>(bits & 0x7FFFU) << 13) * float_of(0x77800000U);  // × 2^112
    return float_of(bits_of(magnitude) | sign);
  }
  STRATAKV_INLINE static Bits store(float value) noexcept {
    const std::uint32_t sign = bits_of(value) >> 16 & 0x8000U, bits = bits_of(value) & 0x7FFFFFFFU;
    // Below 2^-14 a half's step is 2^-24, as a float's is at 0.5: adding that rounds.
    const std::uint32_t small = bits_of(float_of(bits) + 0.5F) - 0x3F000000U;
    const std::uint32_t normal = (bits + 0xFFFU + (bits >> 13 & 1U) - (112U << 23)) >> 13;
    return static_cast<Bits>((bits < 113U << 23 ? small : normal) | sign);
  }
};

struct Fp32 {
  using Bits = std::uint32_t;
  static constexpr Bits kMagnitude = 0x7FFFFFFFU, kInfinite = 0x7F800000U;
  static constexpr std::uint32_t kLargest = 0x7F7FFFFFU;
  STRATAKV_INLINE static float load(Bits bits) noexcept { return float_of(bits); }
  STRATAKV_INLINE static Bits store(float value) noexcept { return bits_of(value); }
};

// --- the codes: what a scale is, and a number over its scale as one byte ---

struct Fp8 {
  using Scale = std::uint8_t;  // exponent + 127; 0 and 255 are none
  static constexpr int kLeast = -126, kMost = 120;
  // The least power of two by which the largest number comes to 448 at most.
  STRATAKV_INLINE static Scale scale_for(float largest) noexcept {
    const std::uint32_t bits = bits_of(largest);
    const int exponent = static_cast<int>(bits >> 23) - 127 - ((bits & 0x7FFFFFU) > 0x600000U ? 7 : 8);
    return static_cast<Scale>(std::min(std::max(exponent, kLeast), kMost) + 127);
  }
  STRATAKV_INLINE static bool is_scale(Scale scale) noexcept { return scale >= kLeast + 127 && scale <= kMost + 127; }
  STRATAKV_INLINE static float step(Scale scale) noexcept { return float_of(static_cast<std::uint32_t>(scale) << 23); }
  STRATAKV_INLINE static float per_step(Scale scale) noexcept { return float_of(static_cast<std::uint32_t>(254 - scale) << 23); }
  STRATAKV_INLINE static std::uint32_t code(float scaled) noexcept {
    const std::uint32_t sign = bits_of(scaled) >> 24 & 0x80U, bits = bits_of(scaled) & 0x7FFFFFFFU;
    // Below 2^-6 the step is 2^-9, as a float's is at 2^14: adding that rounds.
    const std::uint32_t small = bits_of(float_of(bits) + 16384.0F) - 0x46800000U;
    const std::uint32_t normal = (bits + 0x7FFFFU + (bits >> 20 & 1U) - (120U << 23)) >> 20;
    return (bits < 121U << 23 ? small : normal) | sign;
  }
  STRATAKV_INLINE static float number(std::uint32_t code) noexcept {
    const std::uint32_t magnitude = code & 0x7FU;
    const float small = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-9F;
    const std::uint32_t bits = magnitude < 8U ? bits_of(small) : (magnitude << 20) + (120U << 23);
    return float_of(bits | (code & 0x80U) << 24);
  }
  STRATAKV_INLINE static bool is_code(std::uint32_t code) noexcept { return (code & 0x7FU) != 0x7FU; }
};

struct Int8 {
  using Scale = std::uint16_t;  // a bf16, rounded up
  static constexpr std::uint32_t kLeast = 27U << 23;  // 2^-100: what is smaller than that is 0
  STRATAKV_INLINE static Scale scale_for(float largest) noexcept {
    const std::uint32_t bits = std::max(bits_of(largest / 127.0F), kLeast);
    return static_cast<Scale>((bits + 0xFFFFU) >> 16);
  }
  STRATAKV_INLINE static bool is_scale(Scale scale) noexcept { return scale >= kLeast >> 16 && scale < 0x7F80U; }
  STRATAKV_INLINE static float step(Scale scale) noexcept { return float_of(static_cast<std::uint32_t>(scale) << 16); }
  STRATAKV_INLINE static float per_step(Scale scale) noexcept { return 1.0F / step(scale); }
  STRATAKV_INLINE static std::uint32_t code(float scaled) noexcept {
    // A float's step at 1.5 × 2^23 is 1: adding that rounds to the nearest integer.
    const std::int32_t rounded = static_cast<std::int32_t>(bits_of(scaled + 12582912.0F)) - 0x4B400000;
    return static_cast<std::uint32_t>(std::min(std::max(rounded, -127), 127)) & 0xFFU;
  }
  STRATAKV_INLINE static float number(std::uint32_t code) noexcept {
    return static_cast<float>(static_cast<std::int32_t>(code << 24) >> 24);
  }
  STRATAKV_INLINE static bool is_code(std::uint32_t code) noexcept { return code != 0x80U; }
};

// A product of a code and its scale, as the page can hold it: rounding up may have passed the largest number.
template <typename N>
STRATAKV_INLINE typename N::Bits restored(float value) noexcept {
  constexpr std::uint32_t kSign = 0x80000000U;
  const std::uint32_t bits = bits_of(value);
  return N::store(float_of(std::min(bits & ~kSign, N::kLargest) | (bits & kSign)));
}

// --- one array: runs of numbers, cut into chunks on the stack, whose loops compilers make vectors of ---

constexpr std::size_t kChunk = 64;

struct Array {
  const ScaledArray& shape;
  std::byte* numbers;
  std::byte* codes;
  std::byte* scales;

  // Numbers that lie together under one scale, or under as many scales.
  std::size_t run() const { return shape.by_column ? shape.columns : shape.columns * shape.rows_a_scale; }
  std::size_t runs() const { return shape.numbers() / run(); }
  // Of a run, by its number: its scale, or its first.
  std::size_t scale_of(std::size_t run_at) const { return shape.by_column ? shape.scale_of(run_at) : run_at; }
};

// Steps of a chunk's numbers, from those of scales that begin with the run's.
STRATAKV_INLINE void spread(const float* of_run, bool by_column, std::size_t at, std::size_t count, float* steps) noexcept {
  if (by_column) {
    std::memcpy(steps, of_run + at, count * sizeof(float));
  } else {
    std::fill_n(steps, kChunk, *of_run);
  }
}

// Bits of the largest magnitude that each scale has to cover; returns those of all, which may not be finite.
template <typename N>
STRATAKV_INLINE typename N::Bits find_largest(const Array& array, typename N::Bits* largest) noexcept {
  using Bits = typename N::Bits;
  const std::size_t run = array.run();
  std::fill_n(largest, array.shape.scales(), Bits{0});
  for (std::size_t run_at = 0; run_at < array.runs(); ++run_at) {
    Bits* const found = largest + array.scale_of(run_at);
    Bits most[kChunk] = {};
    for (std::size_t at = 0; at < run; at += kChunk) {
      const std::size_t count = std::min(kChunk, run - at);
      Bits chunk[kChunk] = {};
      std::memcpy(chunk, array.numbers + (run_at * run + at) * sizeof(Bits), count * sizeof(Bits));
      if (array.shape.by_column) std::memcpy(most, found + at, count * sizeof(Bits));
      for (std::size_t i = 0; i < kChunk; ++i) most[i] = std::max(most[i], static_cast<Bits>(chunk[i] & N::kMagnitude));
      if (array.shape.by_column) std::memcpy(found + at, most, count * sizeof(Bits));
    }
    if (!array.shape.by_column) *found = *std::max_element(most, most + kChunk);
  }
  return *std::max_element(largest, largest + array.shape.scales());
}

struct Sums {
  float unit = 1;  // a power of two by which the largest number comes to about 1, so that no sum leaves a float's range
  float numbers[kChunk] = {};  // of magnitudes ÷ unit
  float errors[kChunk] = {};
};

// The power of two at or below a magnitude, if its inverse is one that a float has too.
STRATAKV_INLINE float unit_of(float largest) noexcept {
  return float_of(std::min(std::max(bits_of(largest) >> 23, 1U), 253U) << 23);
}

template <typename N, typename C>
STRATAKV_INLINE void encode_runs(const Array& array, const float* steps, const float* per_steps, Sums& sums) noexcept {
  using Bits = typename N::Bits;
  const std::size_t run = array.run();
  const bool by_column = array.shape.by_column;
  const float per_unit = 1 / sums.unit;
  for (std::size_t run_at = 0; run_at < array.runs(); ++run_at) {
    const std::size_t first = array.scale_of(run_at);
    for (std::size_t at = 0; at < run; at += kChunk) {
      const std::size_t place = run_at * run + at, count = std::min(kChunk, run - at);
      Bits chunk[kChunk] = {};
      float numbers[kChunk], restored_numbers[kChunk], step[kChunk] = {}, per_step[kChunk] = {};
      std::uint32_t codes[kChunk];
      std::uint8_t out[kChunk];
      std::memcpy(chunk, array.numbers + place * sizeof(Bits), count * sizeof(Bits));
      spread(steps + first, by_column, at, count, step);
      spread(per_steps + first, by_column, at, count, per_step);
      for (std::size_t i = 0; i < kChunk; ++i) numbers[i] = N::load(chunk[i]);
      for (std::size_t i = 0; i < kChunk; ++i) codes[i] = C::code(numbers[i] * per_step[i]);
      for (std::size_t i = 0; i < kChunk; ++i) restored_numbers[i] = N::load(restored<N>(C::number(codes[i]) * step[i]));
      for (std::size_t i = 0; i < kChunk; ++i) sums.numbers[i] += float_of(bits_of(numbers[i] * per_unit) & 0x7FFFFFFFU);
      for (std::size_t i = 0; i < kChunk; ++i) sums.errors[i] += float_of(bits_of((numbers[i] - restored_numbers[i]) * per_unit) & 0x7FFFFFFFU);
      for (std::size_t i = 0; i < kChunk; ++i) out[i] = static_cast<std::uint8_t>(codes[i]);
      std::memcpy(array.codes + place, out, count);
    }
  }
}

// False: a code that is none.
template <typename N, typename C>
STRATAKV_INLINE bool decode_runs(const Array& array, const float* steps) noexcept {
  using Bits = typename N::Bits;
  const std::size_t run = array.run();
  std::uint32_t wrong[kChunk] = {};
  for (std::size_t run_at = 0; run_at < array.runs(); ++run_at) {
    const std::size_t first = array.scale_of(run_at);
    for (std::size_t at = 0; at < run; at += kChunk) {
      const std::size_t place = run_at * run + at, count = std::min(kChunk, run - at);
      std::uint8_t in[kChunk] = {};
      std::uint32_t codes[kChunk];
      float step[kChunk] = {};
      Bits chunk[kChunk];
      std::memcpy(in, array.codes + place, count);
      spread(steps + first, array.shape.by_column, at, count, step);
      for (std::size_t i = 0; i < kChunk; ++i) codes[i] = in[i];
      for (std::size_t i = 0; i < kChunk; ++i) wrong[i] |= static_cast<std::uint32_t>(!C::is_code(codes[i]));
      for (std::size_t i = 0; i < kChunk; ++i) chunk[i] = restored<N>(C::number(codes[i]) * step[i]);
      std::memcpy(array.numbers + place * sizeof(Bits), chunk, count * sizeof(Bits));
    }
  }
  return *std::max_element(wrong, wrong + kChunk) == 0;
}

// --- what is called, by kind of number and code, and by what the processor can do ---

struct Scratch {
  std::vector<std::uint16_t> largest_16;
  std::vector<std::uint32_t> largest_32;
  std::vector<float> steps, per_steps;
  Sums sums;
};

// Writes scales and codes of an array; false, and nothing written: something is not finite.
template <typename N, typename C>
STRATAKV_INLINE bool encode_array(const Array& array, Scratch& scratch) noexcept {
  using Bits = typename N::Bits;
  Bits* largest;
  if constexpr (sizeof(Bits) == sizeof(std::uint16_t)) {
    largest = scratch.largest_16.data();
  } else {
    largest = scratch.largest_32.data();
  }
  const Bits most = find_largest<N>(array, largest);
  if (most >= N::kInfinite) return false;
  for (std::size_t at = 0; at < array.shape.scales(); ++at) {
    const typename C::Scale scale = C::scale_for(N::load(largest[at]));
    std::memcpy(array.scales + at * sizeof(scale), &scale, sizeof(scale));
    scratch.steps[at] = C::step(scale);
    scratch.per_steps[at] = C::per_step(scale);
  }
  scratch.sums = Sums();
  scratch.sums.unit = unit_of(N::load(most));
  encode_runs<N, C>(array, scratch.steps.data(), scratch.per_steps.data(), scratch.sums);
  return true;
}

template <typename N, typename C>
STRATAKV_INLINE bool decode_array(const Array& array, Scratch& scratch) noexcept {
  for (std::size_t at = 0; at < array.shape.scales(); ++at) {
    typename C::Scale scale;
    std::memcpy(&scale, array.scales + at * sizeof(scale), sizeof(scale));
    if (!C::is_scale(scale)) return false;
    scratch.steps[at] = C::step(scale);
  }
  return decode_runs<N, C>(array, scratch.steps.data());
}

using WorkOnArray = bool (*)(const Array&, Scratch&);

template <typename N, typename C>
bool encode_plain(const Array& array, Scratch& scratch) { return encode_array<N, C>(array, scratch); }
template <typename N, typename C>
bool decode_plain(const Array& array, Scratch& scratch) { return decode_array<N, C>(array, scratch); }
#if defined(__x86_64__)
template <typename N, typename C>
STRATAKV_WIDE bool encode_wide(const Array& array, Scratch& scratch) { return encode_array<N, C>(array, scratch); }
template <typename N, typename C>
STRATAKV_WIDE bool decode_wide(const Array& array, Scratch& scratch) { return decode_array<N, C>(array, scratch); }
#endif

template <typename N, typename C>
WorkOnArray choose(bool encodes, Kernel kernel) {
#if defined(__x86_64__)
  if (kernel == Kernel::Best && has_wide_vectors()) return encodes ? encode_wide<N, C> : decode_wide<N, C>;
#else
  static_cast<void>(kernel);
#endif
  return encodes ? encode_plain<N, C> : decode_plain<N, C>;
}

template <typename C>
WorkOnArray choose(Number number, bool encodes, Kernel kernel) {
  switch (number) {
    case Number::Bf16: return choose<Bf16, C>(encodes, kernel);
    case Number::Fp16: return choose<Fp16, C>(encodes, kernel);
    case Number::Fp32: return choose<Fp32, C>(encodes, kernel);
  }
  throw std::invalid_argument("no such kind of number");
}

WorkOnArray choose(Code code, Number number, bool encodes, Kernel kernel) {
  return code == Code::Fp8E4m3 ? choose<Fp8>(number, encodes, kernel) : choose<Int8>(number, encodes, kernel);
}

double sum(const float (&parts)[kChunk]) {
  double total = 0;
  for (const float part : parts) total += static_cast<double>(part);
  return total;
}

}  // namespace

Quantiser::Quantiser(Code code, Number number, std::size_t page_bytes, std::vector<ScaledArray> arrays, Kernel kernel)
    : code_(code), number_(number), kernel_(kernel), page_bytes_(page_bytes), arrays_(std::move(arrays)) {
  std::size_t end = 0;
  for (const ScaledArray& array : arrays_) {
    if (array.rows == 0 || array.columns == 0 || array.rows > page_bytes_ || array.columns > page_bytes_ / array.rows) {
      throw std::invalid_argument("an array has rows and columns, and fits its page");
    }
    if (array.rows_a_scale == 0 || array.rows % array.rows_a_scale != 0) throw std::invalid_argument("scales are of equally many rows");
    const std::size_t bytes = array.numbers() * number_bytes(number_);
    if (array.offset < end || array.offset > page_bytes_ || bytes > page_bytes_ - array.offset) {
      throw std::invalid_argument("arrays lie in the page one behind another");
    }
    end = array.offset + bytes;
    codes_ += array.numbers();
    scales_ += array.scales();
    scales_max_ = std::max(scales_max_, array.scales());
  }
}

template <typename Move>
void Quantiser::each_gap(const Move& move) const {
  std::size_t end = 0;
  for (const ScaledArray& array : arrays_) {
    if (array.offset > end) move(end, array.offset - end);
    end = array.offset + array.numbers() * number_bytes(number_);
  }
  if (page_bytes_ > end) move(end, page_bytes_ - end);
}

Encoded Quantiser::encode(const std::byte* page, std::byte* scales, std::byte* codes, std::byte* rest) const {
  const WorkOnArray work = choose(code_, number_, true, kernel_);
  const std::size_t wide = number_bytes(number_) == 4 ? scales_max_ : 0;
  Scratch scratch{std::vector<std::uint16_t>(scales_max_ - wide), std::vector<std::uint32_t>(wide), std::vector<float>(scales_max_),
                  std::vector<float>(scales_max_), Sums()};
  Encoded result;
  double numbers = 0, errors = 0;
  for (const ScaledArray& array : arrays_) {
    if (!work({array, const_cast<std::byte*>(page) + array.offset, codes, scales}, scratch)) return {};  // it reads the page alone
    codes += array.numbers();
    scales += array.scales() * scale_bytes(code_);
    const double unit = static_cast<double>(scratch.sums.unit);
    const double of_array = sum(scratch.sums.numbers) * unit, lost = sum(scratch.sums.errors) * unit;
    if (of_array > 0) result.worst_error = std::max(result.worst_error, lost / of_array);
    numbers += of_array;
    errors += lost;
  }
  each_gap([&](std::size_t from, std::size_t bytes) { std::memcpy(rest, page + from, bytes), rest += bytes; });
  result.is_finite = true;
  result.mean_error = numbers > 0 ? errors / numbers : 0;
  return result;
}

bool Quantiser::decode(const std::byte* scales, const std::byte* codes, const std::byte* rest, std::byte* page) const {
  const WorkOnArray work = choose(code_, number_, false, kernel_);
  Scratch scratch{{}, {}, std::vector<float>(scales_max_), {}, Sums()};
  for (const ScaledArray& array : arrays_) {
    // It reads codes and scales alone.
    if (!work({array, page + array.offset, const_cast<std::byte*>(codes), const_cast<std::byte*>(scales)}, scratch)) return false;
    codes += array.numbers();
    scales += array.scales() * scale_bytes(code_);
  }
  each_gap([&](std::size_t to, std::size_t bytes) { std::memcpy(page + to, rest, bytes), rest += bytes; });
  return true;
}

}  // namespace stratakv::l3
