// What the three binding files share.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace stratakv {

void bind_arena(nanobind::module_& m);
void bind_reader(nanobind::module_& m);

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

}  // namespace stratakv
