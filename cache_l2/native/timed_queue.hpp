// Things that fall due: a heap of (due, what). Outdated items are dropped when popped, and a few of them at each push.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

namespace stratakv {

struct TimedItem {
  std::uint64_t due;
  std::uint32_t entry;
  std::uint32_t generation;  // of the entry when it was pushed, its lower half
};

// There may be one for each page: no call looks at all of them, and none of them is copied because there are more.
class TimedQueue {
 public:
  // `live` tells whether an item still means anything; it must not change what it is asked about. Each push looks at
  // two items by turns, so that those which mean nothing stay about as few as those which do.
  template <typename Live>
  void push(const TimedItem& item, Live live) {
    for (int i = 0; i < kLookedAt && !items_.empty(); ++i) {
      if (looked_at_ >= items_.size()) looked_at_ = 0;
      if (live(items_[looked_at_])) {
        ++looked_at_;
      } else {
        remove(looked_at_);
      }
    }
    items_.push_back(item);
    rise(items_.size() - 1);
  }

  bool due(std::uint64_t now) const { return !items_.empty() && items_.front().due <= now; }

  TimedItem pop() {
    const TimedItem item = items_.front();
    remove(0);
    return item;
  }

  std::size_t size() const { return items_.size(); }

 private:
  static constexpr int kLookedAt = 2;

  void remove(std::size_t at) {
    items_[at] = items_.back();
    items_.pop_back();
    if (at == items_.size()) return;
    sink(at);
    rise(at);
  }

  void rise(std::size_t at) {
    for (; at > 0 && items_[at].due < items_[(at - 1) / 2].due; at = (at - 1) / 2) std::swap(items_[at], items_[(at - 1) / 2]);
  }

  void sink(std::size_t at) {
    for (;;) {
      std::size_t child = 2 * at + 1;
      if (child + 1 < items_.size() && items_[child + 1].due < items_[child].due) ++child;
      if (child >= items_.size() || items_[at].due <= items_[child].due) return;
      std::swap(items_[at], items_[child]);
      at = child;
    }
  }

  std::deque<TimedItem> items_;
  std::size_t looked_at_ = 0;
};

}  // namespace stratakv
