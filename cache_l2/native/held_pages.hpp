// Pages that one look-up pinned, until they are released and nobody looks at them any more.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "reader.hpp"

namespace stratakv {

// Counts, a page, the views that were handed out. A page's hazard is cleared when the lease was released and its last
// view is gone. Not thread-safe by itself: in Python the GIL serialises all calls.
class HeldPages {
 public:
  static HeldPages* create(std::shared_ptr<Reader> reader, const FoundPage* pages, std::size_t count) {
    void* memory = ::operator new(sizeof(HeldPages) + count * (sizeof(FoundPage) + sizeof(std::uint32_t)));
    auto* held = new (memory) HeldPages(std::move(reader), count);
    std::memcpy(held->pages(), pages, count * sizeof(FoundPage));
    std::memset(held->views(), 0, count * sizeof(std::uint32_t));
    return held;
  }

  void ref() noexcept { ++references_; }
  void unref() noexcept {
    if (--references_ != 0) return;
    release();
    this->~HeldPages();
    ::operator delete(static_cast<void*>(this));
  }

  std::size_t count() const { return count_; }
  bool released() const { return released_; }
  const std::byte* data(std::size_t page) const { return reader_->arena().data + pages()[page].offset; }
  std::size_t bytes(std::size_t page) const { return pages()[page].payload_bytes; }
  std::uint64_t instance(std::size_t page) const { return instance_of(pages()[page]); }

  void release() noexcept {
    if (released_) return;
    released_ = true;
    if (viewed_ == 0) {
      unpin(0, count_);
      reader_.reset();  // a lease object that is kept around must not keep the mapping, nor the client's row
      return;
    }
    for (std::size_t i = 0; i < count_; ++i) {
      if (views()[i] == 0) unpin(i, 1);
    }
  }
  void add_view(std::size_t page) noexcept {
    ++views()[page];
    ++viewed_;
  }
  void drop_view(std::size_t page) noexcept {
    --viewed_;
    if (--views()[page] == 0 && released_) unpin(page, 1);
    if (viewed_ == 0 && released_) reader_.reset();
  }

 private:
  HeldPages(std::shared_ptr<Reader> reader, std::size_t count) : reader_(std::move(reader)), count_(count) {}
  ~HeldPages() = default;
  FoundPage* pages() { return reinterpret_cast<FoundPage*>(this + 1); }
  const FoundPage* pages() const { return reinterpret_cast<const FoundPage*>(this + 1); }
  std::uint32_t* views() { return reinterpret_cast<std::uint32_t*>(pages() + count_); }
  void unpin(std::size_t first, std::size_t count) noexcept {
    if (reader_->present()) reader_->unpin(pages() + first, count);  // a forked child holds no leases
  }

  std::shared_ptr<Reader> reader_;
  std::size_t count_;
  std::size_t viewed_ = 0;  // views handed out and not gone yet
  std::uint32_t references_ = 1;
  bool released_ = false;
};
static_assert(sizeof(HeldPages) % alignof(std::uint64_t) == 0);

}  // namespace stratakv
