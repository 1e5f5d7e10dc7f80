// Look-ups by rules R16 and R17, copies with their final checks, page accounting by rule R20.
#include "reader.hpp"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "clock.hpp"
#include "copy_kernels.hpp"
#include "fences.hpp"
#include "notes.hpp"
#include "outcomes.hpp"
#include "pauses.hpp"

namespace stratakv {
namespace {

constexpr int kAttempts = 5;                      // of one look-up while events keep arriving, or pages keep going under it
constexpr std::uint64_t kNoDeadline = ~0ULL;      // until the look-up has read its clock
constexpr std::uint64_t kNsPerSecond = 1'000'000'000ULL;

// Scratch of one thread, so that look-ups allocate nothing once they have run.
template <typename T>
T* scratch(std::size_t count) {
  thread_local std::vector<T> buffer;
  if (buffer.size() < count) buffer.resize(std::max<std::size_t>(count, 64));
  return buffer.data();
}

// Cuts a result to the pages whose time to live is not over.
void cut_expired(const FoundPage* pages, const Walk& walk, LookUpResult& result) {
  const std::uint64_t now_s = result.now_ns / kNsPerSecond;
  if (walk.expiry_s_min > now_s || walk.expiry_s_min == 0xFFFFFFFFu) return;
  const auto over = [&](std::uint32_t expiry_s) { return expiry_s != 0 && expiry_s <= now_s; };
  std::size_t kept = 0;
  if (!over(walk.parent.expiry_s)) {
    while (kept < result.pages && !over(pages[kept].expiry_s)) ++kept;
  }
  if (kept < result.pages || over(walk.parent.expiry_s)) result.reason = kMissExpired;
  result.pages = kept;
}

}  // namespace

std::shared_ptr<Reader> Reader::attach(
    Descriptor control, Descriptor clients, Descriptor data, Descriptor doorbell, std::uint32_t row,
    const std::uint8_t life[16], bool writable, bool prefault, bool first_use) {
  const std::uint64_t control_bytes = sealed_size(control.get(), "control");
  const std::uint64_t clients_bytes = sealed_size(clients.get(), "clients");
  const std::uint64_t data_bytes = sealed_size(data.get(), "data");
  if (control_bytes < sizeof(Header)) throw std::invalid_argument("the control file is shorter than its header");
  auto control_map = std::make_unique<Mapping>(control.get(), control_bytes, false);
  const Geometry geometry = read_header(control_map->data(), control_bytes, life);
  const Prefault index = prefault ? Prefault::kUsed : Prefault::kNo;  // the arena's own mappings came first
  control_map->prepare(geometry.wish_huge_pages(), index);
  if (geometry.clients_bytes > clients_bytes || geometry.data_bytes > data_bytes) {
    throw std::invalid_argument("the clients or data file is shorter than the control file says");
  }
  if (row >= geometry.rows) {
    throw std::invalid_argument("row " + std::to_string(row) + " is beyond the arena's " + std::to_string(geometry.rows));
  }
  auto clients_map = std::make_unique<Mapping>(clients.get(), clients_bytes, true);
  clients_map->prepare(geometry.wish_huge_pages(), index);
  auto data_map = std::make_unique<Mapping>(data.get(), data_bytes, writable);
  data_map->prepare(geometry.wish_huge_pages(), Prefault::kNo);
  const ArenaView view = view_of(geometry, control_map->data(), clients_map->data(), data_map->data());
  auto reader = std::make_shared<Reader>(view, row, writable, std::move(doorbell));
  reader->control_ = std::move(control_map);
  reader->clients_ = std::move(clients_map);
  reader->data_ = std::move(data_map);
  if (prefault) reader->prefault_ = std::make_unique<BackgroundPrefault>(*reader->data_, first_use);
  return reader;
}

Reader::Reader(const ArenaView& view, std::uint32_t row, bool writable, Descriptor doorbell)
    : doorbell_(std::move(doorbell)), view_(view), row_(row), writable_(writable), slots_(view.geometry.leases_per_row) {}

std::pair<int, StampedView> Reader::begin_request(std::optional<std::uint64_t> view) {
  const std::uint64_t present = view_number();
  if (view && (*view == 0 || *view > present)) {
    throw std::invalid_argument("view " + std::to_string(*view) + " is none of the " + std::to_string(present) + " published ones");
  }
  const std::uint32_t slot = requests_.claim();
  const bool got = slot != kNoSlot;
  // Published before the stamp is read: `drained` must never miss a request that works on an older view (rule R19).
  if (got) row().request_view[slot].store(view.value_or(present), std::memory_order_seq_cst);
  fence_seq_cst();
  const std::optional<StampedView> stamp = read_stamp(view_);
  if (!stamp) {
    if (got) end_request(slot);
    throw std::runtime_error("events overwrite the ring faster than it can be read; make ring_records larger");
  }
  return {got ? static_cast<int>(slot) : -1, *stamp};
}

std::pair<std::uint64_t, std::uint64_t> Reader::claim_freshness(std::optional<std::uint64_t> freshness_ns) {
  // What is claimed past F outlives what a fence waits out, so that the log must know of it first: only KEEP may, without limit.
  const bool unlimited = freshness_ns == kNoLimit && row().engine.load(std::memory_order_relaxed) == kEngineKeep &&
                         keep_granted();
  const std::uint64_t granted = unlimited ? kNoLimit : this->freshness_ns();
  const std::uint64_t claimed = std::min(freshness_ns.value_or(granted), granted);
  row().own_freshness_ns.store(claimed, std::memory_order_release);
  fence_seq_cst();  // pairs with those behind publishing a view and closing the header (arena.cpp)
  const std::uint64_t view = view_number();
  if (!closed()) return {claimed, view};
  row().own_freshness_ns.store(0, std::memory_order_release);  // a sidecar that leaves in order takes nobody's claim with it
  return {0, 0};
}

// Release: what the client did about the events up to this view is done before the sidecar sees it.
void Reader::advance_request(std::uint32_t slot, std::uint64_t view) {
  if (slot >= kRequestViews) throw std::invalid_argument("no such request slot: " + std::to_string(slot));
  if (view > view_number()) throw std::invalid_argument("view " + std::to_string(view) + " is not published yet");
  Word& shared = row().request_view[slot];
  std::uint64_t seen = shared.load(std::memory_order_relaxed);
  do {
    if (seen == 0) throw std::invalid_argument("no request holds slot " + std::to_string(slot));
  } while (seen < view && !shared.compare_exchange_weak(seen, view, std::memory_order_release, std::memory_order_relaxed));
}

void Reader::end_request(std::uint32_t slot) {
  if (slot >= kRequestViews) throw std::invalid_argument("no such request slot: " + std::to_string(slot));
  if (row().request_view[slot].exchange(0, std::memory_order_acq_rel) != 0) requests_.release(slot);
}

LookUpResult Reader::match(const Chain& chain) {
  LookUpResult result = match_once(chain);
  std::uint64_t until_ns = 0;
  while (chain.may_await && result.reason == kMissAbsent && await_posted(chain.key(result.pages), until_ns)) {
    result = match_once(chain);
  }
  return result;
}

LookUpResult Reader::match_once(const Chain& chain) {
  FoundPage* found = scratch<FoundPage>(chain.wanted());
  LookUpResult result;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    result = LookUpResult{};
    if (closed()) {
      result.reason = kMissClosed;
      return result;
    }
    const std::uint64_t freshness = freshness_ns();  // F first, then the view (rule R16)
    result.view = view_number();
    const Walk walk = walk_chain(view_, chain, found);
    result.pages = walk.pages;
    result.collisions = walk.collisions;
    result.reason = walk.pages == chain.wanted() ? kMissNone : kMissAbsent;
    result.now_ns = boottime_ns();
    fence_acquire();
    if (result.now_ns >= freshness) {
      result.pages = 0;
      result.reason = kMissStale;
      return result;
    }
    if (view_number() != result.view) continue;
    cut_expired(found, walk, result);
    return result;
  }
  result.pages = 0;
  result.reason = kMissRaced;
  return result;
}

