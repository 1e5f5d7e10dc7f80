// Python objects that lend memory: keys, and the sources and destinations of copies. Errors become ValueError.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stratakv {

// Contiguous memory of one Python object, borrowed until this is destroyed: buffer protocol or DLPack on the CPU.
class Borrowed {
 public:
  Borrowed(nanobind::handle object, bool writable, const char* what);
  Borrowed(Borrowed&& other) noexcept;
  Borrowed& operator=(Borrowed&&) = delete;
  ~Borrowed();
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  static bool lends(nanobind::handle object);

 private:
  void borrow_tensor(nanobind::handle object, bool writable, const char* what);

  Py_buffer view_{};
  nanobind::object tensor_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// A chain of keys: n × 32 bytes.
class BorrowedKeys {
 public:
  explicit BorrowedKeys(nanobind::handle object);
  ~BorrowedKeys();
  BorrowedKeys(const BorrowedKeys&) = delete;
  BorrowedKeys& operator=(const BorrowedKeys&) = delete;
  const std::uint8_t* data() const { return data_; }
  std::size_t count() const { return count_; }
  // Checks 0 <= start <= count and returns it.
  std::size_t start(std::int64_t start) const;

 private:
  Py_buffer view_{};
  const std::uint8_t* data_;
  std::size_t count_;
};

// One place a page: from one buffer for all of them, or from a sequence with one buffer each.
class BorrowedPages {
 public:
  BorrowedPages(nanobind::handle object, std::size_t pages, std::size_t page_bytes, bool writable, const char* what);
  std::byte* const* places() const { return places_.data(); }

 private:
  std::vector<Borrowed> buffers_;
  std::vector<std::byte*> places_;
};

}  // namespace stratakv
