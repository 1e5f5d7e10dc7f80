// Making room: evicting the coldest leaves, and moving segments between size classes when demand moves.
#include <algorithm>

#include "arena.hpp"
#include "clock.hpp"

namespace stratakv {
namespace {

constexpr std::uint64_t kAnyHeat = ~0ULL;
constexpr int kRounds = 3;  // a lease may be taken on a victim between the survey and its hiding

}  // namespace

// True when there are an entry and a slot of the class to give away. Evicts for up to `pages` at once, so that a batch
// scans the clients' leases once and not once a page. Memory moves ahead of need only where it follows demand: a load
// makes no more room than it takes.
bool Arena::make_room(std::uint32_t size_class, std::uint64_t pages, bool may_rebalance) {
  const auto slots = [&] { return segments_.available(size_class); };
  if (!free_entries_.empty() && slots() > 0) return true;
  reclaim();
  survey_leases();
  if (slots() == 0 && may_rebalance) rebalance(size_class);
  for (int round = 0; round < kRounds && slots() == 0; ++round) {
    const std::uint64_t evicted = evict(size_class, pages);
    reclaim();
    if (evicted == 0 && !move_segment_to(size_class, kAnyHeat)) break;
  }
  for (int round = 0; round < kRounds && free_entries_.empty(); ++round) {
    if (evict_for_entries(pages) == 0) break;
    reclaim();
  }
  return !free_entries_.empty() && slots() > 0;
}

// Looks at all leases once; leaves parked for a lease that has ended are victims again.
void Arena::survey_leases() {
  scan_leases();
  round_began_ns_ = boottime_ns();
  policy_->begin_round(round_began_ns_);
  for (std::size_t i = parked_.size(); i-- > 0;) {
    const std::uint32_t entry = parked_[i];
    if (leased(entry)) continue;
    unpark(entry);
    refresh_leaf(entry);
  }
}

// The coldest leaf of a class that nobody leases; leased ones are parked on the way.
std::optional<Victim> Arena::coldest_victim(std::uint32_t size_class) {
  for (;;) {
    const std::optional<Victim> victim = policy_->coldest(size_class);
    if (!victim || !leased(victim->entry)) return victim;
    park(victim->entry);
  }
}

std::uint64_t Arena::evict(std::uint32_t size_class, std::uint64_t pages) {
  std::uint64_t evicted = 0;
  while (evicted < pages) {
    const std::optional<Victim> victim = coldest_victim(size_class);
    if (!victim) break;
    evicted += hide_subtree(victim->entry, HideCause::kCapacity);
  }
  if (evicted_since_rebalance_.size() <= size_class) evicted_since_rebalance_.resize(size_class + 1);
  evicted_since_rebalance_[size_class] += evicted;
  return evicted;
}

// A class that has evicted a segment's worth of its own pages since it last asked takes a segment whose pages are all
// colder than its own next victim: otherwise yesterday's class would keep its memory for ever. Walking the other
// classes' segments costs as much as a few evictions, hence not each time.
void Arena::rebalance(std::uint32_t size_class) {
  if (evicted_since_rebalance_.size() <= size_class) return;
  if (evicted_since_rebalance_[size_class] < segments_.slots_per_segment(size_class)) return;
  if (segments_.segments_of_class(size_class) == segments_.total()) return;
  evicted_since_rebalance_[size_class] = 0;
  const std::optional<Victim> victim = coldest_victim(size_class);
  if (victim) move_segment_to(size_class, victim->accessed_ns);
}

// The table of entries is full: the coldest leaf of any class goes.
std::uint64_t Arena::evict_for_entries(std::uint64_t pages) {
  std::uint64_t evicted = 0;
  while (evicted < pages) {
    std::optional<Victim> coldest;
    for (std::uint32_t c = 0; c < segments_.classes(); ++c) {
      const std::optional<Victim> victim = coldest_victim(c);
      if (victim && (!coldest || victim->accessed_ns < coldest->accessed_ns)) coldest = victim;
    }
    if (!coldest) break;
    evicted += hide_subtree(coldest->entry, HideCause::kCapacity);
  }
  return evicted;
}

// Takes the coldest segment of another class whose pages, with all that stands on them, may go, if its latest access
// lies before `heat_below`.
bool Arena::move_segment_to(std::uint32_t size_class, std::uint64_t heat_below) {
  recall_grants_but(size_class);  // a segment must not be held by slots that nobody uses
  std::vector<std::pair<std::uint64_t, std::uint32_t>> candidates;
  for (std::uint32_t segment = 0; segment < segments_.total(); ++segment) {
    const std::uint32_t owner = segments_.class_of_segment(segment);
    if (owner == kNoClass || owner == size_class || segments_.draining(segment)) continue;
    const std::optional<std::uint64_t> heat = segment_heat(segment);
    if (heat && *heat < heat_below) candidates.emplace_back(*heat, segment);
  }
  std::sort(candidates.begin(), candidates.end());
  for (const auto& [heat, segment] : candidates) {
    const std::vector<std::uint32_t> owners = segments_.owners(segment);
    const auto may_go = [&](std::uint32_t entry) { return entry == kNoOwner || subtree_may_go(entry); };
    if (!std::all_of(owners.begin(), owners.end(), may_go)) continue;
    segments_.drain(segment);
    for (const std::uint32_t entry : owners) {
      if (entry != kNoOwner && pages_[entry].state == PageState::kVisible) hide_subtree(entry, HideCause::kSegment);
    }
    reclaim();
    return true;
  }
  return false;
}

// Latest access of a segment's pages; nothing when one of them is leased, reserved or not freed yet.
std::optional<std::uint64_t> Arena::segment_heat(std::uint32_t segment) const {
  std::uint64_t heat = 0;
  for (const std::uint32_t entry : segments_.owners(segment)) {
    if (entry == kNoOwner) continue;
    if (pages_[entry].state != PageState::kVisible || leased(entry)) return std::nullopt;
    heat = std::max(heat, accessed_ns(view_, entry, round_began_ns_));
  }
  return heat;
}

// True when nothing in the subtree is leased, reserved or about to carry a new page.
bool Arena::subtree_may_go(std::uint32_t top) const {
  std::vector<std::uint32_t> open{top};
  while (!open.empty()) {
    const std::uint32_t entry = open.back();
    open.pop_back();
    if (pages_[entry].state != PageState::kVisible || leased(entry) || entry == pinned_parent_) return false;
    for (std::uint32_t child = pages_[entry].first_child; child != kNoEntry; child = pages_[child].next_sibling) {
      open.push_back(child);
    }
  }
  return true;
}

}  // namespace stratakv