LookUpResult Reader::pin(const Chain& chain, LeaseKind kind, std::uint64_t lease_ns, FoundPage* out) {
  LookUpResult result = pin_once(chain, kind, lease_ns, out);
  std::uint64_t until_ns = 0;
  while (chain.may_await && result.reason == kMissAbsent && await_posted(chain.key(result.pages), until_ns)) {
    if (result.pages != 0) unpin(result.lease);
    const std::uint64_t collisions = result.collisions;
    result = pin_once(chain, kind, lease_ns, out);
    result.collisions += collisions;
  }
  if (chain.is_noted) note(chain, result, out);
  return result;
}

// What can't tell what is there (stale, raced, no lease left) tells nothing. Where an L1 has served all that is below, the page
// that it served last is the deepest one.
void Reader::note(const Chain& chain, const LookUpResult& result, const FoundPage* pages) noexcept {
  LookUpNote note;
  note.missing = chain.wanted() - result.pages;
  note.time_ns = result.now_ns;
  if (result.pages != 0) {
    note.deepest = instance_of(pages[result.pages - 1]);
  } else if (result.reason != kMissAbsent && result.reason != kMissExpired) {
    return;
  } else if (chain.start == 0) {
    note.digest = digest_of(PageKey::load(chain.key(0)));
  } else {
    const PageKey below = PageKey::load(chain.keys + (chain.start - 1) * kKeyBytes);
    const std::uint32_t entry = Index(view_).find(below);
    if (entry == kNoEntry) {
      note.digest = digest_of(below);
    } else {
      note.deepest = instance_of(view_.entries[entry].generation.load(std::memory_order_relaxed), entry);
    }
  }
  write_note(row().notes, note);
}

