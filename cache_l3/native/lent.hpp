// Memory of a Python object while native code works on it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <string>
#include <utility>

namespace stratakv::l3 {

// Contiguous memory of a Python object, borrowed until this is destroyed, which needs the GIL.
class Lent {
 public:
  Lent() = default;
  Lent(nanobind::handle object, bool writable, const char* what) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) == 0) return;
    PyErr_Clear();
    throw nanobind::value_error((std::string(what) + " must be contiguous memory" + (writable ? ", and writable" : "")).c_str());
  }
  Lent(Lent&& other) noexcept : view_(std::exchange(other.view_, Py_buffer{})) {}
  Lent& operator=(Lent&&) = delete;
  ~Lent() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  std::byte* data() const { return static_cast<std::byte*>(view_.buf); }
  std::size_t bytes() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

}  // namespace stratakv::l3
