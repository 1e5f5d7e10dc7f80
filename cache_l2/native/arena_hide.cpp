// Hiding pages with everything computed on top of them, and freeing what no live lease names any more (rule R17).
#include "arena.hpp"

#include "arena_leases.hpp"
#include "clock.hpp"
#include "fences.hpp"
#include "pauses.hpp"

namespace stratakv {
namespace {

constexpr std::uint64_t kNsPerSecond = 1'000'000'000ULL;
constexpr std::uint64_t kExpiriesPerCall = 1024;
constexpr std::uint64_t kExpiredPagesPerCall = 8'192;  // a ms or two; whoever looks a page up sees by itself that its time is over

}  // namespace

std::uint64_t Arena::expire(std::uint64_t now_ns) {
  std::uint64_t hidden = 0;
  for (std::uint64_t i = 0; i < kExpiriesPerCall && page_expiries_.due(now_ns / kNsPerSecond); ++i) {
    const TimedItem item = page_expiries_.pop();
    if (!is_due_still(item) || pages_[item.entry].state != PageState::kVisible) continue;
    if (hidden < kExpiredPagesPerCall) hidden += hide_from_leaves(item.entry, kExpiredPagesPerCall - hidden);
    if (pages_[item.entry].state != PageState::kVisible) continue;
    schedule_expiry(item);  // more stands on it than one call may hide
    break;
  }
  for (std::uint64_t i = 0; i < kExpiriesPerCall && now_ns != 0 && reservation_deadlines_.due(now_ns - 1); ++i) {
    const TimedItem item = reservation_deadlines_.pop();
    if (is_due_still(item) && pages_[item.entry].state == PageState::kReserved) quarantine(item.entry);
  }
  reclaim();
  return hidden;
}

// Hides a subtree from its leaves on, about `pages` of it at most: what is left is prefix-closed, with `top` the last to go.
std::uint64_t Arena::hide_from_leaves(std::uint32_t top, std::uint64_t pages) {
  std::uint64_t hidden = 0;
  std::uint32_t at = top;
  for (std::uint64_t i = 0; i < pages; ++i) {
    while (pages_[at].first_child != kNoEntry) at = pages_[at].first_child;
    const std::uint32_t parent = pages_[at].parent;
    hidden += hide_subtree(at, HideCause::kTtl);
    if (at == top) break;
    at = parent;
  }
  return hidden;
}

// Hides a page whose time is over with what stands on it; false when that is more than one call may hide.
bool Arena::hide_expired(std::uint32_t entry) {
  hide_from_leaves(entry, kExpiredPagesPerCall);
  const bool is_hidden = pages_[entry].state != PageState::kVisible;
  reclaim();
  return is_hidden;
}

// The caller, who knows how many pages there are, bounds the work.
std::uint64_t Arena::evict_namespace(std::uint32_t namespace_slot) {
  const NamespacePages& space = namespaces_[namespace_slot];
  if (space.entries != space.resident.pages || pins_.holds_any_of(namespace_slot)) return space.entries;
  if (!may_lose_namespace(namespace_slot)) return space.entries;
  while (space.first_root != kNoEntry) hide_subtree(space.first_root, HideCause::kCapacity);
  reclaim();
  return space.entries;
}

void Arena::schedule_expiry(const TimedItem& item) {
  page_expiries_.push(item, [&](const TimedItem& other) { return is_due_still(other); });
}

// Hides a page and its descendants; reservations among them are cut off. Returns visible pages hidden.
std::uint64_t Arena::hide_subtree(std::uint32_t top, HideCause cause) {
  const std::uint32_t reason = cause == HideCause::kInvalidated ? kRefuseInvalidated : kRefuseParentAbsent;
  const TreePlace place{pages_[top].parent, pages_[top].next_sibling};
  unlink_child(top);
  walk_.assign(1, top);
  gone_.clear();
  while (!walk_.empty()) {
    const std::uint32_t entry = walk_.back();
    walk_.pop_back();
    move_walks(entry, place);
    for (std::uint32_t child = pages_[entry].first_child; child != kNoEntry;) {
      const std::uint32_t next = pages_[child].next_sibling;
      pages_[child].parent = pages_[child].next_sibling = pages_[child].previous_sibling = kNoEntry;
      walk_.push_back(child);
      child = next;
    }
    pages_[entry].first_child = kNoEntry;
    if (pages_[entry].state == PageState::kVisible) {
      hide_one(entry, cause);
      gone_.push_back(entry);
    } else {
      cut_off(entry, reason);
    }
  }
  // From the leaves on. What was evicted may be asked for again; what is valid no more will not.
  const bool is_evicted = cause == HideCause::kCapacity || cause == HideCause::kSegment;
  for (std::size_t i = gone_.size(); i-- > 0;) policy_.remove(gone_[i], is_evicted);
  return gone_.size();
}

void Arena::hide_one(std::uint32_t entry, HideCause cause) {
  Entry& shared = view_.entries[entry];
  evicted_keys_.prefetch(key_of(shared));
  // Odd: every reader that loads it from here on misses; who pinned the page before is found by the next scan.
  shared.generation.store(shared.generation.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  index_.remove(key_of(shared), entry);
  pins_.forget(key_of(shared), entry, namespace_slot_of(entry));
  set_state(entry, PageState::kHidden);
  refresh_leaf(entry);
  Tally& resident = namespace_of(entry).resident;
  --resident.pages;
  resident.bytes -= payload_bytes_of(view_, entry);
  count_hidden(cause);
  if (cause == HideCause::kCapacity || cause == HideCause::kSegment) note_evicted(entry);
  pages_[entry].hidden_view = view_number();
  waiting_.push_back(entry);
}

void Arena::count_hidden(HideCause cause) {
  switch (cause) {
    case HideCause::kCapacity: ++counters_.evictions_capacity; break;
    case HideCause::kTtl: ++counters_.evictions_ttl; break;
    case HideCause::kInvalidated: ++counters_.evictions_invalidated; break;
    case HideCause::kSegment: ++counters_.evictions_segment; break;
  }
}

void Arena::free_entry(std::uint32_t entry) {
  set_state(entry, PageState::kFree);
  segments_.release(offset_of(entry));
  const std::uint32_t epoch = pages_[entry].leased_epoch;
  pages_[entry] = Page{};
  pages_[entry].leased_epoch = epoch;
  if (!counted_.empty()) counted_[entry] = false;
  free_entries_.push_back(entry);
}

// Frees every hidden page that no live lease names.
void Arena::reclaim() {
  if (waiting_.empty()) return;
  pause_here();  // hidden, leases not scanned
  fence_seq_cst();  // pairs with the fence between a reader's hazards and its re-check (reader.cpp)
  scan_leases();
  std::size_t kept = 0;
  for (const std::uint32_t entry : waiting_) {
    if (leased(entry)) {
      waiting_[kept++] = entry;
    } else {
      free_entry(entry);
    }
  }
  waiting_.resize(kept);
}

// Least view that was published when a page was hidden that is still leased, as of the last scan; 0: there is none.
std::uint64_t Arena::oldest_hidden_view() const {
  std::uint64_t oldest = 0;
  for (const std::uint32_t entry : waiting_) {
    if (leased(entry)) oldest = older(oldest, pages_[entry].hidden_view);
  }
  return oldest;
}

}  // namespace stratakv
