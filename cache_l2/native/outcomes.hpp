// Numbers of outcomes, as in kv_types.outcomes; a test compares the two lists.
#pragma once

#include <cstdint>

namespace stratakv {

enum MissReason : std::uint32_t {
  kMissNone = 0,
  kMissAbsent = 1,
  kMissStale = 2,
  kMissClosed = 3,
  kMissInvalidated = 4,
  kMissLeaseExpired = 5,
  kMissLeaseLimit = 6,
  kMissRaced = 12,
  kMissExpired = 13,
};

enum PutStatus : std::uint32_t { kPutStored = 0, kPutKnown = 1, kPutRefused = 2 };

enum RefuseReason : std::uint32_t {
  kRefuseNone = 0,
  kRefuseFull = 1,
  kRefuseTooLarge = 2,
  kRefuseParentAbsent = 3,
  kRefuseInvalidated = 5,
  kRefuseBusy = 9,
  kRefuseQuota = 11,
  kRefuseExpired = 12,
};

}  // namespace stratakv