LookUpResult Reader::pin_once(const Chain& chain, LeaseKind kind, std::uint64_t lease_ns, FoundPage* out) {
  LookUpResult result;
  std::uint64_t collisions = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    result = LookUpResult{};
    if (closed()) {
      result.reason = kMissClosed;
      break;
    }
    const std::uint64_t freshness = freshness_ns();  // F first, then the view (rule R16)
    result.view = view_number();
    const Walk walk = walk_chain(view_, chain, out);
    collisions += walk.collisions;
    result.reason = walk.pages == chain.wanted() ? kMissNone : kMissAbsent;
    publish_hazard(walk, kind, out, result);
    result.now_ns = boottime_ns();
    fence_acquire();
    const bool stale = result.now_ns >= freshness;
    if (stale || view_number() != result.view) {
      if (result.pages != 0) unpin(std::exchange(result.lease, kNoSlot));
      result.pages = 0;
      result.reason = stale ? kMissStale : kMissRaced;
      if (stale) break;
      continue;
    }
    const std::size_t pinned = result.pages;
    cut_expired(out, walk, result);
    if (result.pages == 0) {
      if (pinned != 0) unpin(std::exchange(result.lease, kNoSlot));
      break;
    }
    if (result.pages < pinned) narrow(result.lease, out[result.pages - 1], result.pages);
    if (chain.start != 0) result.stands_on = instance_of(walk.parent);
    if (kind == kLeaseCopy) {
      view_.leases(row_)[result.lease].deadline_ns.store(result.now_ns + lease_ns, std::memory_order_relaxed);
    }
    if (chain.is_noted) touch(out, result.pages, result.now_ns);
    break;
  }
  result.collisions = collisions;
  return result;
}

// Publishes one hazard for all pages of the walk, then re-checks all of them behind one fence (rule R17); result.pages are
// those that it holds. One whose deepest page had gone before holds nothing, whatever it says: its entry may name another
// page by now. So what still stands is published in its place and looked at once more.
void Reader::publish_hazard(const Walk& walk, LeaseKind kind, const FoundPage* pages, LookUpResult& result) {
  if (walk.pages == 0) return;
  pause_here();  // found, not pinned
  const std::uint32_t slot = slots_.claim();
  if (slot == kNoSlot) {
    result.reason = kMissLeaseLimit;
    return;
  }
  Lease& lease = view_.leases(row_)[slot];
  raise_high_water(slot);
  if (kind == kLeaseCopy) lease.deadline_ns.store(kNoDeadline, std::memory_order_relaxed);
  std::size_t left = walk.pages;
  for (int attempt = 0; attempt < kAttempts && left != 0; ++attempt) {
    lease.cover.store(cover_of(kind, left, pages[left - 1].entry), std::memory_order_release);
    pause_here();  // pinned, not re-checked
    fence_seq_cst();  // pairs with the fence between hiding and scanning (arena_hide.cpp)
    const std::size_t standing = confirm(walk, pages, left);
    if (standing == left) {
      result.pages = left;
      result.lease = slot;
      return;
    }
    left = standing;
    result.reason = kMissAbsent;
  }
  if (left != 0) result.reason = kMissRaced;
  unpin(slot);
}

std::size_t Reader::confirm(const Walk& walk, const FoundPage* pages, std::size_t count) const {
  if (walk.parent.generation != 0 && !still_there(view_, walk.parent)) return 0;
  std::size_t kept = 0;
  while (kept < count && still_there(view_, pages[kept])) ++kept;
  return kept;
}

// Writers of this word run concurrently only inside this process; the sidecar only reads it.
void Reader::raise_high_water(std::uint32_t hazard) noexcept {
  Word& shared = row().lease_high_water;
  std::uint64_t seen = shared.load(std::memory_order_relaxed);
  while (seen < hazard + 1 && !shared.compare_exchange_weak(seen, hazard + 1, std::memory_order_release)) {
  }
}

void Reader::touch(const FoundPage* pages, std::size_t count, std::uint64_t now_ns) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    AccessTimes& access = view_.access[pages[i].entry];
    access.previous.store(access.last.load(std::memory_order_relaxed), std::memory_order_relaxed);
    access.last.store(now_ns, std::memory_order_relaxed);
  }
}

