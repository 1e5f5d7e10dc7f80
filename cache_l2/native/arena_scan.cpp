// Which pages the clients' hazards hold: one names a page and how many of those below it (rule R17).
//
// Rows are written by clients. Whatever stands there, a scan looks at each hazard once and walks over each page once.
#include <algorithm>

#include "arena.hpp"
#include "arena_leases.hpp"
#include "clock.hpp"

namespace stratakv {
namespace {

constexpr std::uint64_t kPagesLookedAt = 131'072;  // for figures alone, which are rough beyond: a ms or two

}  // namespace

// How many pages a hazard covers that says so many: no more than there are down to the root.
std::uint32_t Arena::pages_of(std::uint32_t deepest, std::uint32_t pages) const {
  return std::clamp(pages, 1u, depth_of(deepest) + 1);
}

// The page that a visible or hidden page stands on, hidden or not, for as long as it isn't freed; else none.
//
// The writer's own links end with hiding; what readers are told of the parent stands until the entry carries another page.
std::uint32_t Arena::page_below(std::uint32_t entry) const {
  const Entry& shared = view_.entries[entry];
  const std::uint64_t plus_one = shared.parent_and_expiry.load(std::memory_order_relaxed) >> 32;
  if (plus_one == 0) return kNoEntry;
  const auto parent = static_cast<std::uint32_t>(plus_one - 1);
  const bool is_hidden = pages_[parent].state == PageState::kHidden;
  if (!is_hidden && pages_[parent].state != PageState::kVisible) return kNoEntry;
  const std::uint64_t visible = view_.entries[parent].generation.load(std::memory_order_relaxed) - (is_hidden ? 1 : 0);
  return visible == shared.parent_generation.load(std::memory_order_relaxed) ? parent : kNoEntry;
}

// Begins a new epoch of marks. What live leases cover of hidden pages, and of visible ones if they are asked for, is listed,
// that which reaches furthest towards the root first: where a later one meets marks, all that is left of it is marked. What
// else they name is marked at once.
void Arena::list_covers(bool visible_too) {
  ++epoch_;
  covers_.clear();
  const std::uint64_t now = boottime_ns();
  for (std::uint32_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row].state == kRowFree) continue;
    each_live_lease(view_, row, now, [&](std::uint32_t deepest, std::uint32_t pages) {
      Page& page = pages_[deepest];
      if (page.state == PageState::kHidden || (visible_too && page.state == PageState::kVisible)) {
        covers_.push_back({depth_of(deepest) + 1 - pages_of(deepest, pages), deepest});
      } else {
        page.leased_epoch = epoch_;
      }
    });
  }
  std::sort(covers_.begin(), covers_.end(), [](const Cover& a, const Cover& b) { return a.lowest < b.lowest; });
}

bool Arena::goes_on(const Cover& cover, std::uint32_t entry) const {
  return entry != kNoEntry && depth_of(entry) >= cover.lowest && !leased(entry);
}

// Marks what live leases hold: of hidden pages every one, for nothing of them may be freed; of visible ones those at which a
// cover ends, or comes out of hidden ones. What is below those is visible and no leaf.
void Arena::scan_leases() {
  list_covers(false);
  for (const Cover& cover : covers_) {
    for (std::uint32_t entry = cover.deepest; goes_on(cover, entry); entry = page_below(entry)) {
      pages_[entry].leased_epoch = epoch_;
      if (pages_[entry].state == PageState::kVisible) break;
    }
  }
}

// Payload bytes of all pages that live leases cover, each page once; beyond a bound, once for each lease. Its marks are good
// for nothing else.
std::uint64_t Arena::leased_bytes() {
  list_covers(true);
  std::uint64_t bytes = 0;
  std::uint64_t left = kPagesLookedAt;
  for (const Cover& cover : covers_) {
    std::uint32_t entry = cover.deepest;
    for (; left > 0 && goes_on(cover, entry); entry = page_below(entry), --left) {
      pages_[entry].leased_epoch = epoch_;
      bytes += payload_bytes_of(view_, entry);
    }
    if (goes_on(cover, entry)) bytes += (depth_of(entry) + 1 - cover.lowest) * payload_bytes_of(view_, entry);
  }
  return std::min(bytes, tally(PageState::kVisible).bytes + tally(PageState::kHidden).bytes);
}

// Leases that cover a page; beyond a bound, all that are as deep and as long as if they did.
std::uint64_t Arena::leases_on(std::uint32_t wanted) const {
  std::uint64_t count = 0;
  std::uint64_t left = kPagesLookedAt;
  const std::uint64_t now = boottime_ns();
  for (std::uint32_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row].state == kRowFree) continue;
    each_live_lease(view_, row, now, [&](std::uint32_t deepest, std::uint32_t pages) {
      const std::uint32_t depth = depth_of(wanted);
      if (depth_of(deepest) < depth || depth_of(deepest) - depth >= pages_of(deepest, pages)) return;
      std::uint32_t entry = deepest;
      for (; entry != kNoEntry && depth_of(entry) > depth && left > 0; --left) entry = page_below(entry);
      count += entry == wanted || (entry != kNoEntry && depth_of(entry) > depth);
    });
  }
  return count;
}

}  // namespace stratakv
