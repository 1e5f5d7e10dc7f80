// Construction, header, clients' rows and statistics of the writer's half.
#include "arena.hpp"

#include <sys/random.h>

#include <algorithm>
#include <stdexcept>

#include "arena_leases.hpp"
#include "clock.hpp"
#include "fences.hpp"
#include "limits.hpp"

namespace stratakv {
namespace {

constexpr std::uint64_t kLeasesToldMax = 0xFFFFFFFF;  // a client may say that it leases more

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) throw std::runtime_error("the system gave no random bytes");
  return seed;
}

// Checked before anything is allocated.
Geometry affordable_geometry(const ArenaSettings& settings) {
  const Geometry geometry = plan_geometry(settings, random_seed());
  if (settings.huge_pages != HugePages::kExplicit) {  // those are set apart, and no memory that is available
    require_memory(geometry.control_bytes + geometry.clients_bytes + geometry.data_bytes);
  }
  return geometry;
}

PolicyOptions policy_options(const Geometry& geometry, const ArenaSettings& settings) {
  PolicyOptions options;
  options.pages = geometry.entries;
  options.mode = settings.learns ? PolicyMode::kLearned : PolicyMode::kLru;
  return options;
}

void clear_row(const ArenaView& view, std::uint32_t number) {
  Row& row = view.row(number);
  row.pid.store(0, std::memory_order_relaxed);
  row.applied_view.store(0, std::memory_order_relaxed);
  row.own_freshness_ns.store(0, std::memory_order_relaxed);
  row.lease_high_water.store(0, std::memory_order_relaxed);
  row.engine.store(kEngineNone, std::memory_order_relaxed);
  for (Word& reserved : row.reserved) reserved.store(0, std::memory_order_relaxed);
  for (Word& request : row.request_view) request.store(0, std::memory_order_relaxed);
  for (NamespaceCounts& counts : row.counts) clear_counts(counts);
  Posts& posts = row.posts;
  for (Word* word : {&posts.posted_bytes, &posts.posted_pages, &posts.settled_bytes, &posts.settled_pages}) {
    word->store(0, std::memory_order_relaxed);
  }
  for (Grant& grant : posts.grants) grant.offer.store(0, std::memory_order_relaxed);
  row.notes.written.store(0, std::memory_order_relaxed);
}

}  // namespace

Arena::Arena(const ArenaSettings& settings)
    : view_{affordable_geometry(settings)},
      index_(view_),
      segments_(view_.geometry.segments(), view_.geometry.segment_bytes),
      segment_policy_(view_.geometry.segments()),
      evicted_keys_(view_.geometry.entries),
      policy_(policy_options(view_.geometry, settings)),
      births_(random_seed(), random_seed()),
      pages_(view_.geometry.entries),
      rows_(view_.geometry.rows),
      namespaces_(kNamespacesMax) {
  const Geometry& g = view_.geometry;
  const auto create = [&](const char* name, std::uint64_t bytes) {
    return create_memory_file(name, bytes, settings.huge_pages, settings.commit_through_mapping);
  };
  const auto map = [&](const Descriptor& file, const char* what) {
    auto mapping = std::make_unique<Mapping>(file.get(), file_size(file.get(), what), true);
    mapping->prepare(g.wish_huge_pages(), settings.prefault ? Prefault::kFirstUse : Prefault::kNo);
    return mapping;
  };
  control_file_ = create("stratakv-control", g.control_bytes);
  clients_file_ = create("stratakv-clients", g.clients_bytes);
  data_file_ = create("stratakv-data", g.data_bytes);
  data_file_.forbid_reopening_for_writing();
  control_ = map(control_file_, "control");
  clients_ = map(clients_file_, "clients");
  seal_memory_file(control_file_, true);
  seal_memory_file(clients_file_, false);
  seal_memory_file(data_file_, false);

  view_ = view_of(g, control_->data(), clients_->data(), nullptr);
  index_ = Index(view_);
  write_header(view_, settings, boottime_ns());
  for (std::uint32_t entry = g.entries; entry-- > 0;) {
    view_.entries[entry].generation.store(1, std::memory_order_relaxed);
    free_entries_.push_back(entry);
  }
  Event first;
  first.view = 1;
  write_event(view_, first);
  view_.header->view.store(1, std::memory_order_release);
}

