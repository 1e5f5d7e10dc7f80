// Which pages of an arena were asked for since they were stored, a bounded part of it at a time.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "arena.hpp"
#include "bindings.hpp"
#include "look_up.hpp"

namespace nb = nanobind;

namespace stratakv {
namespace {

constexpr std::uint32_t kEntriesAtOnce = 65'536;

// Instances among `count` entries from `begin` on that readers have looked up (both access times, if `twice`), and where to go
// on; 0: the whole arena was seen. What is hidden or being filled meanwhile is told or not: whoever uses it pins it first.
std::pair<std::uint32_t, std::vector<std::uint64_t>> used_pages(const Arena& arena, std::uint32_t begin,
                                                                 std::uint32_t count, bool twice) {
  if (count == 0 || count > kEntriesAtOnce) throw nb::value_error("count must be 1 to 65536");
  const ArenaView& view = arena.view();
  const auto entries = static_cast<std::uint32_t>(view.geometry.entries);
  const std::uint32_t first = std::min(begin, entries);
  const std::uint32_t end = first + std::min(count, entries - first);
  std::vector<std::uint64_t> found;
  for (std::uint32_t entry = first; entry < end; ++entry) {
    const AccessTimes& access = view.access[entry];
    if ((twice ? access.previous : access.last).load(std::memory_order_relaxed) == 0) continue;
    const std::uint64_t generation = view.entries[entry].generation.load(std::memory_order_relaxed);
    if (generation != 0 && generation % 2 == 0) found.push_back(instance_of(generation, entry));
  }
  return {end == entries ? 0 : end, found};
}

}  // namespace

void bind_used(nb::module_& m) {
  m.def("used_pages", used_pages, nb::arg("arena"), nb::kw_only(), nb::arg("begin"), nb::arg("count"), nb::arg("twice"));
}

}  // namespace stratakv
