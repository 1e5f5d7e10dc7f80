// Invariants between the writer's private structures and what readers see, walked for tests and --debug.
#include <stdexcept>

#include "arena.hpp"
#include "limits.hpp"

namespace stratakv {
namespace {

void require(bool holds, std::uint32_t entry, const char* what) {
  if (!holds) throw std::runtime_error("entry " + std::to_string(entry) + ": " + what);
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace

void Arena::check_invariants() {
  segments_.check();
  check_index();
  check_roots();
  check_pins();
  check_shares();
  std::vector<Tally> namespaces(kNamespacesMax);
  std::vector<std::uint64_t> entries(kNamespacesMax);
  std::vector<std::uint32_t> reservations(rows_.size());
  std::uint64_t granted = 0;
  Tally seen[kPageStates];
  for (std::uint32_t entry = 0; entry < pages_.size(); ++entry) {
    const Page& page = pages_[entry];
    check_entry(entry);
    Tally& of_state = seen[static_cast<std::size_t>(page.state)];
    ++of_state.pages;
    if (page.state != PageState::kFree && page.state != PageState::kGranted) ++entries[view_.entries[entry].namespace_slot.load(std::memory_order_relaxed)];
    of_state.bytes += view_.entries[entry].place.load(std::memory_order_relaxed) & 0xFFFFFFFFu;
    if (page.state == PageState::kReserved || page.state == PageState::kQuarantined) ++reservations[page.row];
    if (page.state == PageState::kVisible) {
      auto& sum = namespaces[view_.entries[entry].namespace_slot.load(std::memory_order_relaxed)];
      ++sum.pages;
      sum.bytes += view_.entries[entry].place.load(std::memory_order_relaxed) & 0xFFFFFFFFu;
    }
  }
  require(seen[0].pages == free_entries_.size(), "the list of free entries is wrong");
  require(tally(PageState::kHidden).pages == waiting_.size(), "the list of hidden pages that wait for leases is wrong");
  for (std::size_t state = 1; state < kPageStates; ++state) {
    const bool equal = seen[state].pages == tallies_[state].pages && seen[state].bytes == tallies_[state].bytes;
    require(equal, "the pages or bytes in state " + std::to_string(state) + " are miscounted");
  }
  for (std::uint32_t row = 0; row < rows_.size(); ++row) {
    require(reservations[row] == rows_[row].reservations, "row " + std::to_string(row) + " miscounts its reservations");
    for (const std::uint32_t entry : rows_[row].grants) {
      if (entry == kNoEntry) continue;
      require(pages_[entry].state == PageState::kGranted && pages_[entry].row == row, entry, "is wrongly listed as granted");
      ++granted;
    }
  }
  require(granted == tally(PageState::kGranted).pages, "a granted slot is no row's");
  for (std::size_t number = 0; number < kNamespacesMax; ++number) {
    const Tally& resident = namespaces_[number].resident;
    const bool equal = resident.pages == namespaces[number].pages && resident.bytes == namespaces[number].bytes;
    require(equal, "namespace " + std::to_string(number) + " miscounts its resident pages");
    require(namespaces_[number].entries == entries[number], "namespace " + std::to_string(number) + " miscounts its entries");
  }
}

void Arena::check_roots() const {
  std::uint64_t listed = 0;
  std::uint64_t roots = 0;
  for (std::size_t number = 0; number < kNamespacesMax; ++number) {
    for (std::uint32_t root = namespaces_[number].first_root; root != kNoEntry; root = pages_[root].next_sibling) {
      require(pages_[root].parent == kNoEntry && is_of_namespace(root, number), root, "is wrongly listed as a root");
      ++listed;
    }
  }
  for (const Page& page : pages_) {
    const bool in_tree = page.state == PageState::kVisible || (page.state == PageState::kReserved && !page.cut_off);
    roots += in_tree && page.parent == kNoEntry;
  }
  require(listed == roots, "the lists of roots miss a page");
}

void Arena::check_index() const {
  std::uint64_t ways = 0;
  std::uint64_t expected = 0;
  for (std::uint32_t b = 0; b < view_.geometry.buckets; ++b) {
    for (const Word& way : view_.buckets[b].way) {
      const std::uint64_t value = way.load(std::memory_order_relaxed);
      if (value == 0) continue;
      ++ways;
      const auto entry = static_cast<std::uint32_t>(value) - 1;
      require(entry < pages_.size(), "bucket " + std::to_string(b) + " names an entry beyond the table");
      require(index_.find(key_of(view_.entries[entry])) == entry, entry, "is not what the index finds under its key");
    }
  }
  for (const Page& page : pages_) {
    expected += page.state == PageState::kVisible || (page.state == PageState::kReserved && !page.cut_off);
  }
  require(ways == expected, "the index holds " + std::to_string(ways) + " entries instead of " + std::to_string(expected));
}

void Arena::check_entry(std::uint32_t entry) const {
  const Page& page = pages_[entry];
  const Entry& shared = view_.entries[entry];
  const std::uint64_t generation = shared.generation.load(std::memory_order_relaxed);
  const bool is_visible = page.state == PageState::kVisible;
  require((generation % 2 == 0) == is_visible, entry, "its generation contradicts its state");
  if (page.state == PageState::kFree) {
    require(page.first_child == kNoEntry && page.parent == kNoEntry, entry, "is free but linked");
    return;
  }
  const std::uint64_t place = shared.place.load(std::memory_order_relaxed);
  const std::uint64_t offset = (place >> 32) * kSlotAlign;
  const std::uint32_t segment = segments_.segment_of(offset);
  require(segment < segments_.total(), entry, "its place is beyond the arena");
  const auto& owners = segments_.owners(segment);
  const std::uint64_t within = offset % view_.geometry.segment_bytes;
  const std::uint64_t slot = within / segments_.slot_bytes(page.size_class);
  require(slot < owners.size() && owners[slot] == entry, entry, "does not own its slot");

  const bool in_tree = is_visible || (page.state == PageState::kReserved && !page.cut_off);
  require(in_tree || (page.parent == kNoEntry && page.first_child == kNoEntry), entry, "left the tree but is linked");
  if (in_tree) check_links(entry);
  const bool leaf = is_visible && page.first_child == kNoEntry && !pins_.holds(entry);
  require(policy_.resident(entry) == (page.state == PageState::kVisible), entry, "is (not) known to the eviction policy");
  require(!policy_.resident(entry) || policy_.parent(entry) == page.parent, entry, "stands on another page for the eviction policy");
  require(leaf == (policy_.is_offered(entry) || page.parked_at != kNoEntry), entry, "is wrongly (not) offered as a victim");
  require(!(policy_.is_offered(entry) && page.parked_at != kNoEntry), entry, "is parked and offered at once");
}

void Arena::check_links(std::uint32_t entry) const {
  const Page& page = pages_[entry];
  const Entry& shared = view_.entries[entry];
  for (std::uint32_t child = page.first_child; child != kNoEntry; child = pages_[child].next_sibling) {
    require(pages_[child].parent == entry, child, "is listed by a page that is not its parent");
  }
  if (page.parent != kNoEntry) {
    const Page& parent = pages_[page.parent];
    require(is_of_namespace(page.parent, shared.namespace_slot.load(std::memory_order_relaxed)), entry,
            "stands on a page of another namespace");
    const std::uint32_t before = page.previous_sibling;
    const std::uint32_t listed = before == kNoEntry ? parent.first_child : pages_[before].next_sibling;
    require(listed == entry, entry, "is not listed by its parent");
    require(parent.state == PageState::kVisible || page.state != PageState::kVisible, entry, "is visible but its parent is not");
  }
  if (page.state != PageState::kVisible) return;
  const std::uint64_t parent_plus_one = shared.parent_and_expiry.load(std::memory_order_relaxed) >> 32;
  require(parent_plus_one == static_cast<std::uint32_t>(page.parent + 1), entry, "tells readers another parent");
  require(depth_of(entry) == (page.parent == kNoEntry ? 0 : depth_of(page.parent) + 1), entry, "miscounts the pages below it");
  require(page_below(entry) == page.parent, entry, "leads a scan of the leases to another parent");
  if (page.parent == kNoEntry) return;
  const std::uint64_t parent_generation = view_.entries[page.parent].generation.load(std::memory_order_relaxed);
  require(shared.parent_generation.load(std::memory_order_relaxed) == parent_generation, entry,
          "tells readers another generation of its parent");
}

}  // namespace stratakv
