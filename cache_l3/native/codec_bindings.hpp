// What codecs of payloads call, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace stratakv::l3 {

void bind_codecs(nanobind::module_& m);

}  // namespace stratakv::l3
