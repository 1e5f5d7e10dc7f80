// SegmentPolicy for Python: which size class gets a segment, apart from any arena, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "segment_policy.hpp"

namespace nb = nanobind;

namespace stratakv {
namespace {

std::uint32_t checked_class(std::uint32_t size_class) {
  if (size_class >= kSizeClassesMax) throw nb::value_error("size_class must be below 192");
  return size_class;
}

std::uint32_t checked_slots(std::uint32_t slots_per_segment) {
  if (slots_per_segment == 0) throw nb::value_error("slots_per_segment must be positive");
  return slots_per_segment;
}

void construct_donor(Donor* at, std::uint32_t size_class, std::uint32_t slots_per_segment, std::uint64_t slots,
                     std::uint64_t free_slots, const std::vector<std::uint64_t>& ages_ns, std::uint32_t sampled,
                     std::uint32_t warm, std::uint32_t fresh, std::uint32_t busy, double elsewhere) {
  if (ages_ns.size() > kAgesSampled) throw nb::value_error("ages_ns has at most 512 ages");
  Donor donor{};
  donor.size_class = checked_class(size_class);
  donor.slots_per_segment = checked_slots(slots_per_segment);
  donor.slots = slots;
  donor.free_slots = free_slots;
  donor.ages = static_cast<std::uint32_t>(ages_ns.size());
  std::copy(ages_ns.begin(), ages_ns.end(), donor.age_ns.begin());
  donor.best.sampled = sampled;
  donor.best.used = std::min(sampled, donor.ages);
  donor.best.warm = warm;
  donor.best.fresh = fresh;
  donor.best.busy = busy;
  donor.best.elsewhere = elsewhere;
  if (!ages_ns.empty()) donor.best.youngest_age_ns = *std::min_element(ages_ns.begin(), ages_ns.end());
  new (at) Donor(donor);
}

std::optional<std::uint32_t> place_of(const Donor* chosen, const std::vector<Donor>& donors) {
  if (chosen == nullptr) return std::nullopt;
  return static_cast<std::uint32_t>(chosen - donors.data());
}

std::optional<std::uint32_t> choose(const SegmentPolicy& self, std::uint32_t size_class, std::uint32_t slots_per_segment,
                                    std::uint64_t own_age_ns, std::vector<Donor> donors) {
  const auto count = static_cast<std::uint32_t>(donors.size());
  const Donor* chosen =
      self.choose(checked_class(size_class), checked_slots(slots_per_segment), own_age_ns, donors.data(), count);
  return place_of(chosen, donors);
}

std::optional<std::uint32_t> choose_in_need(const SegmentPolicy& self, std::vector<Donor> donors) {
  return place_of(self.choose_in_need(donors.data(), static_cast<std::uint32_t>(donors.size())), donors);
}

}  // namespace

void bind_policy(nb::module_& m) {
  nb::class_<Donor>(m, "Donor", nb::is_final())
      .def("__init__", construct_donor, nb::kw_only(), nb::arg("size_class"), nb::arg("slots_per_segment"), nb::arg("slots"),
           nb::arg("free_slots") = 0, nb::arg("ages_ns"), nb::arg("sampled"), nb::arg("warm") = 0, nb::arg("fresh") = 0,
           nb::arg("busy") = 0, nb::arg("elsewhere") = 0.0);
  nb::class_<SegmentPolicy>(m, "SegmentPolicy", nb::is_final())
      .def(nb::init<std::uint32_t>(), nb::kw_only(), nb::arg("segments"))
      .def("took", [](SegmentPolicy& self, std::uint32_t slots_per_segment, std::uint64_t now_ns) {
             self.took(checked_slots(slots_per_segment), now_ns);
           }, nb::kw_only(), nb::arg("slots_per_segment"), nb::arg("now_ns"))
      .def("evicted", [](SegmentPolicy& self, std::uint32_t size_class, std::uint32_t slots_per_segment) {
             self.evicted(checked_class(size_class), checked_slots(slots_per_segment));
           }, nb::arg("size_class"), nb::kw_only(), nb::arg("slots_per_segment"))
      .def("returned", [](SegmentPolicy& self, std::uint32_t size_class, std::uint32_t slots_per_segment,
                          std::uint64_t distance) {
             self.returned(checked_class(size_class), checked_slots(slots_per_segment), distance);
           }, nb::arg("size_class"), nb::kw_only(), nb::arg("slots_per_segment"), nb::arg("distance"))
      .def("asks", [](const SegmentPolicy& self, std::uint32_t size_class, std::uint32_t slots_per_segment) {
             return self.asks(checked_class(size_class), checked_slots(slots_per_segment));
           }, nb::arg("size_class"), nb::kw_only(), nb::arg("slots_per_segment"))
      .def("answered", [](SegmentPolicy& self, std::uint32_t size_class, bool got) {
             self.answered(checked_class(size_class), got);
           }, nb::arg("size_class"), nb::kw_only(), nb::arg("got"))
      .def_prop_ro("window_ns", &SegmentPolicy::window_ns)
      .def("gain", [](const SegmentPolicy& self, std::uint32_t size_class) { return self.gain(checked_class(size_class)); },
           nb::arg("size_class"))
      .def("choose", choose, nb::arg("size_class"), nb::kw_only(), nb::arg("slots_per_segment"), nb::arg("own_age_ns"),
           nb::arg("donors"))
      .def("choose_in_need", choose_in_need, nb::arg("donors"));
}

}  // namespace stratakv
