// Reserving slots for the pages of a chain: known pages are passed over, new ones get an entry, a slot and a deadline.
#include <stdexcept>

#include "arena.hpp"
#include "limits.hpp"

namespace stratakv {
namespace {

constexpr std::uint64_t kNsPerSecond = 1'000'000'000ULL;
constexpr std::uint64_t kNotesAtOnce = 4'096;  // a ms or so

}  // namespace

// Where a reserve call stands in its chain.
struct Arena::ReserveWalk {
  std::uint32_t size_class = 0;
  std::uint32_t parent = kNoEntry;
  std::size_t at = 0;                      // the page being reserved
  std::uint64_t missing = 0;               // pages of the rest that need room, this one included
  std::uint32_t stopped_by = kRefuseNone;  // all later pages are refused for the same reason
};

std::vector<Reserved> Arena::reserve(const ReserveRequest& request) {
  check_row(request.row, true);
  if (request.payload_bytes == 0) throw std::invalid_argument("payload_bytes must be positive");
  if (request.namespace_slot >= kNamespacesMax) {
    throw std::invalid_argument("namespace_slot must be below " + std::to_string(kNamespacesMax));
  }
  const AsTaker as_taker(taker_, shares_.of_namespace(request.namespace_slot));
  read_notes(kNotesAtOnce, request.now_ns);  // the look-up that these pages are put, or loaded, for among them
  ReserveWalk walk;
  const std::optional<std::uint32_t> size_class = segments_.class_of(request.payload_bytes);
  walk.size_class = size_class.value_or(0);
  bool absent = false;
  walk.parent = admit_parent(request, absent);
  if (!size_class) walk.stopped_by = kRefuseTooLarge;
  if (absent) walk.stopped_by = kRefuseParentAbsent;
  count_missing(request, walk);

  std::vector<Reserved> results;
  results.reserve(request.pages);
  for (std::size_t i = 0; i < request.pages; ++i) {
    walk.at = i;
    // Everything on the way to the page being reserved stays: pinning its parent pins all ancestors.
    pinned_parent_ = walk.parent;
    if (walk.parent != kNoEntry) refresh_leaf(walk.parent);
    results.push_back(reserve_one(request, walk, PageKey::load(request.keys + i * kKeyBytes)));
    const std::uint32_t was_pinned = std::exchange(pinned_parent_, kNoEntry);
    if (was_pinned != kNoEntry) refresh_leaf(was_pinned);
    counters_.known += !request.gives_way && results.back().status == kPutKnown;
    counters_.refused += !request.gives_way && results.back().status == kPutRefused;
    if (request.granted == nullptr) continue;
    counters_.posted += results.back().status == kPutStored;
    if (results.back().status != kPutStored) drop_grant(request.row, request.granted[i]);
  }
  return results;
}

void Arena::count_missing(const ReserveRequest& request, ReserveWalk& walk) const {
  walk.missing = 0;
  for (std::size_t i = walk.at; i < request.pages; ++i) {
    walk.missing += index_.find(PageKey::load(request.keys + i * kKeyBytes)) == kNoEntry;
  }
}

// The entry that keys[0] will stand on; `absent` when there is none to stand on.
std::uint32_t Arena::admit_parent(const ReserveRequest& request, bool& absent) {
  if (request.parent == nullptr) return kNoEntry;
  const std::uint32_t entry = index_.find(PageKey::load(request.parent));
  absent = true;
  if (entry == kNoEntry || !is_of_namespace(entry, request.namespace_slot)) return kNoEntry;
  const Page& page = pages_[entry];
  if (page.state == PageState::kReserved) {
    // Nor does a put stand on what is loaded, which may give way, or a load on what somebody stores.
    absent = page.row != request.row || request.now_ns > page.deadline_ns || page.gives_way != request.gives_way;
  } else if (expired(entry, request.now_ns)) {
    hide_expired(entry);
  } else {
    absent = false;
  }
  return absent ? kNoEntry : entry;
}

Reserved Arena::reserve_one(const ReserveRequest& request, ReserveWalk& walk, const PageKey& key) {
  Reserved result;
  evicted_keys_.prefetch(key);
  std::uint32_t entry = walk.stopped_by == kRefuseNone ? index_.find(key) : kNoEntry;
  bool has_gone = false;  // what was under the key, and what stood on it
  const bool is_over = entry != kNoEntry && pages_[entry].state == PageState::kVisible && expired(entry, request.now_ns);
  if (is_over && hide_expired(entry)) {  // an invalid page counts as absent (rule R4)
    has_gone = true;
  } else if (entry != kNoEntry && has_lost(entry, request)) {
    quarantine(entry);
    has_gone = true;
  }
  if (has_gone) {
    count_missing(request, walk);
    entry = kNoEntry;
  }
  // Who names a page as standing on what stands on it has lost the ground with it.
  if (walk.parent != kNoEntry && !may_be_stood_on(walk.parent)) {
    walk.parent = kNoEntry;
    walk.stopped_by = kRefuseParentAbsent;
  }
  if (walk.stopped_by == kRefuseNone && entry == kNoEntry) {
    result = take_reservation(request, walk, key);
  } else if (entry != kNoEntry && (is_over || pages_[entry].state == PageState::kReserved)) {
    result.reason = kRefuseBusy;
  } else if (entry != kNoEntry && pages_[entry].parent == walk.parent && is_of_namespace(entry, request.namespace_slot)) {
    AccessTimes& access = view_.access[entry];
    access.previous.store(access.last.load(std::memory_order_relaxed), std::memory_order_relaxed);
    access.last.store(request.now_ns, std::memory_order_relaxed);
    walk.parent = entry;
    result.status = kPutKnown;
  } else {
    result.reason = walk.stopped_by != kRefuseNone ? walk.stopped_by : static_cast<std::uint32_t>(kRefuseParentAbsent);
  }
  if (result.status == kPutRefused) walk.stopped_by = result.reason;
  return result;
}

// Whether a reservation in the way is none any more: its time is over, or it gives way.
bool Arena::has_lost(std::uint32_t entry, const ReserveRequest& request) {
  const Page& page = pages_[entry];
  if (page.state != PageState::kReserved) return false;
  if (request.now_ns > page.deadline_ns) return true;
  const bool gives_way = page.gives_way && !request.gives_way;
  counters_.gave_way += gives_way;
  return gives_way;
}

Reserved Arena::take_reservation(const ReserveRequest& request, ReserveWalk& walk, const PageKey& key) {
  Reserved result;
  ClientRow& client = rows_[request.row];
  // What was posted was told to be stored, and is a reservation for a moment only.
  if (request.granted == nullptr && client.reservations >= kReservationsPerRowMax) {
    result.reason = kRefuseQuota;
    return result;
  }
  const std::optional<std::uint32_t> taken = take_entry(request, walk);
  if (!taken) {
    result.reason = request.granted != nullptr ? kRefuseExpired : kRefuseFull;
    return result;
  }
  const std::uint32_t entry = *taken;
  Entry& shared = view_.entries[entry];
  // The fields are the reservation's from here on; its generation is odd until the commit.
  for (std::uint32_t i = 0; i < kKeyWords; ++i) shared.key[i].store(key.word[i], std::memory_order_relaxed);
  if (!index_.insert(key, entry)) {
    ++counters_.index_full;
    result.reason = kRefuseFull;
    end_grant(entry);
    return result;
  }
  const std::uint64_t offset = offset_of(entry);
  set_state(entry, PageState::kFree);  // of a grant's size
  note_taken(walk.size_class, key, request.now_ns);
  shared.place.store(offset / kSlotAlign << 32 | request.payload_bytes, std::memory_order_relaxed);
  shared.parent_and_expiry.store(request.expiry_s, std::memory_order_relaxed);
  shared.namespace_slot.store(request.namespace_slot, std::memory_order_relaxed);

  Page& page = pages_[entry];
  page.tenant = shares_.of_namespace(request.namespace_slot);
  set_state(entry, PageState::kReserved);
  page.gives_way = request.gives_way;
  page.deadline_ns = request.deadline_ns;
  page.next_in_row = client.first_reservation;
  if (page.next_in_row != kNoEntry) pages_[page.next_in_row].previous_in_row = entry;
  client.first_reservation = entry;
  ++client.reservations;
  link_child(walk.parent, entry);

  const std::uint64_t generation = shared.generation.load(std::memory_order_relaxed);
  reservation_deadlines_.push({request.deadline_ns, entry, static_cast<std::uint32_t>(generation)},
                              [&](const TimedItem& item) { return is_due_still(item); });
  walk.parent = entry;
  --walk.missing;
  result.status = kPutStored;
  result.reservation = generation << 32 | (entry + 1);
  result.offset = offset;
  return result;
}

// An entry with a slot, as granted ones are: the one that the page was posted in, or a new one.
std::optional<std::uint32_t> Arena::take_entry(const ReserveRequest& request, const ReserveWalk& walk) {
  if (request.granted != nullptr) return adopt_grant(request.row, request.granted[walk.at], walk.size_class);
  if (!find_room(request, walk)) return std::nullopt;
  return take_slot(request.row, walk.size_class);
}

// A put that asks for room takes what its own client has in advance before anything is evicted, and everybody's before it is
// refused, or makes room in its own share that others have in advance.
bool Arena::find_room(const ReserveRequest& request, const ReserveWalk& walk) {
  const bool has_room = !free_entries_.empty() && segments_.available(walk.size_class) > 0;
  if (!has_room) recall_grants_of_class(request.row, walk.size_class);
  const bool has_grants = tally(PageState::kGranted).pages != 0;
  if (make_room(walk.size_class, walk.missing, !request.gives_way, request.now_ns, has_grants)) return true;
  if (tally(PageState::kGranted).pages == 0) return false;
  recall_every_grant();
  return make_room(walk.size_class, walk.missing, !request.gives_way, request.now_ns);
}

bool Arena::expired(std::uint32_t entry, std::uint64_t now_ns) const {
  const std::uint64_t expiry_s = view_.entries[entry].parent_and_expiry.load(std::memory_order_relaxed) & 0xFFFFFFFFu;
  return expiry_s != 0 && expiry_s <= now_ns / kNsPerSecond;
}

bool Arena::may_be_stood_on(std::uint32_t entry) const {
  const Page& page = pages_[entry];
  return page.state == PageState::kVisible || (page.state == PageState::kReserved && !page.cut_off);
}

bool Arena::is_of_namespace(std::uint32_t entry, std::uint64_t namespace_slot) const {
  return view_.entries[entry].namespace_slot.load(std::memory_order_relaxed) == namespace_slot;
}

}  // namespace stratakv
