// What codecs of payloads call, for Python: planes and quantisers, each without the GIL while it works.
#include "codec_bindings.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lent.hpp"
#include "planes.hpp"
#include "quantiser.hpp"

namespace nb = nanobind;

namespace stratakv::l3 {
namespace {

constexpr std::size_t kWidthMost = 8;

void check_width(std::size_t width) {
  if (width != 1 && width != 2 && width != 4 && width != kWidthMost) throw nb::value_error("a width is 1, 2, 4 or 8");
}

void check_bytes(const Lent& lent, std::size_t bytes, const char* what) {
  if (lent.bytes() == bytes) return;
  throw nb::value_error((std::string(what) + " must have " + std::to_string(bytes) + " bytes; got " + std::to_string(lent.bytes())).c_str());
}

Kernel kernel_of(bool plain) { return plain ? Kernel::Plain : Kernel::Best; }

void split(nb::handle numbers, std::size_t width, nb::handle planes, bool plain) {
  check_width(width);
  const Lent from(numbers, false, "numbers"), to(planes, true, "planes");
  check_bytes(to, from.bytes() / width * width, "planes");
  const nb::gil_scoped_release unlocked;
  split_planes(from.data(), from.bytes() / width, width, to.data(), kernel_of(plain));
}

void join(const std::vector<nb::object>& planes, nb::handle numbers, bool plain) {
  check_width(planes.size());
  const Lent to(numbers, true, "numbers");
  const std::size_t width = planes.size(), count = to.bytes() / width;
  std::vector<Lent> lent;
  const std::byte* places[kWidthMost];
  for (const nb::object& plane : planes) {
    lent.emplace_back(plane, false, "a plane");
    check_bytes(lent.back(), count, "a plane");
    places[lent.size() - 1] = lent.back().data();
  }
  const nb::gil_scoped_release unlocked;
  join_planes(places, count, width, to.data(), kernel_of(plain));
}

using ArrayOf = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t, bool>;

void construct(Quantiser* at, std::uint8_t code, std::uint8_t number, std::size_t page_bytes, const std::vector<ArrayOf>& arrays, bool plain) {
  if (code > static_cast<std::uint8_t>(Code::Int8) || number > static_cast<std::uint8_t>(Number::Fp32)) {
    throw nb::value_error("a code is 0 or 1, a kind of number 0, 1 or 2");
  }
  std::vector<ScaledArray> made;
  for (const auto& [offset, rows, columns, rows_a_scale, by_column] : arrays) made.push_back({offset, rows, columns, rows_a_scale, by_column});
  new (at) Quantiser(static_cast<Code>(code), static_cast<Number>(number), page_bytes, std::move(made), kernel_of(plain));
}

struct Sections {
  Lent scales, codes, rest;
  Sections(const Quantiser& self, nb::handle scales_of, nb::handle codes_of, nb::handle rest_of, bool writable)
      : scales(scales_of, writable, "scales"), codes(codes_of, writable, "codes"), rest(rest_of, writable, "rest") {
    check_bytes(scales, self.scales_bytes(), "scales");
    check_bytes(codes, self.codes_bytes(), "codes");
    check_bytes(rest, self.rest_bytes(), "rest");
  }
};

nb::object encode(const Quantiser& self, nb::handle page, nb::handle scales, nb::handle codes, nb::handle rest) {
  const Lent from(page, false, "page");
  check_bytes(from, self.page_bytes(), "page");
  const Sections to(self, scales, codes, rest, true);
  Encoded told;
  {
    const nb::gil_scoped_release unlocked;
    told = self.encode(from.data(), to.scales.data(), to.codes.data(), to.rest.data());
  }
  if (!told.is_finite) return nb::none();
  return nb::make_tuple(told.worst_error, told.mean_error);
}

bool decode(const Quantiser& self, nb::handle scales, nb::handle codes, nb::handle rest, nb::handle page) {
  const Lent to(page, true, "page");
  check_bytes(to, self.page_bytes(), "page");
  const Sections from(self, scales, codes, rest, false);
  const nb::gil_scoped_release unlocked;
  return self.decode(from.scales.data(), from.codes.data(), from.rest.data(), to.data());
}

}  // namespace

void bind_codecs(nb::module_& m) {
  m.def("split_planes", split, nb::arg("numbers"), nb::arg("width"), nb::arg("planes"), nb::kw_only(), nb::arg("plain") = false);
  m.def("join_planes", join, nb::arg("planes"), nb::arg("numbers"), nb::kw_only(), nb::arg("plain") = false);
  nb::class_<Quantiser>(m, "Quantiser")
      .def("__init__", construct, nb::kw_only(), nb::arg("code"), nb::arg("number"), nb::arg("page_bytes"), nb::arg("arrays"),
           nb::arg("plain") = false)
      .def_prop_ro("scales_bytes", &Quantiser::scales_bytes)
      .def_prop_ro("codes_bytes", &Quantiser::codes_bytes)
      .def_prop_ro("rest_bytes", &Quantiser::rest_bytes)
      .def("encode", encode, nb::arg("page"), nb::arg("scales"), nb::arg("codes"), nb::arg("rest"))
      .def("decode", decode, nb::arg("scales"), nb::arg("codes"), nb::arg("rest"), nb::arg("page"));
}

}  // namespace stratakv::l3
