// XXH3-64: short inputs by their length, long ones in stripes, by what the processor can do.
#include "xxh3.hpp"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read from memory as they lie there");

namespace stratakv::l3 {
namespace {

constexpr std::uint64_t kPrime32_1 = 0x9E3779B1U;
constexpr std::uint64_t kPrime32_2 = 0x85EBCA77U;
constexpr std::uint64_t kPrime32_3 = 0xC2B2AE3DU;
constexpr std::uint64_t kPrime64_1 = 0x9E3779B185EBCA87ULL;
constexpr std::uint64_t kPrime64_2 = 0xC2B2AE3D27D4EB4FULL;
constexpr std::uint64_t kPrime64_3 = 0x165667B19E3779F9ULL;
constexpr std::uint64_t kPrime64_4 = 0x85EBCA77C2B2AE63ULL;
constexpr std::uint64_t kPrime64_5 = 0x27D4EB2F165667C5ULL;
constexpr std::uint64_t kPrimeMix_1 = 0x165667919E3779F9ULL;
constexpr std::uint64_t kPrimeMix_2 = 0x9FB21C651E98DF25ULL;

constexpr std::size_t kStripeBytes = 64;
constexpr std::size_t kStripesPerBlock = 16;
constexpr std::size_t kShortBytesMax = 240;
constexpr std::size_t kSecretBytes = 192;

// The published default secret.
alignas(64) constexpr std::uint8_t kSecret[kSecretBytes] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9,
    0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78,
    0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f,
    0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff,
    0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

template <typename Number>
Number read(const void* at) noexcept {
  Number number;
  std::memcpy(&number, at, sizeof(number));
  return number;
}

std::uint64_t secret64(std::size_t at) noexcept { return read<std::uint64_t>(kSecret + at); }
std::uint64_t secret32(std::size_t at) noexcept { return read<std::uint32_t>(kSecret + at); }
std::uint64_t rotate_left(std::uint64_t x, int bits) noexcept { return x << bits | x >> (64 - bits); }

std::uint64_t fold_product(std::uint64_t a, std::uint64_t b) noexcept {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t avalanche(std::uint64_t h) noexcept {
  h ^= h >> 37;
  h *= kPrimeMix_1;
  return h ^ h >> 32;
}

std::uint64_t avalanche_of_xxh64(std::uint64_t h) noexcept {
  h ^= h >> 33;
  h *= kPrime64_2;
  h ^= h >> 29;
  h *= kPrime64_3;
  return h ^ h >> 32;
}

std::uint64_t hash_to_3(const std::byte* in, std::size_t bytes) noexcept {
  if (bytes == 0) return avalanche_of_xxh64(secret64(56) ^ secret64(64));
  const auto first = static_cast<std::uint64_t>(in[0]);
  const auto middle = static_cast<std::uint64_t>(in[bytes >> 1]);
  const auto last = static_cast<std::uint64_t>(in[bytes - 1]);
  const std::uint64_t combined = first << 16 | middle << 24 | last | bytes << 8;
  return avalanche_of_xxh64(combined ^ secret32(0) ^ secret32(4));
}

std::uint64_t hash_4_to_8(const std::byte* in, std::size_t bytes) noexcept {
  const std::uint64_t first = read<std::uint32_t>(in);
  const std::uint64_t last = read<std::uint32_t>(in + bytes - 4);
  std::uint64_t h = (last + (first << 32)) ^ secret64(8) ^ secret64(16);
  h ^= rotate_left(h, 49) ^ rotate_left(h, 24);
  h *= kPrimeMix_2;
  h ^= (h >> 35) + bytes;
  h *= kPrimeMix_2;
  return h ^ h >> 28;
}

std::uint64_t hash_9_to_16(const std::byte* in, std::size_t bytes) noexcept {
  const std::uint64_t low = read<std::uint64_t>(in) ^ secret64(24) ^ secret64(32);
  const std::uint64_t high = read<std::uint64_t>(in + bytes - 8) ^ secret64(40) ^ secret64(48);
  return avalanche(bytes + __builtin_bswap64(low) + high + fold_product(low, high));
}

std::uint64_t mix_16(const std::byte* in, std::size_t secret_at) noexcept {
  return fold_product(read<std::uint64_t>(in) ^ secret64(secret_at), read<std::uint64_t>(in + 8) ^ secret64(secret_at + 8));
}

// From both ends towards the middle, 16 bytes at a time.
std::uint64_t hash_17_to_128(const std::byte* in, std::size_t bytes) noexcept {
  std::uint64_t h = bytes * kPrime64_1;
  for (std::size_t pair = (bytes - 1) / 32 + 1; pair-- > 0;) {
    h += mix_16(in + 16 * pair, 32 * pair);
    h += mix_16(in + bytes - 16 * (pair + 1), 32 * pair + 16);
  }
  return avalanche(h);
}

std::uint64_t hash_129_to_240(const std::byte* in, std::size_t bytes) noexcept {
  std::uint64_t h = bytes * kPrime64_1;
  for (std::size_t i = 0; i < 8; ++i) h += mix_16(in + 16 * i, 16 * i);
  h = avalanche(h);
  for (std::size_t i = 8; i < bytes / 16; ++i) h += mix_16(in + 16 * i, 16 * (i - 8) + 3);
  return avalanche(h + mix_16(in + bytes - 16, 136 - 17));
}

std::uint64_t hash_short(const std::byte* in, std::size_t bytes) noexcept {
  if (bytes <= 3) return hash_to_3(in, bytes);
  if (bytes <= 8) return hash_4_to_8(in, bytes);
  if (bytes <= 16) return hash_9_to_16(in, bytes);
  if (bytes <= 128) return hash_17_to_128(in, bytes);
  return hash_129_to_240(in, bytes);
}

void take_one(std::uint64_t* lanes, const std::byte* stripe, std::size_t secret_at) noexcept {
  for (std::size_t i = 0; i < 8; ++i) {
    const auto word = read<std::uint64_t>(stripe + 8 * i);
    const std::uint64_t keyed = word ^ secret64(secret_at + 8 * i);
    lanes[i ^ 1] += word;
    lanes[i] += (keyed & 0xFFFFFFFFU) * (keyed >> 32);
  }
}

void scramble(std::uint64_t* lanes) noexcept {
  for (std::size_t i = 0; i < 8; ++i) {
    lanes[i] ^= lanes[i] >> 47;
    lanes[i] ^= secret64(kSecretBytes - kStripeBytes + 8 * i);
    lanes[i] *= kPrime32_1;
  }
}

void take_portable(std::uint64_t* lanes, const std::byte* data, std::size_t first, std::size_t stripes) {
  for (std::size_t i = 0, in_block = first; i < stripes; ++i) {
    take_one(lanes, data + kStripeBytes * i, 8 * in_block);
    if (++in_block < kStripesPerBlock) continue;
    scramble(lanes);
    in_block = 0;
  }
}

#if defined(__x86_64__)

// gcc's headers give the unwritten part of a wide register a value of itself, which it then warns of.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

__attribute__((target("avx2"))) inline __m256i load_256(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }

__attribute__((target("avx2"))) inline __m256i taken_256(__m256i lanes, __m256i words, __m256i secret) {
  const __m256i keyed = _mm256_xor_si256(words, secret);
  const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
  return _mm256_add_epi64(lanes, _mm256_add_epi64(product, _mm256_shuffle_epi32(words, 0x4E)));
}

__attribute__((target("avx2"))) inline __m256i scrambled_256(__m256i lanes, __m256i secret) {
  const __m256i mixed = _mm256_xor_si256(_mm256_xor_si256(lanes, _mm256_srli_epi64(lanes, 47)), secret);
  const __m256i prime = _mm256_set1_epi64x(static_cast<long long>(kPrime32_1));
  const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
  return _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64(high, 32));
}

__attribute__((target("avx2"))) void take_avx2(std::uint64_t* lanes, const std::byte* data, std::size_t first, std::size_t stripes) {
  __m256i low = load_256(lanes);
  __m256i high = load_256(lanes + 4);
  for (std::size_t in_block = first; stripes > 0; --stripes, data += kStripeBytes) {
    low = taken_256(low, load_256(data), load_256(kSecret + 8 * in_block));
    high = taken_256(high, load_256(data + 32), load_256(kSecret + 8 * in_block + 32));
    if (++in_block < kStripesPerBlock) continue;
    low = scrambled_256(low, load_256(kSecret + kSecretBytes - 64));
    high = scrambled_256(high, load_256(kSecret + kSecretBytes - 32));
    in_block = 0;
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes + 4), high);
}

__attribute__((target("avx512f"))) void take_avx512(std::uint64_t* lanes, const std::byte* data, std::size_t first, std::size_t stripes) {
  const __m512i prime = _mm512_set1_epi64(static_cast<long long>(kPrime32_1));
  const __m512i last_secret = _mm512_loadu_si512(kSecret + kSecretBytes - kStripeBytes);
  __m512i sum = _mm512_loadu_si512(lanes);
  for (std::size_t in_block = first; stripes > 0; --stripes, data += kStripeBytes) {
    const __m512i words = _mm512_loadu_si512(data);
    const __m512i keyed = _mm512_xor_si512(words, _mm512_loadu_si512(kSecret + 8 * in_block));
    const __m512i product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
    sum = _mm512_add_epi64(sum, _mm512_add_epi64(product, _mm512_shuffle_epi32(words, _MM_PERM_BADC)));
    if (++in_block < kStripesPerBlock) continue;
    const __m512i mixed = _mm512_xor_si512(_mm512_xor_si512(sum, _mm512_srli_epi64(sum, 47)), last_secret);
    const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), prime);
    sum = _mm512_add_epi64(_mm512_mul_epu32(mixed, prime), _mm512_slli_epi64(high, 32));
    in_block = 0;
  }
  _mm512_storeu_si512(lanes, sum);
}

