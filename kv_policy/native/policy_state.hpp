// What the policy has learned as one block of bytes, for a restart: tables, ghosts, the guard's account; not what is resident.
//
// Little-endian: magic, version, length of all; counts; the tables, a row a cell; ghosts with their ages, so that another clock
// may go on; a checksum. A block is taken as a whole or not at all.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "prefix_policy.hpp"

namespace stratakv {

class PolicyState {
 public:
  static constexpr std::uint64_t kGhostsMost = 1 << 18;
  static constexpr std::uint64_t kBytesMost = 4 << 20;  // no block is larger

  static std::string exported(const PrefixPolicy& policy) {
    std::string bytes;
    const Ghosts& ghosts = policy.ghosts_;
    std::string of_ghosts;
    std::uint32_t count = 0;
    const std::uint64_t stride = (ghosts.buckets() * Ghosts::kWays + kGhostsMost - 1) / kGhostsMost;
    for (std::uint64_t bucket = 0; bucket < ghosts.buckets(); bucket += stride) {
      ghosts.visit(bucket, policy.now_ns_, [&](std::uint32_t digest, const Ghosts::Ghost& ghost) {
        put(of_ghosts, digest);
        put(of_ghosts, static_cast<std::uint32_t>(ghost.age_s * kTicksPerS));
        put(of_ghosts, ghost.cell | ghost.weight_class << 8 | (ghost.goes_on ? 1u << 12 : 0u));
        ++count;
      });
    }
    put(bytes, kMagic);
    put(bytes, kVersion);
    put(bytes, static_cast<std::uint32_t>(kHeaderBytes + kTableBytes + of_ghosts.size() + sizeof(std::uint64_t)));
    put(bytes, policy.counts_.requests);
    put(bytes, policy.counts_.estimates);
    put(bytes, policy.shadow_.account());
    put(bytes, count);
    put(bytes, std::uint32_t{0});
    for (const Hazards::Table* table : {&policy.hazards_.used_table(), &policy.hazards_.ended_table()}) {
      for (const Hazards::Bins& bins : *table) {
        for (const float weight : bins) put(bytes, weight);
      }
    }
    bytes += of_ghosts;
    put(bytes, checksum(bytes));
    return bytes;
  }

  // Throws std::invalid_argument, with the policy as it was, when the bytes are damaged or of another version.
  static void restore(PrefixPolicy& policy, std::string_view bytes, std::uint64_t now_ns) {
    if (bytes.size() < kHeaderBytes + kTableBytes + sizeof(std::uint64_t)) throw std::invalid_argument("policy state is cut short");
    std::size_t at = 0;
    if (get<std::uint64_t>(bytes, at) != kMagic) throw std::invalid_argument("this is no policy state");
    if (get<std::uint32_t>(bytes, at) != kVersion) throw std::invalid_argument("policy state is of another version");
    if (get<std::uint32_t>(bytes, at) != bytes.size()) throw std::invalid_argument("policy state has another length than it says");
    std::size_t end = bytes.size() - sizeof(std::uint64_t);
    if (get<std::uint64_t>(bytes, end) != checksum(bytes.substr(0, bytes.size() - sizeof(std::uint64_t)))) {
      throw std::invalid_argument("policy state is damaged: its checksum is another");
    }
    const auto requests = get<std::uint64_t>(bytes, at);
    const auto estimates = get<std::uint64_t>(bytes, at);
    const auto account = get<double>(bytes, at);
    const auto count = get<std::uint32_t>(bytes, at);
    get<std::uint32_t>(bytes, at);
    const std::size_t expected = kHeaderBytes + kTableBytes + std::uint64_t{count} * kGhostBytes + sizeof(std::uint64_t);
    if (bytes.size() != expected || !std::isfinite(account)) throw std::invalid_argument("policy state contradicts itself");
    Hazards::Table used(Cell::kCells), ended(Cell::kCells);
    for (Hazards::Table* table : {&used, &ended}) {
      for (Hazards::Bins& bins : *table) {
        for (float& weight : bins) {
          weight = get<float>(bytes, at);
          if (!(weight >= 0 && weight <= kWeightMost)) throw std::invalid_argument("policy state has a weight out of range");
        }
      }
    }
    const std::size_t ghosts_at = at;
    for (std::uint32_t i = 0; i < count; ++i) {
      at += 8;
      if ((get<std::uint32_t>(bytes, at) & ~0x1F7Fu) != 0) throw std::invalid_argument("policy state has a ghost out of range");
    }
    at = ghosts_at;
    policy.now_ns_ = std::max(policy.now_ns_, now_ns);
    for (std::uint32_t cell = 0; cell < Cell::kCells; ++cell) {
      for (std::uint32_t bin = 0; bin < Hazards::kBins; ++bin) policy.hazards_.restore(cell, bin, used[cell][bin], ended[cell][bin]);
    }
    std::vector<std::array<std::uint32_t, 3>> ghosts(count);
    for (auto& ghost : ghosts) {
      for (std::uint32_t& word : ghost) word = get<std::uint32_t>(bytes, at);
    }
    // The oldest of a bucket first, as they were evicted.
    for (std::size_t i = ghosts.size(); i-- > 0;) {
      const auto& [digest, age, kind] = ghosts[i];
      policy.ghosts_.restore(digest, age, kind & 0x7F, kind >> 8 & 0xF, (kind >> 12 & 1) != 0, policy.now_ns_);
    }
    policy.counts_.requests = std::max(policy.counts_.requests, requests);
    policy.shadow_.restore(account);
    if (estimates == 0) return;
    policy.counts_.estimates += estimates;
    policy.estimate_at_once();
  }

 private:
  static constexpr std::uint64_t kMagic = 0x5943494C4F504B53ULL;  // "SKPOLICY"
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::size_t kHeaderBytes = 8 + 4 + 4 + 8 + 8 + 8 + 4 + 4;
  static constexpr std::size_t kTableBytes = 2ULL * Cell::kCells * Hazards::kBins * sizeof(float);
  static constexpr std::size_t kGhostBytes = 12;
  static constexpr double kTicksPerS = 1e9 / static_cast<double>(Ghosts::kTickNs);
  static constexpr float kWeightMost = 1e12F;

  template <class Number>
  static void put(std::string& bytes, Number number) {
    char raw[sizeof number];
    std::memcpy(raw, &number, sizeof number);
    bytes.append(raw, sizeof number);
  }

  template <class Number>
  static Number get(std::string_view bytes, std::size_t& at) {
    Number number;
    std::memcpy(&number, bytes.data() + at, sizeof number);
    at += sizeof number;
    return number;
  }

  // FNV-1a of 64 bits: any one byte that is another gives another.
  static std::uint64_t checksum(std::string_view bytes) {
    std::uint64_t sum = 0xCBF29CE484222325ULL;
    for (const char byte : bytes) sum = (sum ^ static_cast<unsigned char>(byte)) * 0x100000001B3ULL;
    return sum;
  }
};

}  // namespace stratakv
