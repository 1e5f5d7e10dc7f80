// The module: constants, copies, exceptions.
#include "bindings.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <map>
#include <stdexcept>
#include <system_error>

#include "buffers.hpp"
#include "copy_kernels.hpp"
#include "layout.hpp"
#include "limits.hpp"
#include "mapping.hpp"
#include "size_classes.hpp"

namespace nb = nanobind;

namespace stratakv {
namespace {

constexpr std::size_t kCalibrationBytesMax = 64ULL << 20;

void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const MemoryShortage& e) {
    PyErr_SetString(PyExc_MemoryError, e.what());
  } catch (const std::system_error& e) {
    const nb::object arguments = nb::make_tuple(e.code().value(), e.what());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  }
}

std::uint64_t size_class(std::uint64_t payload_bytes) {
  if (payload_bytes == 0 || payload_bytes > kSegmentBytesMax) {
    throw nb::value_error("payload_bytes must be 1 to 64 MiB");
  }
  return slot_bytes_of(payload_bytes);
}

CopyChoice checked_choice(std::int64_t kernel) {
  if (kernel < -1 || kernel >= static_cast<std::int64_t>(copy_kernels().size())) {
    throw nb::value_error("kernel must be -1 or the number of one of COPY_KERNELS");
  }
  const auto number = static_cast<std::uint32_t>(kernel);
  return kernel == -1 ? default_copy_choice() : CopyChoice{number, number};
}

void copy_bytes(nb::handle destination, nb::handle source, std::int64_t kernel) {
  const Borrowed to(destination, true, "destination");
  const Borrowed from(source, false, "source");
  const CopyChoice copier = checked_choice(kernel);
  if (to.bytes() != from.bytes()) throw nb::value_error("destination and source differ in size");
  const nb::gil_scoped_release unlocked;
  copier.copy(to.data(), from.data(), to.bytes());
}

using KernelSeconds = std::map<std::string, std::pair<double, double>>;

std::pair<std::pair<std::uint32_t, std::uint32_t>, KernelSeconds> calibrate(std::uint64_t bytes) {
  if (bytes == 0 || bytes > kCalibrationBytesMax) throw nb::value_error("bytes must be 1 to 64 MiB");
  Calibration result;
  {
    const nb::gil_scoped_release unlocked;
    result = calibrate_copy(bytes);
  }
  set_default_copy_choice(result.choice);
  KernelSeconds times;
  for (const KernelTimes& t : result.times) times[t.name] = {t.cold_s, t.warm_s};
  return {{result.choice.cold, result.choice.warm}, times};
}

std::pair<int, nb::bytes> get_placement() {
  const PlacementPolicy policy = placement_policy();
  return {policy.mode, give_bytes(policy.nodes, sizeof(policy.nodes))};
}

void set_placement(int mode, const nb::bytes& nodes) {
  PlacementPolicy policy;
  policy.mode = mode;
  if (nodes.size() > sizeof(policy.nodes)) throw nb::value_error("nodes must be at most 128 bytes");
  std::memcpy(policy.nodes, nodes.data(), nodes.size());
  set_placement_policy(policy);
}

}  // namespace
}  // namespace stratakv

NB_MODULE(_native, m) {
  using namespace stratakv;
  nb::register_exception_translator(translate);
  nb::set_leak_warnings(false);  // a reader that lives in a global at exit is no leak worth a page of warnings
  m.doc() = "Native core of the shared-memory arena.";
  m.attr("LAYOUT_VERSION") = kLayoutVersion;
  nb::list names;
  for (const CopyKernel& kernel : copy_kernels()) names.append(kernel.name);
  m.attr("COPY_KERNELS") = nb::tuple(names);
  m.def("size_class", size_class, nb::arg("payload_bytes"));
  m.def("copy_bytes", copy_bytes, nb::arg("destination"), nb::arg("source"), nb::kw_only(), nb::arg("kernel") = -1);
  m.def("calibrate_copy", calibrate, nb::kw_only(), nb::arg("bytes") = 1 << 20);
  m.def("placement_policy", get_placement);
  m.def("set_placement_policy", set_placement, nb::arg("mode"), nb::arg("nodes"));
  bind_arena(m);
  bind_policy(m);
  bind_reader(m);
  bind_runs(m);
}
