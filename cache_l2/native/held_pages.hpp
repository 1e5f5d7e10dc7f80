// Pages that one look-up pinned, until they are released and nobody looks at them any more.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "reader.hpp"

namespace stratakv {

// Counts, a page, the views that were handed out. A lease that was released covers from the first to the last page of which
// there is a view, and ends with the last view. Not thread-safe by itself: in Python the GIL serialises all calls.
class HeldPages {
 public:
  static HeldPages* create(std::shared_ptr<Reader> reader, const FoundPage* pages, std::size_t count, std::uint32_t lease) {
    void* memory = ::operator new(sizeof(HeldPages) + count * (sizeof(FoundPage) + sizeof(std::uint32_t)));
    auto* held = new (memory) HeldPages(std::move(reader), count, lease);
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
    let_go();
  }
  void add_view(std::size_t page) noexcept {
    ++views()[page];
    ++viewed_;
  }
  void drop_view(std::size_t page) noexcept {
    --viewed_;
    if (--views()[page] == 0 && released_) let_go();
  }

 private:
  HeldPages(std::shared_ptr<Reader> reader, std::size_t count, std::uint32_t lease)
      : reader_(std::move(reader)), count_(count), end_(count), lease_(lease) {}
  ~HeldPages() = default;
  FoundPage* pages() { return reinterpret_cast<FoundPage*>(this + 1); }
  const FoundPage* pages() const { return reinterpret_cast<const FoundPage*>(this + 1); }
  std::uint32_t* views() { return reinterpret_cast<std::uint32_t*>(pages() + count_); }
  // Keeps what is between the first and the last page that somebody still looks at.
  void let_go() noexcept {
    const bool held = lease_ != kNoSlot && reader_->present();  // a forked child holds no leases
    if (viewed_ == 0) {
      if (held) reader_->unpin(lease_);
      reader_.reset();  // a lease object that is kept around must not keep the mapping, nor the client's row
      return;
    }
    const std::size_t covered = end_ - first_;
    while (views()[end_ - 1] == 0) --end_;
    while (views()[first_] == 0) ++first_;
    if (held && end_ - first_ < covered) reader_->narrow(lease_, pages()[end_ - 1], end_ - first_);
  }

  std::shared_ptr<Reader> reader_;
  std::size_t count_;
  std::size_t first_ = 0, end_;  // what the lease covers
  std::size_t viewed_ = 0;  // views handed out and not gone yet
  std::uint32_t lease_;  // the word that pins them
  std::uint32_t references_ = 1;
  bool released_ = false;
};
static_assert(sizeof(HeldPages) % alignof(std::uint64_t) == 0);

}  // namespace stratakv
