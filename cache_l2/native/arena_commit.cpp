// The end of a reservation: published, refused, aborted, or set aside because its writer is late or gone.
#include <stdexcept>

#include "arena.hpp"
#include "limits.hpp"
#include "pauses.hpp"

namespace stratakv {
namespace {

constexpr std::uint64_t kNsPerSecond = 1'000'000'000ULL;

}  // namespace

// What one call is told of the page that its request reused, and how far that was followed up.
struct Arena::Lineage {
  std::uint64_t rests_on;
  std::uint64_t steps_left = kAncestorsWalkedMax;
  std::uint32_t last = kNoEntry;  // the page asked for last: what it stands on is what its child stands on
  bool is_last_known = false;
};

std::vector<Committed> Arena::commit(std::uint32_t row, const std::vector<std::uint64_t>& reservations,
                                     const CommitStamp& stamp, std::uint64_t now_ns) {
  check_row(row, true);
  std::vector<Committed> results;
  results.reserve(reservations.size());
  Lineage lineage{stamp.rests_on};
  for (const std::uint64_t reservation : reservations) {
    const std::optional<std::uint32_t> entry = reservation_entry(row, reservation);
    results.push_back(entry ? commit_one(*entry, stamp, now_ns, lineage) : Committed{kPutRefused, kRefuseExpired});
    counters_.stored += results.back().status == kPutStored;
    counters_.refused += results.back().status == kPutRefused;
  }
  return results;
}

std::vector<bool> Arena::lineage_known(std::uint32_t row, const std::vector<std::uint64_t>& reservations,
                                       std::uint64_t rests_on) const {
  check_row(row, true);
  std::vector<bool> results;
  results.reserve(reservations.size());
  Lineage lineage{rests_on};
  for (const std::uint64_t reservation : reservations) {
    const std::optional<std::uint32_t> entry = reservation_entry(row, reservation);
    results.push_back(entry && is_lineage_known(*entry, lineage));
  }
  return results;
}

// Whether the page that the request reused is among a page's ancestors, the very one and not another under its key: then
// they are all that it was computed from. What costs more steps than a call may take counts as no.
bool Arena::is_lineage_known(std::uint32_t entry, Lineage& lineage) const {
  bool is_known = lineage.rests_on == kNoInstance;
  const std::optional<std::uint32_t> reused = entry_of(lineage.rests_on);
  std::uint32_t at = is_known || !reused ? kNoEntry : pages_[entry].parent;
  for (; at != kNoEntry && lineage.steps_left > 0 && !is_known; at = pages_[at].parent, --lineage.steps_left) {
    is_known = at == *reused;
    if (at != lineage.last) continue;
    is_known = is_known || lineage.is_last_known;
    break;
  }
  lineage.last = entry;
  lineage.is_last_known = is_known;
  return is_known;
}

Committed Arena::publish_loaded(std::uint32_t row, std::uint64_t reservation, const CommitStamp& stamp, std::uint64_t birth,
                                std::uint64_t now_ns) {
  check_row(row, true);
  if (birth == kNoInstance || birth == kUnknownInstance) throw std::invalid_argument("birth is none of the reserved numbers");
  const std::optional<std::uint32_t> entry = reservation_entry(row, reservation);
  Committed out{kPutRefused, kRefuseExpired};
  if (!entry || refuse(*entry, now_ns, out)) return out;
  pages_[*entry].birth = birth;
  pages_[*entry].rests_on = stamp.rests_on;
  publish(*entry, stamp, has_line_above(*entry, stamp.rests_on), now_ns);
  policy_.set_elsewhere(*entry, true);  // it is where it came from
  ++counters_.loaded;
  return {kPutStored, kRefuseNone};
}

bool Arena::loaded_lineage_known(std::uint32_t row, std::uint64_t reservation, std::uint64_t rests_on) const {
  check_row(row, true);
  const std::optional<std::uint32_t> entry = reservation_entry(row, reservation);
  return entry && has_line_above(*entry, rests_on);
}

// Whether a page of that line is among a page's ancestors: the very computation on the very computations below it, whichever
// arena they were made in. Its birth alone would not do: the same page may stand on others elsewhere, and what was computed
// from both would lose an ancestor on its way. An ancestor that rests on the same page knows already: what it stands on
// doesn't change while it is there.
bool Arena::has_line_above(std::uint32_t entry, std::uint64_t line) const {
  if (line == kNoInstance || line == kUnknownInstance) return line == kNoInstance;
  std::uint32_t at = pages_[entry].parent;
  for (std::uint64_t left = kAncestorsWalkedMax; at != kNoEntry && left > 0; at = pages_[at].parent, --left) {
    if (pages_[at].line == line) return true;
    if (pages_[at].rests_on != line) continue;
    return (view_.entries[at].producer.load(std::memory_order_relaxed) & kLineageUnknown) == 0;
  }
  return false;
}

// Of the page that the request reused, if it is the very one among a page's ancestors.
std::uint64_t Arena::line_among_ancestors(std::uint32_t entry, Lineage& lineage) const {
  if (lineage.rests_on == kNoInstance) return kNoInstance;
  if (!is_lineage_known(entry, lineage)) return kUnknownInstance;
  return pages_[static_cast<std::uint32_t>(lineage.rests_on) - 1].line;
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

Committed Arena::commit_one(std::uint32_t entry, const CommitStamp& stamp, std::uint64_t now_ns, Lineage& lineage) {
  Committed out;
  if (refuse(entry, now_ns, out)) return out;
  pages_[entry].rests_on = line_among_ancestors(entry, lineage);
  pages_[entry].birth = births_.draw();
  publish(entry, stamp, pages_[entry].rests_on != kUnknownInstance, now_ns);
  return {kPutStored, kRefuseNone};
}

// Ends a reservation that must not be published; false where nothing speaks against it.
bool Arena::refuse(std::uint32_t entry, std::uint64_t now_ns, Committed& out) {
  const Page& page = pages_[entry];
  std::uint32_t reason = kRefuseNone;
  if (page.state == PageState::kQuarantined || now_ns > page.deadline_ns) {
    reason = kRefuseExpired;
  } else if (page.cut_off) {
    reason = page.reason;
  } else if (page.parent != kNoEntry && pages_[page.parent].state != PageState::kVisible) {
    reason = kRefuseParentAbsent;  // committed out of order: nobody could reach it
  }
  if (reason == kRefuseNone) return false;
  end_reservation(entry);  // whoever asks for the commit has finished writing, so the slot may be reused
  out = {kPutRefused, reason};
  return true;
}

void Arena::publish(std::uint32_t entry, const CommitStamp& stamp, bool lineage_known, std::uint64_t now_ns) {
  Entry& shared = view_.entries[entry];
  Page& page = pages_[entry];
  std::uint64_t expiry_s = shared.parent_and_expiry.load(std::memory_order_relaxed) & 0xFFFFFFFFu;
  if (stamp.expiry_s != 0 && (expiry_s == 0 || stamp.expiry_s < expiry_s)) expiry_s = stamp.expiry_s;
  std::uint64_t parent_generation = 0;
  std::uint64_t parent_plus_one = 0;
  if (page.parent != kNoEntry) {
    parent_generation = view_.entries[page.parent].generation.load(std::memory_order_relaxed);
    parent_plus_one = page.parent + 1;
  }
  page.line = Births::line(page.parent == kNoEntry ? 0 : pages_[page.parent].line, page.birth);
  shared.parent_generation.store(parent_generation, std::memory_order_relaxed);
  shared.parent_and_expiry.store(parent_plus_one << 32 | expiry_s, std::memory_order_relaxed);
  shared.incarnation[0].store(stamp.incarnation[0], std::memory_order_relaxed);
  shared.incarnation[1].store(stamp.incarnation[1], std::memory_order_relaxed);
  shared.revision.store(stamp.revision, std::memory_order_relaxed);
  shared.producer.store(stamp.producer | (lineage_known ? 0 : kLineageUnknown), std::memory_order_relaxed);
  shared.computed_from_ms.store(stamp.computed_from_ms, std::memory_order_relaxed);
  shared.computed_until_ms.store(stamp.computed_until_ms, std::memory_order_relaxed);
  shared.committed_ns.store(now_ns, std::memory_order_relaxed);
  view_.access[entry].last.store(0, std::memory_order_relaxed);
  view_.access[entry].previous.store(0, std::memory_order_relaxed);
  const std::uint64_t generation = shared.generation.load(std::memory_order_relaxed) + 1;
  pause_here();  // written, not published
  shared.generation.store(generation, std::memory_order_release);

  unlink_reservation(entry);
  page.depth = page.parent == kNoEntry ? 0 : pages_[page.parent].depth + 1;
  set_state(entry, PageState::kVisible);
  Tally& resident = namespace_of(entry).resident;
  ++resident.pages;
  resident.bytes += shared.place.load(std::memory_order_relaxed) & 0xFFFFFFFFu;
  policy_.insert(entry, page.parent, digest_of(key_of(shared)), queue_of(entry), now_ns, expiry_s * kNsPerSecond);
  if (expiry_s != 0) schedule_expiry({expiry_s, entry, static_cast<std::uint32_t>(generation)});
  if (!pins_.empty()) hold_if_pinned(entry);
  refresh_leaf(entry);
}

// Ends a reservation without publishing it and frees its slot.
void Arena::end_reservation(std::uint32_t entry) {
  if (pages_[entry].state == PageState::kReserved && !pages_[entry].cut_off) take_out(entry);
  unlink_reservation(entry);
  Word& generation = view_.entries[entry].generation;
  generation.store(generation.load(std::memory_order_relaxed) + 2, std::memory_order_release);  // ends the id
  free_entry(entry);
}

// The writer is late or has lost its connection but may still write: the key is free for others, the slot is not.
void Arena::quarantine(std::uint32_t entry) {
  if (!pages_[entry].cut_off) take_out(entry);
  set_state(entry, PageState::kQuarantined);
}

// Takes a reservation out of tree and index, and cuts off what was reserved on top of it.
void Arena::take_out(std::uint32_t entry) {
  while (pages_[entry].first_child != kNoEntry) hide_subtree(pages_[entry].first_child, HideCause::kCapacity);
  const TreePlace place{pages_[entry].parent, pages_[entry].next_sibling};
  unlink_child(entry);
  move_walks(entry, place);
  index_.remove(key_of(view_.entries[entry]), entry);
}

// Takes a reservation out of tree and index (its links are cut by the caller); its slot stays its writer's.
void Arena::cut_off(std::uint32_t entry, std::uint32_t reason) {
  index_.remove(key_of(view_.entries[entry]), entry);
  pages_[entry].cut_off = true;
  pages_[entry].reason = static_cast<std::uint8_t>(reason);
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