Arena::~Arena() {
  if (present()) close_header();
}

std::vector<Descriptor> Arena::duplicate_descriptors(bool writable) const {
  std::vector<Descriptor> files;
  files.push_back(control_file_.reopen_read_only());
  files.push_back(clients_file_.duplicate());
  files.push_back(writable ? data_file_.duplicate() : data_file_.reopen_read_only());
  return files;
}

std::uint64_t Arena::publish_event(Event event) {
  event.view = view_number() + 1;
  write_event(view_, event);
  view_.header->view.store(event.view, std::memory_order_release);
  fence_seq_cst();  // whoever is acknowledged after this finds the new view published (rule R14)
  return event.view;
}

void Arena::publish_freshness(std::uint64_t freshness_ns) {
  view_.header->freshness_ns.store(freshness_ns, std::memory_order_release);
}

void Arena::grant_keep(bool granted) {
  view_.header->keep_granted.store(granted ? 1 : 0, std::memory_order_release);
  fence_seq_cst();  // a client that is welcomed after it was taken back doesn't find it granted
}

void Arena::close_header() {
  view_.header->closed.store(1, std::memory_order_seq_cst);
  fence_seq_cst();  // whoever claims freshness after this finds it closed; who has before is seen (rule R18)
}

void Arena::check_row(std::uint32_t row, bool in_use) const {
  if (row >= rows_.size()) {
    throw std::invalid_argument("row " + std::to_string(row) + " is beyond the arena's " + std::to_string(rows_.size()));
  }
  if (in_use && rows_[row].state == kRowFree) throw std::invalid_argument("row " + std::to_string(row) + " is not open");
}

std::optional<std::uint32_t> Arena::open_row(std::uint64_t pid, EngineMode engine) {
  for (std::uint32_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row].state != kRowFree) continue;
    clear_row(view_, row);
    rows_[row] = ClientRow{};
    rows_[row].state = kRowAttached;
    rows_[row].pid = pid;
    rows_[row].engine = engine;
    view_.row(row).pid.store(pid, std::memory_order_relaxed);
    view_.row(row).engine.store(engine, std::memory_order_relaxed);
    view_.row(row).state.store(kRowAttached, std::memory_order_release);
    return row;
  }
  return std::nullopt;
}

void Arena::orphan_row(std::uint32_t row) {
  check_row(row, true);
  rows_[row].state = kRowOrphaned;
  view_.row(row).state.store(kRowOrphaned, std::memory_order_release);
  recall_all_grants(row);
  for (std::uint32_t entry = rows_[row].first_reservation; entry != kNoEntry; entry = pages_[entry].next_in_row) {
    if (pages_[entry].state == PageState::kReserved) quarantine(entry);
  }
}

void Arena::end_row(std::uint32_t row) {
  check_row(row, false);
  if (rows_[row].state == kRowFree) return;
  read_last_notes(row, boottime_ns());
  while (rows_[row].first_reservation != kNoEntry) end_reservation(rows_[row].first_reservation);
  end_grants(row);
  Lease* leases = view_.leases(row);
  for (std::uint32_t i = 0; i < view_.geometry.leases_per_row; ++i) {
    leases[i].cover.store(0, std::memory_order_relaxed);
    leases[i].deadline_ns.store(0, std::memory_order_relaxed);
  }
  for (Word& request : view_.row(row).request_view) request.store(0, std::memory_order_relaxed);
  view_.row(row).state.store(kRowFree, std::memory_order_release);
  rows_[row].state = kRowFree;
  reclaim();
}

