// The end of a reservation: published, refused, aborted, or set aside because its writer is late or gone.
#include <stdexcept>

#include "arena.hpp"
#include "pauses.hpp"

namespace stratakv {

std::vector<Committed> Arena::commit(std::uint32_t row, const std::vector<std::uint64_t>& reservations,
                                     const CommitStamp& stamp, std::uint64_t now_ns) {
  check_row(row, true);
  std::vector<Committed> results;
  results.reserve(reservations.size());
  for (const std::uint64_t reservation : reservations) {
    const std::optional<std::uint32_t> entry = reservation_entry(row, reservation);
    results.push_back(entry ? commit_one(*entry, stamp, now_ns) : Committed{kPutRefused, kRefuseExpired});
    counters_.stored += results.back().status == kPutStored;
    counters_.refused += results.back().status == kPutRefused;
  }
  return results;
}

void Arena::abort(std::uint32_t row, const std::vector<std::uint64_t>& reservations) {
  check_row(row, true);
  for (const std::uint64_t reservation : reservations) {
    const std::optional<std::uint32_t> entry = reservation_entry(row, reservation);
    if (entry) end_reservation(*entry);
  }
}

// The entry of a reservation that this row still holds.
std::optional<std::uint32_t> Arena::reservation_entry(std::uint32_t row, std::uint64_t reservation) const {
  const auto entry = static_cast<std::uint32_t>(reservation) - 1;
  if (entry >= pages_.size()) return std::nullopt;
  const Page& page = pages_[entry];
  const bool held = page.state == PageState::kReserved || page.state == PageState::kQuarantined;
  const std::uint64_t generation = view_.entries[entry].generation.load(std::memory_order_relaxed);
  if (!held || page.row != row || (generation & 0xFFFFFFFFu) != reservation >> 32) return std::nullopt;
  return entry;
}

Committed Arena::commit_one(std::uint32_t entry, const CommitStamp& stamp, std::uint64_t now_ns) {
  const Page& page = pages_[entry];
  std::uint32_t reason = kRefuseNone;
  if (page.state == PageState::kQuarantined || now_ns > page.deadline_ns) {
    reason = kRefuseExpired;
  } else if (page.cut_off) {
    reason = page.reason;
  } else if (page.parent != kNoEntry && pages_[page.parent].state != PageState::kVisible) {
    reason = kRefuseParentAbsent;  // committed out of order: nobody could reach it
  }
  if (reason != kRefuseNone) {
    // Whoever asks for the commit has finished writing, so the slot may be reused.
    end_reservation(entry);
    return {kPutRefused, reason};
  }
  publish(entry, stamp, now_ns);
  return {kPutStored, kRefuseNone};
}

void Arena::publish(std::uint32_t entry, const CommitStamp& stamp, std::uint64_t now_ns) {
  Entry& shared = view_.entries[entry];
  Page& page = pages_[entry];
  const std::uint64_t expiry_s = shared.parent_and_expiry.load(std::memory_order_relaxed) & 0xFFFFFFFFu;
  std::uint64_t parent_generation = 0;
  std::uint64_t parent_plus_one = 0;
  if (page.parent != kNoEntry) {
    parent_generation = view_.entries[page.parent].generation.load(std::memory_order_relaxed);
    parent_plus_one = page.parent + 1;
  }
  shared.parent_generation.store(parent_generation, std::memory_order_relaxed);
  shared.parent_and_expiry.store(parent_plus_one << 32 | expiry_s, std::memory_order_relaxed);
  shared.incarnation[0].store(stamp.incarnation[0], std::memory_order_relaxed);
  shared.incarnation[1].store(stamp.incarnation[1], std::memory_order_relaxed);
  shared.revision.store(stamp.revision, std::memory_order_relaxed);
  shared.producer.store(stamp.producer, std::memory_order_relaxed);
  shared.computed_from_ms.store(stamp.computed_from_ms, std::memory_order_relaxed);
  shared.computed_until_ms.store(stamp.computed_until_ms, std::memory_order_relaxed);
  shared.committed_ns.store(now_ns, std::memory_order_relaxed);
  view_.access[entry].last.store(0, std::memory_order_relaxed);
  view_.access[entry].previous.store(0, std::memory_order_relaxed);
  const std::uint64_t generation = shared.generation.load(std::memory_order_relaxed) + 1;
  pause_here();  // written, not published
  shared.generation.store(generation, std::memory_order_release);

  unlink_reservation(entry);
  set_state(entry, PageState::kVisible);
  auto& of_namespace = namespaces_[shared.namespace_slot.load(std::memory_order_relaxed)];
  ++of_namespace.pages;
  of_namespace.bytes += shared.place.load(std::memory_order_relaxed) & 0xFFFFFFFFu;
  if (expiry_s != 0) schedule_expiry({expiry_s, entry, generation});
  refresh_leaf(entry);
}

// Ends a reservation without publishing it and frees its slot.
void Arena::end_reservation(std::uint32_t entry) {
  if (pages_[entry].state == PageState::kReserved && !pages_[entry].cut_off) {
    unlink_child(entry);
    cut_off_children(entry);
    index_.remove(key_of(view_.entries[entry]), entry);
  }
  unlink_reservation(entry);
  Word& generation = view_.entries[entry].generation;
  generation.store(generation.load(std::memory_order_relaxed) + 2, std::memory_order_release);  // ends the id
  free_entry(entry);
}

// The writer is late or has lost its connection but may still write: the key is free for others, the slot is not.
void Arena::quarantine(std::uint32_t entry) {
  Page& page = pages_[entry];
  if (!page.cut_off) {
    unlink_child(entry);
    cut_off_children(entry);
    index_.remove(key_of(view_.entries[entry]), entry);
  }
  set_state(entry, PageState::kQuarantined);
}

void Arena::cut_off_children(std::uint32_t entry) {
  while (pages_[entry].first_child != kNoEntry) hide_subtree(pages_[entry].first_child, HideCause::kCapacity);
}

// Takes a reservation out of tree and index (its links are cut by the caller); its slot stays its writer's.
void Arena::cut_off(std::uint32_t entry, std::uint32_t reason) {
  index_.remove(key_of(view_.entries[entry]), entry);
  pages_[entry].cut_off = true;
  pages_[entry].reason = reason;
}

void Arena::unlink_reservation(std::uint32_t entry) {
  Page& page = pages_[entry];
  ClientRow& client = rows_[page.row];
  if (page.previous_in_row != kNoEntry) {
    pages_[page.previous_in_row].next_in_row = page.next_in_row;
  } else {
    client.first_reservation = page.next_in_row;
  }
  if (page.next_in_row != kNoEntry) pages_[page.next_in_row].previous_in_row = page.previous_in_row;
  page.next_in_row = page.previous_in_row = kNoEntry;
  --client.reservations;
}

}  // namespace stratakv
