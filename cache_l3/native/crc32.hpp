// CRC-32 as of zlib, of headers: some hundred bytes, by a table of 256.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace stratakv::l3 {

constexpr std::array<std::uint32_t, 256> crc32_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t rest = i;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1U ? 0xEDB88320U : 0U);
    table[i] = rest;
  }
  return table;
}

inline std::uint32_t crc32(const void* data, std::size_t bytes) noexcept {
  static constexpr std::array<std::uint32_t, 256> kTable = crc32_table();
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const auto* at = static_cast<const std::uint8_t*>(data); bytes > 0; --bytes, ++at) crc = crc >> 8 ^ kTable[(crc ^ *at) & 0xFFU];
  return ~crc;
}

}  // namespace stratakv::l3
