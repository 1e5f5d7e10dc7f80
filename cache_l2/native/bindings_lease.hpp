// Leases as Python sees them: views whose lifetime pins their pages.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>
#include <vector>

#include "held_pages.hpp"

namespace stratakv {

namespace nb = nanobind;

// What backs one memoryview: a page of a lease.
class PageView {
 public:
  PageView(HeldPages* held, std::size_t page) : held_(held), page_(page) {
    held_->ref();
    held_->add_view(page_);
  }
  PageView(PageView&& other) noexcept : held_(std::exchange(other.held_, nullptr)), page_(other.page_) {}
  PageView(const PageView&) = delete;
  ~PageView() {
    if (held_ == nullptr) return;
    held_->drop_view(page_);
    held_->unref();
  }
  static int fill(PyObject* self, Py_buffer* view, int flags) {
    const auto* page = nb::inst_ptr<PageView>(self);
    auto* data = const_cast<std::byte*>(page->held_->data(page->page_));
    return PyBuffer_FillInfo(view, self, data, static_cast<Py_ssize_t>(page->held_->bytes(page->page_)), 1, flags);
  }

 private:
  HeldPages* held_;
  std::size_t page_;
};

// What backs a writable memoryview of a reserved place.
class SlotView {
 public:
  SlotView(std::shared_ptr<Reader> reader, std::byte* data, std::size_t bytes)
      : reader_(std::move(reader)), data_(data), bytes_(bytes) {}
  static int fill(PyObject* self, Py_buffer* view, int flags) {
    const auto* slot = nb::inst_ptr<SlotView>(self);
    return PyBuffer_FillInfo(view, self, slot->data_, static_cast<Py_ssize_t>(slot->bytes_), 0, flags);
  }

 private:
  std::shared_ptr<Reader> reader_;
  std::byte* data_;
  std::size_t bytes_;
};

inline nb::object view_over(nb::object exporter) {
  nb::object view = nb::steal(PyMemoryView_FromObject(exporter.ptr()));
  if (!view.is_valid()) throw nb::python_error();
  return view;
}

class PyLease {
 public:
  PyLease(HeldPages* held, const LookUpResult& result)
      : held_(held), reason_(result.reason), view_(result.view), stands_on_(result.stands_on) {}
  PyLease(PyLease&& other) noexcept
      : held_(std::exchange(other.held_, nullptr)),
        reason_(other.reason_),
        view_(other.view_),
        stands_on_(other.stands_on_),
        views_(std::move(other.views_)) {}
  PyLease(const PyLease&) = delete;
  ~PyLease() {
    views_.clear();  // whoever kept one keeps its page
    if (held_ == nullptr) return;
    held_->release();
    held_->unref();
  }

  std::size_t pages() const { return held_->count(); }
  std::uint32_t reason() const { return reason_; }
  std::uint64_t view() const { return view_; }
  std::uint64_t instance() const { return pages() == 0 ? kNoInstance : held_->instance(pages() - 1); }
  std::vector<std::uint64_t> instances() const {
    std::vector<std::uint64_t> out(pages());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = held_->instance(i);
    return out;
  }
  std::uint64_t stands_on() const { return stands_on_; }

  nb::object page(std::int64_t index) {
    const auto count = static_cast<std::int64_t>(pages());
    if (index < 0) index += count;
    if (index < 0 || index >= count) throw nb::index_error("the lease has no such page");
    if (held_->released()) throw nb::value_error("this lease was released");
    if (views_.empty()) views_.resize(pages());
    nb::object& cached = views_[static_cast<std::size_t>(index)];
    if (!cached.is_valid() || ended(cached)) {
      cached = view_over(nb::cast(PageView(held_, static_cast<std::size_t>(index))));
    }
    return cached;
  }

  void release() {
    if (held_->released()) return;
    for (nb::object& view : views_) {
      if (!view.is_valid()) continue;
      // Refused with BufferError while something is exported from it: that keeps the page pinned until it is gone.
      const nb::object done = nb::steal(PyObject_CallMethod(view.ptr(), "release", nullptr));
      if (!done.is_valid()) PyErr_Clear();
    }
    views_.clear();
    held_->release();
  }

 private:
  // A memoryview that its user released answers len() with ValueError.
  static bool ended(const nb::object& view) {
    if (PyObject_Size(view.ptr()) >= 0) return false;
    PyErr_Clear();
    return true;
  }

  HeldPages* held_;
  std::uint32_t reason_;
  std::uint64_t view_;
  std::uint64_t stands_on_;
  std::vector<nb::object> views_;
};

}  // namespace stratakv