RowStatistics Arena::row_statistics(std::uint32_t number) const {
  check_row(number, false);
  Row& row = view_.row(number);
  RowStatistics out;
  out.state = rows_[number].state;
  out.pid = rows_[number].pid;  // not the row's copy, which its client may overwrite
  out.engine = rows_[number].engine;
  out.applied_view = row.applied_view.load(std::memory_order_acquire);
  out.own_freshness_ns = row.own_freshness_ns.load(std::memory_order_acquire);
  out.reservations = rows_[number].reservations;
  for (const std::uint32_t entry : rows_[number].grants) out.grants += entry != kNoEntry;
  for (const Word& request : row.request_view) {
    const std::uint64_t seen = request.load(std::memory_order_acquire);
    if (seen != 0) out.oldest_view = older(out.oldest_view, seen);
  }
  const auto bytes_in = [&](PageState state) { return tallies_[static_cast<std::size_t>(state)].bytes; };
  const std::uint64_t bytes_held = bytes_in(PageState::kVisible) + bytes_in(PageState::kHidden);
  each_live_lease(view_, number, boottime_ns(), [&](std::uint32_t deepest, std::uint32_t pages) {
    const std::uint64_t covered = pages_of(deepest, pages);
    out.leases = std::min(out.leases + covered, kLeasesToldMax);
    // Pages of one namespace are of one size. A hostile client's must not add up to more than can be told.
    out.leased_bytes += std::min(covered * payload_bytes_of(view_, deepest), bytes_held);
    // A page is hidden no later than the one below it.
    const Page& page = pages_[deepest];
    if (page.state == PageState::kHidden) out.oldest_hidden_view = older(out.oldest_hidden_view, page.hidden_view);
  });
  return out;
}

NamespaceCounts& Arena::counts(std::uint32_t row, std::uint32_t counter) const {
  check_row(row, false);
  if (counter >= kNamespacesPerRow) {
    throw std::invalid_argument("counter " + std::to_string(counter) + " is beyond a row's " +
                                std::to_string(kNamespacesPerRow));
  }
  return view_.row(row).counts[counter];
}

std::optional<std::uint32_t> Arena::find(const PageKey& key) const {
  const std::uint32_t entry = index_.find(key);
  if (entry == kNoEntry || pages_[entry].state != PageState::kVisible) return std::nullopt;
  return entry;
}

std::optional<std::uint32_t> Arena::entry_of(std::uint64_t instance) const {
  const std::uint32_t entry = static_cast<std::uint32_t>(instance) - 1;
  if (entry >= pages_.size() || pages_[entry].state != PageState::kVisible) return std::nullopt;
  const std::uint64_t generation = view_.entries[entry].generation.load(std::memory_order_relaxed);
  if (instance_of(generation, entry) != instance) return std::nullopt;
  return entry;
}

ArenaStatistics Arena::statistics() {
  ArenaStatistics out = counters_;
  out.leased_bytes = leased_bytes();
  scan_leases();
  out.entries_total = pages_.size();
  out.entries_visible = tally(PageState::kVisible).pages;
  out.entries_reserved = tally(PageState::kReserved).pages;
  out.entries_hidden_leased = tally(PageState::kHidden).pages;
  out.entries_quarantined = tally(PageState::kQuarantined).pages;
  out.entries_granted = tally(PageState::kGranted).pages;
  out.granted_bytes = tally(PageState::kGranted).bytes;
  out.resident_bytes = tally(PageState::kVisible).bytes;
  out.reserved_bytes = tally(PageState::kReserved).bytes + tally(PageState::kQuarantined).bytes;
  out.segments_total = segments_.total();
  out.segments_free = segments_.unassigned();
  out.oldest_hidden_view = oldest_hidden_view();
  out.policy_learned = policy_.options().mode == PolicyMode::kLearned;
  out.policy = policy_.counts();
  return out;
}

// Every change of a page's state goes through here, so that no figure needs a walk.
void Arena::set_state(std::uint32_t entry, PageState state) {
  const std::uint64_t bytes = payload_bytes_of(view_, entry);
  const PageState was = std::exchange(pages_[entry].state, state);
  if (was != PageState::kFree) {
    --tally(was).pages;
    tally(was).bytes -= bytes;
  }
  if (state != PageState::kFree) {
    ++tally(state).pages;
    tally(state).bytes += bytes;
  }
  const auto has_namespace = [](PageState one) { return one != PageState::kFree && one != PageState::kGranted; };
  const auto is_used = [](PageState one) { return one != PageState::kFree && one != PageState::kHidden; };
  const std::uint64_t slot_bytes = segments_.slot_bytes(pages_[entry].size_class);
  if (is_used(was)) shares_.take(pages_[entry].tenant, slot_bytes);
  if (is_used(state)) shares_.add(pages_[entry].tenant, slot_bytes);
  namespace_of(entry).entries += has_namespace(state);
  namespace_of(entry).entries -= has_namespace(was);
}

}  // namespace stratakv
