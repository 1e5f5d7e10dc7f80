// Stress of L3's codecs: pages of any shape and any bytes, and stored bytes that nobody wrote.
//
// Each piece of memory has exactly the bytes that it needs, at an address that no vector would choose, so that AddressSanitizer
// sees a step beside it. What a page comes back as is checked against the declared bound by plain arithmetic.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "planes.hpp"
#include "quantiser.hpp"

namespace {

using namespace stratakv::l3;

[[noreturn]] void fail(const std::string& why, std::uint64_t seed) {
  std::fprintf(stderr, "FAILED with seed %llu: %s\n", static_cast<unsigned long long>(seed), why.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

// Bytes that end where their allocation ends, and begin `skew` bytes behind an aligned address.
class Bytes {
 public:
  Bytes(std::size_t size, std::size_t skew) : skew_(skew), all_(size + skew) {}
  std::byte* data() { return all_.data() + skew_; }
  std::size_t size() const { return all_.size() - skew_; }
  bool operator==(const Bytes& other) const { return std::equal(all_.begin() + at(), all_.end(), other.all_.begin() + other.at(), other.all_.end()); }

 private:
  std::ptrdiff_t at() const { return static_cast<std::ptrdiff_t>(skew_); }
  std::size_t skew_;
  std::vector<std::byte> all_;
};

double value_of(const std::byte* at, Number number) {
  if (number == Number::Fp32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return static_cast<double>(value);
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  if (number == Number::Bf16) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return static_cast<double>(value);
  }
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double sign = bits >> 15 != 0 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

class Round {
 public:
  explicit Round(std::uint64_t seed) : seed_(seed), draw_(seed) {}

  void run() {
    planes();
    lossy();
  }

 private:
  std::uint64_t below(std::uint64_t end) { return draw_() % end; }
  Bytes room(std::size_t size) { return Bytes(size, below(8)); }
  Bytes noise(std::size_t size) {
    Bytes made = room(size);
    for (std::size_t at = 0; at < size; ++at) made.data()[at] = static_cast<std::byte>(draw_());
    return made;
  }

  void planes() {
    const std::size_t width = std::size_t{1} << below(4), count = below(4) == 0 ? below(3) : below(700);
    Bytes numbers = noise(count * width), split = room(count * width), plain = room(count * width), joined = room(count * width);
    split_planes(numbers.data(), count, width, split.data());
    split_planes(numbers.data(), count, width, plain.data(), Kernel::Plain);
    if (!(split == plain)) fail("kernels split numbers differently", seed_);
    std::vector<Bytes> apart;
    std::vector<const std::byte*> places;
    for (std::size_t place = 0; place < width; ++place) {
      apart.push_back(room(count));
      if (count != 0) std::memcpy(apart.back().data(), split.data() + place * count, count);
    }
    for (Bytes& one : apart) places.push_back(one.data());
    for (const Kernel kernel : {Kernel::Best, Kernel::Plain}) {
      join_planes(places.data(), count, width, joined.data(), kernel);
      if (!(joined == numbers)) fail("planes came back as other numbers", seed_);
    }
  }

  std::vector<ScaledArray> shapes(std::size_t number_bytes, std::size_t& page_bytes) {
    std::vector<ScaledArray> made;
    std::size_t end = 0;
    for (std::uint64_t left = below(4); left > 0; --left) {
      ScaledArray one;
      one.offset = end + (below(2) == 0 ? 0 : below(40));
      one.rows_a_scale = 1 + below(5);
      one.rows = one.rows_a_scale * (1 + below(6));
      one.columns = 1 + below(below(2) == 0 ? 4 : 150);
      one.by_column = below(2) == 0;
      end = one.offset + one.numbers() * number_bytes;
      made.push_back(one);
    }
    page_bytes = end + (below(2) == 0 ? 0 : below(40));
    return made;
  }

  // Numbers of KV's kind, of the ends of the range, or any bits at all.
  Bytes page_of(std::size_t bytes, Number number) {
    Bytes page = noise(bytes);
    const std::uint64_t kind = below(4);
    const std::size_t step = number_bytes(number);
    if (kind == 0) return page;
    for (std::size_t at = 0; at + step <= bytes; at += step) {
      std::byte& high = page.data()[at + step - 1];
      if (kind == 1) high = (high & std::byte{0x83}) | std::byte{0x3C};  // near 1
      if (kind == 2) high &= std::byte{0x80};  // next to nothing
      if (kind == 3) high = below(9) == 0 ? high & std::byte{0xFB} : high & std::byte{0xBB};  // some far above others
    }
    return page;
  }

  void lossy() {
    const Code code = below(2) == 0 ? Code::Fp8E4m3 : Code::Int8;
    const auto number = static_cast<Number>(below(3));
    std::size_t page_bytes = 0;
    const std::vector<ScaledArray> arrays = shapes(number_bytes(number), page_bytes);
    const Quantiser best(code, number, page_bytes, arrays), plain(code, number, page_bytes, arrays, Kernel::Plain);
    Bytes page = page_of(page_bytes, number);
    Bytes scales = room(best.scales_bytes()), codes = room(best.codes_bytes()), rest = room(best.rest_bytes()), back = room(page_bytes);
    const Encoded told = best.encode(page.data(), scales.data(), codes.data(), rest.data());
    if (told.is_finite != all_finite(page, number, arrays)) fail("what is finite was seen otherwise", seed_);
    Bytes scales_plain = room(scales.size()), codes_plain = room(codes.size()), rest_plain = room(rest.size());
    const Encoded other = plain.encode(page.data(), scales_plain.data(), codes_plain.data(), rest_plain.data());
    if (told.is_finite != other.is_finite || told.worst_error != other.worst_error || told.mean_error != other.mean_error) fail("kernels told different errors", seed_);
    if (told.is_finite) {
      if (!(scales == scales_plain) || !(codes == codes_plain) || !(rest == rest_plain)) fail("kernels encoded differently", seed_);
      if (!best.decode(scales.data(), codes.data(), rest.data(), back.data())) fail("its own page is none to it", seed_);
      check(page, back, told, number, arrays);
    }
    damaged(best, plain, number, arrays, scales, codes, rest);
  }

  static bool all_finite(Bytes& page, Number number, const std::vector<ScaledArray>& arrays) {
    for (const ScaledArray& one : arrays) {
      for (std::size_t at = 0; at < one.numbers(); ++at) {
        if (!std::isfinite(value_of(page.data() + one.offset + at * number_bytes(number), number))) return false;
      }
    }
    return true;
  }

  void check(Bytes& page, Bytes& back, const Encoded& told, Number number, const std::vector<ScaledArray>& arrays) const {
    std::size_t end = 0;
    double worst = 0;
    const auto same = [&](std::size_t from, std::size_t to) {
      if (!std::equal(page.data() + from, page.data() + to, back.data() + from)) fail("what is no number has changed", seed_);
    };
    for (const ScaledArray& one : arrays) {
      same(end, one.offset);
      end = one.offset + one.numbers() * number_bytes(number);
      double numbers = 0, errors = 0;
      for (std::size_t at = one.offset; at < end; at += number_bytes(number)) {
        const double before = value_of(page.data() + at, number), after = value_of(back.data() + at, number);
        if (!std::isfinite(after)) fail("a number came back that is none", seed_);
        numbers += std::fabs(before), errors += std::fabs(before - after);
      }
      if (numbers > 0) worst = std::max(worst, errors / numbers);
    }
    same(end, page.size());
    if (std::fabs(worst - told.worst_error) > 1e-3 * worst + 1e-6) fail("the error told is not the error made", seed_);
  }

  // Bytes that no encoder wrote: decoded to the same, or refused by both; nothing but the page is written, and it is finite.
  void damaged(const Quantiser& best, const Quantiser& plain, Number number, const std::vector<ScaledArray>& arrays, Bytes& scales, Bytes& codes, Bytes& rest) {
    Bytes wild_scales = below(2) == 0 ? noise(scales.size()) : scales, wild_codes = below(2) == 0 ? noise(codes.size()) : codes;
    for (Bytes* one : {&wild_scales, &wild_codes}) {
      if (one->size() != 0 && below(2) == 0) one->data()[below(one->size())] ^= static_cast<std::byte>(1 << below(8));
    }
    Bytes first = room(best.page_bytes()), second = room(best.page_bytes());
    const bool is_page = best.decode(wild_scales.data(), wild_codes.data(), rest.data(), first.data());
    if (is_page != plain.decode(wild_scales.data(), wild_codes.data(), rest.data(), second.data())) fail("kernels judge stored bytes differently", seed_);
    if (!is_page) return;
    if (!(first == second)) fail("kernels decoded differently", seed_);
    if (!all_finite(first, number, arrays)) fail("stored bytes became a number that is none", seed_);
  }

  std::uint64_t seed_;
  std::mt19937_64 draw_;
};

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::uint64_t rounds = 0;
  do {
    Round(seed).run();
    ++seed;
    ++rounds;
  } while (std::chrono::steady_clock::now() < end);
  std::printf("codecs: %llu pages, the last of seed %llu\n", static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(seed - 1));
}