// In the very word, never in another: a scan that looks at one word after the other could miss both. It finds the wider
// cover or the narrower, and either holds what is kept. Release: what was read of the pages let go is read before.
void Reader::narrow(std::uint32_t lease, const FoundPage& deepest, std::size_t pages) noexcept {
  Word& cover = view_.leases(row_)[lease].cover;
  const LeaseKind kind = kind_of(cover.load(std::memory_order_relaxed));
  pause_here();  // wide, not narrow
  cover.store(cover_of(kind, pages, deepest.entry), std::memory_order_release);
}

void Reader::unpin(std::uint32_t lease) noexcept {
  // Release: what was read under the hazard is read before the sidecar sees it cleared.
  view_.leases(row_)[lease].cover.store(0, std::memory_order_release);
  slots_.release(lease);
}

LookUpResult Reader::pin_instance(std::uint64_t instance, FoundPage* out) {
  LookUpResult result;
  result.view = view_number();
  const std::uint32_t number = static_cast<std::uint32_t>(instance) - 1;
  if (number >= view_.geometry.entries) return result;
  const Entry& entry = view_.entries[number];
  out->entry = number;
  out->generation = entry.generation.load(std::memory_order_acquire);
  if ((out->generation & 1) != 0 || instance_of(*out) != instance) return result;
  const std::uint64_t place = entry.place.load(std::memory_order_relaxed);
  out->offset = (place >> 32) * kSlotAlign;
  out->payload_bytes = static_cast<std::uint32_t>(place);
  fence_acquire();
  if (out->offset + out->payload_bytes > view_.geometry.data_bytes) return result;
  Walk walk;
  walk.pages = 1;
  publish_hazard(walk, kLeaseView, out, result);
  return result;
}

LookUpResult Reader::copy_out(const Chain& chain, std::byte* const* destinations, std::size_t page_bytes,
                              std::uint64_t lease_ns, CopyChoice copier, std::uint64_t* instances) {
  FoundPage* pages = scratch<FoundPage>(chain.wanted());
  LookUpResult result = pin(chain, kLeaseCopy, lease_ns, pages);
  const std::size_t pinned = result.pages;
  pause_here();  // pinned, not copied
  std::size_t copied = 0;
  while (copied < pinned && pages[copied].payload_bytes == page_bytes) {
    copier.copy(destinations[copied], view_.data + pages[copied].offset, page_bytes);
    ++copied;
  }
  if (copied < pinned) result.reason = kMissAbsent;  // of another size: not the page that was asked for
  if (copied != 0) {
    pause_here();  // copied, not checked
    fence_acquire();
    std::size_t whole = 0;
    while (whole < copied && still_there(view_, pages[whole])) ++whole;
    if (whole < copied) result.reason = kMissInvalidated;
    copied = whole;
    if (boottime_ns() > result.now_ns + lease_ns) {
      copied = 0;
      result.reason = kMissLeaseExpired;
    }
  }
  if (copied != 0) result.instance = instance_of(pages[copied - 1]);
  if (instances != nullptr && copied != 0) {
    if (chain.start != 0) instances[chain.start - 1] = result.stands_on;
    for (std::size_t i = 0; i < copied; ++i) instances[chain.start + i] = instance_of(pages[i]);
  }
  if (pinned != 0) unpin(std::exchange(result.lease, kNoSlot));
  result.pages = copied;
  return result;
}

void Reader::fill(const std::uint64_t* offsets, const PageRuns* sources, std::size_t pages, std::size_t page_bytes,
                  CopyChoice copier, std::uint32_t counter) {
  for (std::size_t i = 0; i < pages; ++i) gather(view_.data + offsets[i], sources[i], 0, page_bytes, copier);
  CountsDelta delta;
  delta.bytes_written = pages * page_bytes;
  account(counter, delta);
}

void Reader::begin_counting(std::uint32_t counter, std::uint64_t pages) noexcept {
  row().counts[counter].begun.fetch_add(pages, std::memory_order_relaxed);
}

void Reader::account(std::uint32_t counter, const CountsDelta& delta) noexcept {
  const std::lock_guard<SpinLock> guard(count_locks_[counter]);
  add_counts(row().counts[counter], delta, count_memories_[counter]);
}

bool Reader::complete(std::uint32_t counter, const CountsDelta& delta) noexcept {
  const std::lock_guard<SpinLock> guard(count_locks_[counter]);
  if (!are_under_way(row().counts[counter], delta.requested)) return false;
  add_counts(row().counts[counter], delta, count_memories_[counter]);
  return true;
}

}  // namespace stratakv