#pragma GCC diagnostic pop

#endif

std::vector<Xxh3Kernel> supported_kernels() {
  std::vector<Xxh3Kernel> kernels;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) kernels.push_back({"avx512", take_avx512});
  if (__builtin_cpu_supports("avx2")) kernels.push_back({"avx2", take_avx2});
#endif
  kernels.push_back({"portable", take_portable});
  return kernels;
}

}  // namespace

const std::vector<Xxh3Kernel>& xxh3_kernels() {
  static const auto* const kernels = new std::vector<Xxh3Kernel>(supported_kernels());  // never destroyed: a thread may outlive exit()
  return *kernels;
}

RunningXxh3::RunningXxh3(const std::byte* data, std::size_t bytes, std::size_t kernel)
    : data_(data),
      bytes_(bytes),
      take_(xxh3_kernels().at(kernel).take),
      lanes_{kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3, kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1} {}

void RunningXxh3::advance(std::size_t arrived) noexcept {
  if (bytes_ <= kShortBytesMax) return;
  const std::size_t stripes = std::min(std::min(arrived, bytes_) / kStripeBytes, (bytes_ - 1) / kStripeBytes);
  if (stripes <= taken_stripes_) return;
  take_(lanes_, data_ + kStripeBytes * taken_stripes_, taken_stripes_ % kStripesPerBlock, stripes - taken_stripes_);
  taken_stripes_ = stripes;
}

std::uint64_t RunningXxh3::finish() noexcept {
  if (bytes_ <= kShortBytesMax) return hash_short(data_, bytes_);
  advance(bytes_);
  take_one(lanes_, data_ + bytes_ - kStripeBytes, kSecretBytes - kStripeBytes - 7);
  std::uint64_t h = bytes_ * kPrime64_1;
  for (std::size_t i = 0; i < 8; i += 2) h += fold_product(lanes_[i] ^ secret64(11 + 8 * i), lanes_[i + 1] ^ secret64(19 + 8 * i));
  return avalanche(h);
}

std::uint64_t xxh3_64(const std::byte* data, std::size_t bytes) noexcept { return RunningXxh3(data, bytes).finish(); }

}  // namespace stratakv::l3
