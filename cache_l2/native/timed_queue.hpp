// Things that fall due: a heap of (due, what) whose outdated items are dropped when popped or when they pile up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace stratakv {

struct TimedItem {
  std::uint64_t due;
  std::uint32_t entry;
  std::uint32_t generation;  // of the entry when it was pushed, its lower half
};

class TimedQueue {
 public:
  // `live` tells whether an item still means anything; it must not change what it is asked about.
  template <typename Live>
  void push(const TimedItem& item, Live live) {
    if (items_.size() >= sweep_at_) {
      items_.erase(std::remove_if(items_.begin(), items_.end(), [&](const TimedItem& i) { return !live(i); }), items_.end());
      std::make_heap(items_.begin(), items_.end(), later);
      sweep_at_ = std::max<std::size_t>(kSweepMin, items_.size() * 2);
    }
    items_.push_back(item);
    std::push_heap(items_.begin(), items_.end(), later);
  }

  bool due(std::uint64_t now) const { return !items_.empty() && items_.front().due <= now; }

  TimedItem pop() {
    std::pop_heap(items_.begin(), items_.end(), later);
    const TimedItem item = items_.back();
    items_.pop_back();
    return item;
  }

  std::size_t size() const { return items_.size(); }

 private:
  static constexpr std::size_t kSweepMin = 1024;
  static bool later(const TimedItem& a, const TimedItem& b) { return a.due > b.due; }

  std::vector<TimedItem> items_;
  std::size_t sweep_at_ = kSweepMin;
};

}  // namespace stratakv
