// Pages that one look-up pinned, until they are released and nobody looks at them any more.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

#include "reader.hpp"

namespace stratakv {

// Counts, a page, the views that were handed out. A page's hazard is cleared when the lease was released and its last
// view is gone. Not thread-safe by itself: in Python the GIL serialises all calls.
class HeldPages {
 public:
  static HeldPages* create(std::shared_ptr<Reader> reader, const PinnedPage* pages, std::size_t count) {
    void* memory = ::operator new(sizeof(HeldPages) + count * sizeof(Held));
    auto* held = new (memory) HeldPages(std::move(reader), count);
    for (std::size_t i = 0; i < count; ++i) new (held->pages() + i) Held{pages[i], 0};
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
  const std::byte* data(std::size_t page) const { return reader_->arena().data + pages()[page].pinned.found.offset; }
  std::size_t bytes(std::size_t page) const { return pages()[page].pinned.found.payload_bytes; }

  void release() noexcept {
    if (released_) return;
    released_ = true;
    for (std::size_t i = 0; i < count_; ++i) {
      if (pages()[i].views == 0) unpin(i);
    }
  }
  void add_view(std::size_t page) noexcept { ++pages()[page].views; }
  void drop_view(std::size_t page) noexcept {
    if (--pages()[page].views == 0 && released_) unpin(page);
  }

 private:
  struct Held {
    PinnedPage pinned;
    std::uint32_t views;
  };

  HeldPages(std::shared_ptr<Reader> reader, std::size_t count) : reader_(std::move(reader)), count_(count) {}
  ~HeldPages() = default;
  Held* pages() { return reinterpret_cast<Held*>(this + 1); }
  const Held* pages() const { return reinterpret_cast<const Held*>(this + 1); }
  void unpin(std::size_t page) noexcept {
    if (reader_->present()) reader_->unpin(pages()[page].pinned.hazard);  // a forked child holds no leases
  }

  std::shared_ptr<Reader> reader_;
  std::size_t count_;
  std::uint32_t references_ = 1;
  bool released_ = false;
};
static_assert(sizeof(HeldPages) % alignof(std::uint64_t) == 0);

}  // namespace stratakv
