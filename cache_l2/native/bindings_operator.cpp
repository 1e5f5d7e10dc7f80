// What an operator says of an arena, for Python: pins and tenants' shares.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bindings_arena.hpp"
#include "buffers.hpp"

namespace nb = nanobind;

namespace stratakv {
namespace {

bool pin(const PyArena& self, nb::handle keys, std::uint64_t payload_bytes) {
  const BorrowedKeys named(keys);
  return self.core().pin(named.data(), named.count(), payload_bytes);
}

nb::dict pin_statistics(const PyArena& self) {
  const PinStatistics s = self.core().pin_statistics();
  nb::dict out;
  out["keys"] = s.keys;
  out["held_pages"] = s.held_pages;
  out["held_bytes"] = s.held_bytes;
  out["charged_bytes"] = s.charged_bytes;
  out["quota_bytes"] = s.quota_bytes;
  out["beyond_quota"] = s.beyond_quota;
  return out;
}

nb::list tenant_statistics(const PyArena& self) {
  nb::list out;
  for (std::uint32_t tenant = 0; tenant < self.core().tenants(); ++tenant) {
    const TenantStatistics& s = self.core().tenant_statistics(tenant);
    nb::dict one;
    one["share_bytes"] = s.share_bytes;
    one["used_bytes"] = s.used_bytes;
    one["evictions_own"] = s.evictions_own;
    one["evictions_caused"] = s.evictions_caused;
    one["evictions_suffered"] = s.evictions_suffered;
    out.append(one);
  }
  return out;
}

}  // namespace

void bind_operator(nb::class_<PyArena>& arena) {
  arena.def("set_pin_quota", [](const PyArena& self, std::uint64_t bytes) { self.core().set_pin_quota(bytes); }, nb::arg("quota_bytes"))
      .def("pin", pin, nb::kw_only(), nb::arg("keys"), nb::arg("payload_bytes"))
      .def("pin_cost", [](const PyArena& self, nb::handle keys, std::uint64_t payload_bytes) {
             const BorrowedKeys named(keys);
             return self.core().pin_cost(named.data(), named.count(), payload_bytes);
           }, nb::kw_only(), nb::arg("keys"), nb::arg("payload_bytes"))
      .def("unpin", [](const PyArena& self, nb::handle keys) {
             const BorrowedKeys named(keys);
             self.core().unpin(named.data(), named.count());
           }, nb::kw_only(), nb::arg("keys"))
      .def("held_among", [](const PyArena& self, nb::handle keys) {
             const BorrowedKeys named(keys);
             const Tally held = self.core().held_among(named.data(), named.count());
             return nb::make_tuple(held.pages, held.bytes);
           }, nb::kw_only(), nb::arg("keys"))
      .def("pin_statistics", pin_statistics)
      .def("set_tenant_shares", [](const PyArena& self, const std::vector<std::uint64_t>& share_bytes) {
             self.core().set_tenant_shares(share_bytes);
           }, nb::arg("share_bytes"))
      .def("set_tenant", [](const PyArena& self, std::uint64_t number, std::uint32_t tenant) {
             self.core().set_tenant(checked_slot(number), tenant);
           }, nb::arg("namespace_slot"), nb::arg("tenant"))
      .def("tenant_statistics", tenant_statistics);
}

}  // namespace stratakv
