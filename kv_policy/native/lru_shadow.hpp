// What least recently used eviction would have had, beside what was had: the guard of a policy that must not be worse.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace stratakv {

// Such a cache holds the pages that were used last, as many as fit; so it is enough to count, for each time, the pages whose
// last use that was. Pages are told by that time, whether they are resident or ghosts. Times close to each other share a count.
//
// The account is in pages: what was had, less what would have been had, and a little allowance for each page asked for. While
// it is below zero the policy does as the shadow does, and can lose no more. It is bounded above, so that what was gained long
// ago pays for no losses now. At first it may be below zero by a credit: pages that are kept for later cost hits at once and
// bring them in a while, and who stops in between has the cost alone. It fades by what is asked for: a policy that loses only
// after many times the cache's size has nothing in the making.
class LruShadow {
 public:
  explicit LruShadow(std::uint64_t pages)
      : start_(kStartShare * static_cast<double>(pages) + kStartPages), most_(kMostShare * static_cast<double>(pages) + kMostPages),
        account_(start_), credit_(kCreditShare * static_cast<double>(pages)),
        fading_(kCreditSizes * static_cast<double>(std::max<std::uint64_t>(pages, 1))) {
    slots_.resize(std::clamp<std::uint64_t>(pages, 64, kSlots));
  }

  // A request asked for so many pages, and so many were had. Pages may be used next.
  void asked(std::uint64_t asked_pages, std::uint64_t had_pages) {
    account_ += kAllowance * static_cast<double>(asked_pages) + static_cast<double>(had_pages);
    account_ = std::min(account_, most_);
    credit_ *= std::exp(-static_cast<double>(asked_pages) / fading_);
  }

  // Pages that were last used at `before_ns`, or so, are used now. `counts`: each would have been a hit of the request.
  void used(std::uint64_t before_ns, std::uint64_t pages, std::uint64_t tolerance_ns, bool counts) {
    if (filled_ == 0 || before_ns + tolerance_ns < slot(0).touched_ns) return;
    const std::uint64_t low = place_of(before_ns);
    std::uint64_t taken = slot(low).until_ns + tolerance_ns >= before_ns ? take(low, pages) : 0;
    for (std::uint64_t i = low + 1; taken < pages && i < filled_ && slot(i).touched_ns < before_ns + tolerance_ns; ++i) {
      taken += take(i, pages - taken);
    }
    for (std::uint64_t i = low; taken < pages && i-- > 0 && slot(i).until_ns + tolerance_ns > before_ns;) {
      taken += take(i, pages - taken);
    }
    if (counts) account_ -= static_cast<double>(taken);
  }

  // So many pages, new or just used, were last used at `at_ns`; no more than `room_pages` of all stay.
  void touched(std::uint64_t at_ns, std::uint64_t pages, std::uint64_t room_pages) {
    Slot& slot = slot_at(at_ns, room_pages / (slots_.size() / 2));
    if (slot.pages == 0 && &slot == &this->slot(filled_ - 1)) slot.touched_ns = at_ns;
    slot.until_ns = std::max(slot.until_ns, at_ns);
    slot.pages += pages;
    held_ += pages;
    while (held_ > room_pages && filled_ != 0) {
      Slot& oldest = this->slot(0);
      const std::uint64_t gone = std::min(oldest.pages, held_ - room_pages);
      oldest.pages -= gone;
      held_ -= gone;
      if (oldest.pages != 0 || filled_ == 1) break;
      drop_oldest();
    }
  }

  bool is_worse() const { return account_ + credit_ < 0; }
  double account() const { return account_; }
  double start() const { return start_; }
  void restore(double account) { account_ = std::clamp(account, -most_, most_); }
  std::uint64_t bytes() const { return slots_.size() * sizeof(Slot); }

 private:
  static constexpr std::uint64_t kSlots = 1 << 15;  // beyond as many pages, several share a count
  static constexpr double kAllowance = 0.001;  // of the hit ratio
  static constexpr double kStartShare = 0.03, kMostShare = 0.5, kCreditShare = 0.1;  // of the cache
  static constexpr double kCreditSizes = 8;  // of the cache, by which a credit falls to 1/e
  static constexpr double kStartPages = 4, kMostPages = 16;
  struct Slot {
    std::uint64_t touched_ns = 0, until_ns = 0, pages = 0;
  };

  // The last slot that begins at or before a time, or else the first; `filled_` is not 0. Slots are about as far apart in time
  // as in place, so it is near where a straight line leads: fewer places are looked at, which lie close to each other.
  std::uint64_t place_of(std::uint64_t at_ns) {
    std::uint64_t low = 0, high = filled_;
    const std::uint64_t first_ns = slot(0).touched_ns, last_ns = slot(filled_ - 1).touched_ns;
    if (at_ns >= last_ns) return filled_ - 1;
    if (at_ns < first_ns) return 0;
    const double share = static_cast<double>(at_ns - first_ns) / static_cast<double>(last_ns - first_ns);
    const auto guess = std::min(static_cast<std::uint64_t>(share * static_cast<double>(filled_ - 1)), filled_ - 1);
    if (slot(guess).touched_ns <= at_ns) {
      low = guess;
      std::uint64_t step = 1;
      for (; low + step < high && slot(low + step).touched_ns <= at_ns; step *= 2) low += step;
      high = std::min(high, low + step);
    } else {
      high = guess;
      std::uint64_t step = 1;
      for (; low + step < high && slot(high - step).touched_ns > at_ns; step *= 2) high -= step;
      low = high > low + step ? high - step : low;
    }
    while (high - low > 1) {
      const std::uint64_t middle = (low + high) / 2;
      (slot(middle).touched_ns <= at_ns ? low : high) = middle;
    }
    return low;
  }

  // That of a time: a request may have been asked a while before its pages come. The last one is used again while it holds
  // less than `least_pages`.
  Slot& slot_at(std::uint64_t at_ns, std::uint64_t least_pages) {
    if (filled_ != 0 && slot(filled_ - 1).until_ns >= at_ns) return slot(place_of(at_ns));
    if (filled_ != 0 && slot(filled_ - 1).pages < least_pages) return slot(filled_ - 1);
    if (filled_ == slots_.size()) drop_oldest();
    slot(filled_++) = Slot{at_ns, at_ns, 0};
    return slot(filled_ - 1);
  }

  std::uint64_t take(std::uint64_t i, std::uint64_t pages) {
    const std::uint64_t taken = std::min(pages, slot(i).pages);
    slot(i).pages -= taken;
    held_ -= taken;
    return taken;
  }

  Slot& slot(std::uint64_t i) {
    const std::uint64_t at = first_ + i;  // below twice their number
    return slots_[at < slots_.size() ? at : at - slots_.size()];
  }
  void drop_oldest() {
    held_ -= slot(0).pages;
    first_ = (first_ + 1) % slots_.size();
    --filled_;
  }

  std::vector<Slot> slots_;
  std::uint64_t first_ = 0, filled_ = 0, held_ = 0;
  double start_, most_, account_, credit_, fading_;
};

}  // namespace stratakv
