// Parent and child links of pages, the roots of each namespace, and which pages are leaves that may be evicted.
#include "arena.hpp"

namespace stratakv {

Arena::NamespacePages& Arena::namespace_of(std::uint32_t entry) {
  return namespaces_[view_.entries[entry].namespace_slot.load(std::memory_order_relaxed)];
}

// Head of the list of siblings that a child is, or will be, in.
std::uint32_t& Arena::first_among(std::uint32_t parent, std::uint32_t child) {
  return parent == kNoEntry ? namespace_of(child).first_root : pages_[parent].first_child;
}

void Arena::link_child(std::uint32_t parent, std::uint32_t child) {
  Page& page = pages_[child];
  page.parent = parent;
  page.previous_sibling = kNoEntry;
  page.next_sibling = std::exchange(first_among(parent, child), child);
  if (page.next_sibling != kNoEntry) pages_[page.next_sibling].previous_sibling = child;
  if (parent != kNoEntry) refresh_leaf(parent);
}

void Arena::unlink_child(std::uint32_t child) {
  Page& page = pages_[child];
  const std::uint32_t parent = page.parent;
  if (page.previous_sibling != kNoEntry) {
    pages_[page.previous_sibling].next_sibling = page.next_sibling;
  } else {
    first_among(parent, child) = page.next_sibling;
  }
  if (page.next_sibling != kNoEntry) pages_[page.next_sibling].previous_sibling = page.previous_sibling;
  page.parent = page.next_sibling = page.previous_sibling = kNoEntry;
  if (parent != kNoEntry) refresh_leaf(parent);
}

// Brings the parked list, and what the eviction policy may choose, in line with what the page is now. Of pages that become
// visible, or are no more, it is told elsewhere.
void Arena::refresh_leaf(std::uint32_t entry) {
  const Page& page = pages_[entry];
  const bool may_go = page.state == PageState::kVisible && page.first_child == kNoEntry && entry != pinned_parent_ && !pins_.holds(entry);
  if (!may_go) unpark(entry);
  if (page.state != PageState::kVisible) return;
  if (may_go && page.parked_at == kNoEntry) {
    policy_.offer(entry);
  } else {
    policy_.withdraw(entry);
  }
}

// A leased leaf is no victim until a later survey finds it free.
void Arena::park(std::uint32_t entry) {
  policy_.withdraw(entry);
  pages_[entry].parked_at = static_cast<std::uint32_t>(parked_.size());
  parked_.push_back(entry);
}

void Arena::unpark(std::uint32_t entry) {
  const std::uint32_t at = pages_[entry].parked_at;
  if (at == kNoEntry) return;
  parked_[at] = parked_.back();
  pages_[parked_[at]].parked_at = at;
  parked_.pop_back();
  pages_[entry].parked_at = kNoEntry;
}

}  // namespace stratakv
