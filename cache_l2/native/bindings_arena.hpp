// The Python object around one arena, as the files that bind its methods share it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "arena.hpp"
#include "bindings.hpp"

namespace stratakv {

class PyArena {
 public:
  explicit PyArena(const ArenaSettings& settings) {
    const nanobind::gil_scoped_release unlocked;
    arena_ = std::make_unique<Arena>(settings);
  }

  Arena& core() const {
    if (arena_ == nullptr) throw nanobind::value_error("this arena is closed");
    if (!arena_->present()) throw nanobind::value_error("this arena belongs to the process that this one was forked from");
    return *arena_;
  }

  void close() { arena_.reset(); }

 private:
  std::unique_ptr<Arena> arena_;
};

inline std::uint32_t checked_slot(std::uint64_t number) {
  if (number >= kNamespacesMax) throw std::invalid_argument("namespace_slot must be below " + std::to_string(kNamespacesMax));
  return static_cast<std::uint32_t>(number);
}

void bind_operator(nanobind::class_<PyArena>& arena);

}  // namespace stratakv
