// Bounds on what the native core accepts, equal to kv_types.limits; a test compares the two lists.
#pragma once

#include <cstdint>

#include "layout.hpp"

namespace stratakv {

constexpr std::uint64_t kArenaBytesMin = 1ULL << 20;
constexpr std::uint64_t kSegmentBytesMin = 64ULL << 10;
constexpr std::uint64_t kSegmentBytesMax = 64ULL << 20;
constexpr std::uint64_t kEntriesMax = 16ULL << 20;
constexpr std::uint64_t kRowsMax = 1024;
constexpr std::uint64_t kLeasesPerRowMax = 65'536;
constexpr std::uint64_t kReservationsPerRowMax = 4096;
constexpr std::uint64_t kRingRecordsMax = 65'536;
constexpr std::uint64_t kChainPagesMax = 65'536;
constexpr std::uint64_t kNamespacesMax = 1024;
constexpr std::uint64_t kAncestorsWalkedMax = 4096;
constexpr std::uint64_t kTenantSharesMax = 32;
constexpr std::uint64_t kPolicyStateBytesMax = 4ULL << 20;

static_assert(kEntriesMax <= kCoverPagesMask, "a lease must be able to name a whole chain");

}  // namespace stratakv
