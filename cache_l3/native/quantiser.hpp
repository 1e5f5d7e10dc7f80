// Pages of 16- or 32-bit numbers as one byte each, with scales: fp8 (e4m3) or int8. All loops are pure, and without Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace stratakv::l3 {

enum class Code : std::uint8_t { Fp8E4m3 = 0, Int8 = 1 };
enum class Number : std::uint8_t { Bf16 = 0, Fp16 = 1, Fp32 = 2 };

constexpr std::size_t number_bytes(Number number) { return number == Number::Fp32 ? 4 : 2; }
// fp8: an exponent, so that scaling changes no digit. int8: a bf16.
constexpr std::size_t scale_bytes(Code code) { return code == Code::Fp8E4m3 ? 1 : 2; }

// Numbers of a page, row by row. Every `rows_a_scale` rows share a scale, or one for each column.
struct ScaledArray {
  std::size_t offset = 0;  // bytes from the page's start
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t rows_a_scale = 1;
  bool by_column = false;

  std::size_t numbers() const { return rows * columns; }
  std::size_t scales() const { return rows / rows_a_scale * (by_column ? columns : 1); }
  // Number of the scale of a row; with `by_column`, of its first.
  std::size_t scale_of(std::size_t row) const { return row / rows_a_scale * (by_column ? columns : 1); }
};

// What encoding a page came to. Errors are Σ|x − x'| ÷ Σ|x|.
struct Encoded {
  bool is_finite = false;  // false: nothing else was written
  double worst_error = 0;  // of the array where it is largest
  double mean_error = 0;   // of the page
};

class Quantiser {
 public:
  // Throws std::invalid_argument unless the arrays lie in the page in order, apart from each other.
  Quantiser(Code code, Number number, std::size_t page_bytes, std::vector<ScaledArray> arrays, Kernel kernel = Kernel::Best);

  std::size_t page_bytes() const { return page_bytes_; }
  std::size_t scales_bytes() const { return scales_ * scale_bytes(code_); }
  std::size_t codes_bytes() const { return codes_; }
  // What belongs to no array: kept as it is.
  std::size_t rest_bytes() const { return page_bytes_ - codes_ * number_bytes(number_); }

  Encoded encode(const std::byte* page, std::byte* scales, std::byte* codes, std::byte* rest) const;
  // False: scales or codes that `encode` never writes; the page's bytes are unspecified then.
  bool decode(const std::byte* scales, const std::byte* codes, const std::byte* rest, std::byte* page) const;

 private:
  template <typename Move>
  void each_gap(const Move& move) const;

  Code code_;
  Number number_;
  Kernel kernel_;
  std::size_t page_bytes_;
  std::vector<ScaledArray> arrays_;
  std::size_t scales_ = 0;
  std::size_t codes_ = 0;
  std::size_t scales_max_ = 0;
};

}  // namespace stratakv::l3
