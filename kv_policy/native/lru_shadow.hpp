// What least recently used eviction would have had, beside what was had: the guard of a policy that must not be worse.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace stratakv {

// Such a cache holds the pages that were used last, as many as fit; so it is enough to count, for each time, the pages whose
// last use that was. Pages are told by that time, whether they are resident or ghosts. Times close to each other share a count.
//
// The account is in pages: what was had, less what would have been had, and a little allowance for each page asked for. While
// it is below zero the policy does as the shadow does, and can lose no more. It is bounded above, so that what was gained long
// ago pays for no losses now.
class LruShadow {
 public:
  explicit LruShadow(std::uint64_t pages)
      : start_(kStartShare * static_cast<double>(pages) + kStartPages), most_(kMostShare * static_cast<double>(pages) + kMostPages),
        account_(start_) {
    slots_.resize(std::clamp<std::uint64_t>(pages, 64, kSlots));
  }

  // A request asked for so many pages, and so many were had. Pages may be used next.
  void asked(std::uint64_t asked_pages, std::uint64_t had_pages) {
    account_ += kAllowance * static_cast<double>(asked_pages) + static_cast<double>(had_pages);
    account_ = std::min(account_, most_);
  }

  // Pages that were last used at `before_ns`, or so, are used now. `counts`: each would have been a hit of the request.
  void used(std::uint64_t before_ns, std::uint64_t pages, std::uint64_t tolerance_ns, bool counts) {
    if (filled_ == 0 || before_ns + tolerance_ns < slot(0).touched_ns) return;
    std::uint64_t low = 0, high = filled_;  // the last slot that begins at or before
    while (high - low > 1) {
      const std::uint64_t middle = (low + high) / 2;
      (slot(middle).touched_ns <= before_ns ? low : high) = middle;
    }
    std::uint64_t taken = slot(low).until_ns + tolerance_ns >= before_ns ? take(low, pages) : 0;
    for (std::uint64_t i = low + 1; taken < pages && i < filled_ && slot(i).touched_ns < before_ns + tolerance_ns; ++i) {
      taken += take(i, pages - taken);
    }
    for (std::uint64_t i = low; taken < pages && i-- > 0 && slot(i).until_ns + tolerance_ns > before_ns;) {
      taken += take(i, pages - taken);
    }
    if (counts) account_ -= static_cast<double>(taken);
  }

  // So many pages, new or just used, were last used now; no more than `room_pages` of all stay.
  void touched(std::uint64_t now_ns, std::uint64_t pages, std::uint64_t room_pages) {
    const std::uint64_t least = room_pages / (slots_.size() / 2);
    const bool shares = filled_ != 0 && (slot(filled_ - 1).until_ns >= now_ns || slot(filled_ - 1).pages < least);
    if (!shares && filled_ == slots_.size()) drop_oldest();
    if (!shares) slot(filled_++) = Slot{now_ns, now_ns, 0};
    Slot& last = slot(filled_ - 1);
    if (last.pages == 0) last.touched_ns = now_ns;
    last.until_ns = std::max(last.until_ns, now_ns);
    last.pages += pages;
    held_ += pages;
    while (held_ > room_pages && filled_ != 0) {
      Slot& oldest = slot(0);
      const std::uint64_t gone = std::min(oldest.pages, held_ - room_pages);
      oldest.pages -= gone;
      held_ -= gone;
      if (oldest.pages != 0 || filled_ == 1) break;
      drop_oldest();
    }
  }

  bool is_worse() const { return account_ < 0; }
  double account() const { return account_; }
  double start() const { return start_; }
  void restore(double account) { account_ = std::clamp(account, -most_, most_); }
  std::uint64_t bytes() const { return slots_.size() * sizeof(Slot); }

 private:
  static constexpr std::uint64_t kSlots = 1 << 16;
  static constexpr double kAllowance = 0.001;  // of the hit ratio
  static constexpr double kStartShare = 0.03, kMostShare = 0.25;  // of the cache
  static constexpr double kStartPages = 4, kMostPages = 16;
  struct Slot {
    std::uint64_t touched_ns = 0, until_ns = 0, pages = 0;
  };

  std::uint64_t take(std::uint64_t i, std::uint64_t pages) {
    const std::uint64_t taken = std::min(pages, slot(i).pages);
    slot(i).pages -= taken;
    held_ -= taken;
    return taken;
  }

  Slot& slot(std::uint64_t i) { return slots_[(first_ + i) % slots_.size()]; }
  void drop_oldest() {
    held_ -= slot(0).pages;
    first_ = (first_ + 1) % slots_.size();
    --filled_;
  }

  std::vector<Slot> slots_;
  std::uint64_t first_ = 0, filled_ = 0, held_ = 0;
  double start_, most_, account_;
};

}  // namespace stratakv
