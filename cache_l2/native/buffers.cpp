// Borrowing memory from Python objects, with errors that name the object at fault.
#include "buffers.hpp"

#include <string>

#include "index.hpp"
#include "limits.hpp"

namespace nb = nanobind;

namespace stratakv {
namespace {

[[noreturn]] void reject(const std::string& text) { throw nb::value_error(text.c_str()); }

std::string name_of_type(nb::handle object) { return Py_TYPE(object.ptr())->tp_name; }

template <typename Array>
bool is_contiguous(const Array& array) {
  std::int64_t expected = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != expected) return false;
    expected *= static_cast<std::int64_t>(array.shape(i));
  }
  return true;
}

}  // namespace

bool Borrowed::lends(nb::handle object) {
  return PyObject_CheckBuffer(object.ptr()) != 0 || nb::hasattr(object, "__dlpack__");
}

Borrowed::Borrowed(nb::handle object, bool writable, const char* what) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) {
    borrow_tensor(object, writable, what);
    return;
  }
  if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    reject(std::string(what) + " must be C-contiguous" + (writable ? " and writable" : "") + "; this " +
           name_of_type(object) + " is not");
  }
  data_ = static_cast<std::byte*>(view_.buf);
  bytes_ = static_cast<std::size_t>(view_.len);
}

void Borrowed::borrow_tensor(nb::handle object, bool writable, const char* what) {
  if (!nb::hasattr(object, "__dlpack__")) {
    reject(std::string(what) + " must support the buffer protocol or DLPack; " + name_of_type(object) + " does neither");
  }
  const auto take = [&](auto& array) {
    if (array.device_type() != nb::device::cpu::value) reject(std::string(what) + " must be in host memory");
    if (!is_contiguous(array)) {
      reject(std::string(what) + " must be C-contiguous; this " + name_of_type(object) + " is not");
    }
    data_ = static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(array.data())));
    bytes_ = array.nbytes();
  };
  nb::ndarray<> mutable_array;
  nb::ndarray<nb::ro> array;
  if (writable && nb::try_cast(object, mutable_array, false)) {
    take(mutable_array);
    tensor_ = nb::borrow(object);
    return;
  }
  if (!writable && nb::try_cast(object, array, false)) {
    take(array);
    tensor_ = nb::borrow(object);
    return;
  }
  PyErr_Clear();
  reject(std::string(what) + ": this " + name_of_type(object) + " does not export its memory through DLPack" +
         (writable ? " for writing" : "") + "; detach it from the graph and move it to host memory");
}

Borrowed::Borrowed(Borrowed&& other) noexcept
    : view_(other.view_), tensor_(std::move(other.tensor_)), data_(other.data_), bytes_(other.bytes_) {
  other.view_ = Py_buffer{};
}

Borrowed::~Borrowed() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
}

BorrowedKeys::BorrowedKeys(nb::handle object) {
  std::size_t bytes = 0;
  if (PyBytes_CheckExact(object.ptr())) {
    data_ = reinterpret_cast<const std::uint8_t*>(PyBytes_AS_STRING(object.ptr()));
    bytes = static_cast<std::size_t>(PyBytes_GET_SIZE(object.ptr()));
  } else {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) {
      PyErr_Clear();
      reject("keys must be bytes or a contiguous buffer of n × 32 bytes; got " + name_of_type(object));
    }
    data_ = static_cast<const std::uint8_t*>(view_.buf);
    bytes = static_cast<std::size_t>(view_.len);
  }
  count_ = bytes / kKeyBytes;
  if (bytes % kKeyBytes == 0 && count_ <= kChainPagesMax) return;
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
  if (bytes % kKeyBytes != 0) reject("keys must be n × 32 bytes; got " + std::to_string(bytes) + " bytes");
  reject("a chain has at most " + std::to_string(kChainPagesMax) + " keys; got " + std::to_string(count_));
}

BorrowedKeys::~BorrowedKeys() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
}

std::size_t BorrowedKeys::start(std::int64_t start) const {
  if (start >= 0 && static_cast<std::size_t>(start) <= count_) return static_cast<std::size_t>(start);
  reject("start must be 0 to the number of keys (" + std::to_string(count_) + "); got " + std::to_string(start));
}

BorrowedPages::BorrowedPages(
    nb::handle object, std::size_t pages, std::size_t page_bytes, bool writable, const char* what) {
  places_.reserve(pages);
  const auto require_bytes = [&](std::size_t got, std::size_t wanted) {
    if (got >= wanted) return;
    reject(std::string(what) + ": " + std::to_string(wanted) + " bytes are needed, the buffer has " + std::to_string(got));
  };
  if (Borrowed::lends(object)) {
    const Borrowed& all = buffers_.emplace_back(object, writable, what);
    require_bytes(all.bytes(), pages * page_bytes);
    for (std::size_t i = 0; i < pages; ++i) places_.push_back(all.data() + i * page_bytes);
    return;
  }
  if (PySequence_Check(object.ptr()) == 0) {
    reject(std::string(what) + " must be a buffer or a sequence of buffers; got " + name_of_type(object));
  }
  const nb::object items = nb::steal(PySequence_Fast(object.ptr(), "cannot be read as a sequence"));
  if (!items.is_valid()) throw nb::python_error();
  const auto given = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  if (given != pages) {
    reject(std::string(what) + ": one buffer a page is needed; got " + std::to_string(given) + " for " +
           std::to_string(pages) + " pages");
  }
  buffers_.reserve(pages);
  for (std::size_t i = 0; i < pages; ++i) {
    const Borrowed& one = buffers_.emplace_back(PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i)), writable, what);
    require_bytes(one.bytes(), page_bytes);
    places_.push_back(one.data());
  }
}

}  // namespace stratakv
