// What the three binding files share.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "counts.hpp"

namespace stratakv {

void bind_arena(nanobind::module_& m);
void bind_policy(nanobind::module_& m);
void bind_reader(nanobind::module_& m);
void bind_runs(nanobind::module_& m);

// Copies exactly `bytes` out of a bytes object, or raises ValueError naming it.
inline void take_bytes(const nanobind::bytes& from, void* to, std::size_t bytes, const char* what) {
  if (from.size() != bytes) {
    const std::string text = std::string(what) + " is exactly " + std::to_string(bytes) + " bytes; got " +
                             std::to_string(from.size());
    throw nanobind::value_error(text.c_str());
  }
  std::memcpy(to, from.c_str(), bytes);
}

inline nanobind::bytes give_bytes(const void* from, std::size_t bytes) {
  return nanobind::bytes(static_cast<const char*>(from), bytes);
}

// Counters of one namespace in a client's row, by the names that `Arena.row_counts` and `Reader.counts` give.
inline nanobind::dict give_counts(const CountsSnapshot& counts) {
  nanobind::dict out;
  out["begun"] = counts.begun;
  out["requested"] = counts.requested;
  out["l1"] = counts.l1;
  out["l2"] = counts.l2;
  out["l3"] = counts.l3;
  for (std::uint32_t i = 0; i < kMissReasons; ++i) out[("miss_" + std::to_string(i)).c_str()] = counts.miss[i];
  out["bytes_read"] = counts.bytes_read;
  out["bytes_written"] = counts.bytes_written;
  out["collisions"] = counts.collisions;
  out["look_ups"] = counts.look_ups;
  return out;
}

}  // namespace stratakv
