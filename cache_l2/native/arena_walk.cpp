// Hiding and counting what an invalidation names, in bounded steps over the tree of pages; chains up to their roots.
#include <algorithm>
#include <stdexcept>

#include "arena.hpp"
#include "arena_leases.hpp"
#include "limits.hpp"

namespace stratakv {

// Whatever is named and visible at the first step is hidden at the last: it can't leave a walk's way but by leaving the
// tree. What is published between two steps was judged by the record already.
HideStep Arena::hide_step(const Selection& selection, std::uint64_t cursor, std::uint64_t work_max) {
  TreeWalk* walk = hides_.find(cursor);
  if (walk == nullptr) walk = &begin_walk(hides_, selection);  // lost: hiding again from the beginning does no harm
  walk->stepped = ++walk_steps_;
  HideStep out;
  for (std::uint64_t work = 0; work < work_max && walk->is_under_way(); ++work) {
    if (walk->going != kNoEntry) {
      out.pages += hide_onwards(*walk);
    } else if (!walk->is_entering) {
      move_on(*walk, selection);
    } else if (may_hide(walk->at, selection)) {
      walk->going = walk->at;
    } else {
      go_below(*walk);
    }
  }
  out.cursor = walk->number;
  if (out.pages != 0) reclaim();
  return out;
}

CountStep Arena::count_step(const Selection& selection, std::uint64_t cursor, std::uint64_t work_max, std::uint64_t census) {
  TreeWalk* walk = cursor == 0 ? &begin_count(selection, census) : counts_.find(cursor);
  if (walk == nullptr || (walk->census != 0 && walk->census != census_)) {
    throw std::invalid_argument("this count was ended by others that were begun since: begin it anew with cursor 0");
  }
  walk->stepped = ++walk_steps_;
  CountStep out;
  for (std::uint64_t work = 0; work < work_max && walk->is_under_way(); ++work) {
    if (!walk->is_entering) {
      if (walk->at == walk->selected) walk->selected = kNoEntry;
      move_on(*walk, selection);
      continue;
    }
    const bool is_visible = pages_[walk->at].state == PageState::kVisible;
    if (walk->selected == kNoEntry && is_visible && selection.matches_origin(view_.entries[walk->at])) walk->selected = walk->at;
    if (walk->selected != kNoEntry && is_visible && mark_counted(walk->at, walk->census)) {
      ++out.pages;
      out.bytes += payload_bytes_of(view_, walk->at);
    }
    go_below(*walk);
  }
  out.cursor = walk->number;
  return out;
}

std::optional<std::vector<PageKey>> Arena::chain(const PageKey& key, std::size_t pages_max) const {
  std::vector<PageKey> keys;
  for (std::uint32_t entry = index_.find(key); entry != kNoEntry; entry = pages_[entry].parent) {
    if (keys.size() == pages_max) return std::nullopt;
    keys.push_back(key_of(view_.entries[entry]));
  }
  std::reverse(keys.begin(), keys.end());
  return keys;
}

TreeWalk& Arena::begin_walk(TreeWalks& walks, const Selection& selection) {
  TreeWalk& walk = walks.begin(++walks_begun_);
  if (!selection.key) return walk;
  walk.next_namespace = kNamespacesMax;  // after the one page's subtree: nothing
  const std::uint32_t entry = index_.find(*selection.key);
  if (entry == kNoEntry) return walk;
  if (!selection.namespaces.contains(view_.entries[entry].namespace_slot.load(std::memory_order_relaxed))) return walk;
  walk.top = entry;
  walk.enter(entry);
  return walk;
}

TreeWalk& Arena::begin_count(const Selection& selection, std::uint64_t census) {
  if (census != 0 && census != census_) {
    census_ = census;
    counted_.assign(pages_.size(), false);
  }
  TreeWalk& walk = begin_walk(counts_, selection);
  walk.census = census;
  return walk;
}

// True the first time in a census; always, for a walk of none: it meets each page once.
bool Arena::mark_counted(std::uint32_t entry, std::uint64_t census) {
  if (census == 0) return true;
  if (counted_[entry]) return false;
  counted_[entry] = true;
  return true;
}

// A reservation goes when what it stands for is named by key or namespace; how it will come to be nobody knows yet.
bool Arena::may_hide(std::uint32_t entry, const Selection& selection) const {
  if (pages_[entry].state != PageState::kVisible) return !selection.names_origin();
  return selection.matches_origin(view_.entries[entry]);
}

// One step down, or one leaf hidden: what is left is prefix-closed at any time, with `at` the last to go.
std::uint64_t Arena::hide_onwards(TreeWalk& walk) {
  const std::uint32_t child = pages_[walk.going].first_child;
  if (child == kNoEntry) return hide_subtree(walk.going, HideCause::kInvalidated);  // takes the walk on
  walk.going = child;
  return 0;
}

void Arena::go_below(TreeWalk& walk) {
  const std::uint32_t child = pages_[walk.at].first_child;
  if (child != kNoEntry) {
    walk.enter(child);
  } else {
    walk.is_entering = false;
  }
}

// From a page that is done with to the next one, or to the roots of the next namespace.
void Arena::move_on(TreeWalk& walk, const Selection& selection) {
  if (walk.at != kNoEntry) {
    leave(walk, {pages_[walk.at].parent, pages_[walk.at].next_sibling});
    return;
  }
  while (walk.next_namespace < kNamespacesMax) {
    const std::uint32_t slot = walk.next_namespace++;
    if (!selection.namespaces.contains(slot) || namespaces_[slot].first_root == kNoEntry) continue;
    walk.enter(namespaces_[slot].first_root);
    return;
  }
  walk = TreeWalk{};
}

// Goes on behind the page at which the walk stands.
void Arena::leave(TreeWalk& walk, const TreePlace& place) {
  walk.is_entering = false;
  if (walk.at == walk.top) {
    walk.at = kNoEntry;
  } else if (place.next_sibling != kNoEntry) {
    walk.enter(place.next_sibling);
  } else {
    walk.at = place.parent;
  }
}

// `entry` leaves the tree, together with the subtree of which `place` was the place: nobody may go on standing on it.
void Arena::move_walks(std::uint32_t entry, const TreePlace& place) {
  const auto move = [&](TreeWalk& walk) {
    if (walk.selected == entry) walk.selected = kNoEntry;
    if (walk.at == entry) {
      walk.going = kNoEntry;
      leave(walk, place);
    }
    if (walk.going == entry) walk.going = place.parent;
    if (walk.top == entry) {
      walk.top = walk.at = kNoEntry;
      walk.is_entering = false;
    }
  };
  hides_.each(move);
  counts_.each(move);
}

}  // namespace stratakv
