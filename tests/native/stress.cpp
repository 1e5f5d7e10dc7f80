// Stress of the shared-memory protocol in one process: one writer, many readers, pages that betray what went wrong.
//
// Readers lease, look, copy, follow the ring, race against copy leases that run out at once, and abandon their rows as a
// killed process does. The writer puts, evicts, hides in steps among all of it, and is slow and dies with half a page
// written. All threads share one mapping: ThreadSanitizer follows addresses.
#include "stress_pages.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "arena.hpp"
#include "clock.hpp"
#include "outcomes.hpp"
#include "pauses.hpp"
#include "look_up_counts.hpp"
#include "reader.hpp"

namespace {
std::atomic<std::uint64_t> pause_seed{0};
std::uint64_t pause_every = 512;
}

// Holds a thread up now and then between two steps of the protocol, long enough for the other side to do all of its own.
void stratakv::pause_here() noexcept {
  thread_local std::minstd_rand random(static_cast<std::uint32_t>(++pause_seed));
  if (random() % pause_every == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
}

namespace {

using namespace stratakv;
using namespace stratakv::stress;

constexpr std::uint64_t kNs = 1'000'000'000ULL;
constexpr int kReaders = 4;
constexpr std::size_t kLatePuts = 4;

struct Shared {
  explicit Shared(Arena& arena) : view(arena.view()) {
    auto files = arena.duplicate_descriptors(true);
    data = std::make_unique<Mapping>(files[2].get(), view.geometry.data_bytes, true, true);
    view.data = data->data();
  }
  ArenaView view;
  std::unique_ptr<Mapping> data;
  Told told;
  std::atomic<bool> stop{false};
  std::atomic<int> wanted_row[kReaders];  // a row asked for (-1), given (>= 0)
  std::atomic<int> given_up[kReaders];    // a row to end, or -1
  std::atomic<std::uint64_t> looks{0}, copies{0}, expired{0}, hits{0}, events{0};
};

void check_sums(const CountsSnapshot& counts) {
  std::uint64_t sum = counts.l1 + counts.l2 + counts.l3;
  for (const std::uint64_t missed : counts.miss) sum += missed;
  if (counts.requested != sum || counts.begun < sum) fail("counters: pages requested are not accounted for");
}

class ReaderThread {
 public:
  ReaderThread(Shared& shared, const std::vector<Prompt>& prompts, int number, std::uint64_t seed)
      : shared_(shared), prompts_(prompts), number_(number), random_(seed) {}

  void run() {
    while (!shared_.stop.load()) {
      if (!attach()) return;
      const std::size_t looks = 50 + random_() % 400;
      for (std::size_t i = 0; i < looks && !shared_.stop.load(); ++i) step();
      check_counts();
      // As killed: whatever is still leased is left behind.
      reader_.reset();
      shared_.given_up[number_].store(row_);
      while (shared_.given_up[number_].load() != -1 && !shared_.stop.load()) std::this_thread::yield();
    }
  }

 private:
  bool attach() {
    shared_.wanted_row[number_].store(-1);
    while ((row_ = shared_.wanted_row[number_].load()) == -1) {
      if (shared_.stop.load()) return false;
      std::this_thread::yield();
    }
    reader_ = std::make_unique<Reader>(shared_.view, static_cast<std::uint32_t>(row_), false);
    seen_ = reader_->view_number();
    return true;
  }

  void step() {
    const Prompt& prompt = prompts_[random_() % prompts_.size()];
    const std::size_t count = 1 + random_() % kDepth;
    const std::size_t start = random_() % 4 == 0 ? random_() % count : 0;
    switch (random_() % 10) {
      case 0: reader_->match(prompt.bytes(), start, count); break;
      case 1: copy(prompt, start, count, 1); break;  // one nanosecond: always late
      case 2: copy(prompt, start, count, 20'000); break;
      case 3: copy(prompt, start, count, 10 * kNs); break;
      case 4: request(); break;
      case 5: case 6: follow(); break;
      default: look(prompt, start, count);
    }
  }

  void request() {
    const auto [slot, stamp] = reader_->begin_request();
    if (slot < 0) fail("no request slot is free");
    if (!is_stamp_of(stamp, stamp.view)) fail("ring: a stamp is not that of its view");
    const auto used = static_cast<std::uint32_t>(slot);
    if (random_() % 2 == 0) reader_->advance_request(used, stamp.view);
    if (random_() % 16 != 0) reader_->end_request(used);
  }

  void follow() {
    const auto events = read_events_since(shared_.view, seen_);
    if (!events) {
      seen_ = reader_->view_number();
      return;
    }
    for (const Event& event : *events) {
      const bool whole = event.view == ++seen_ && event.kind == event_of(seen_).kind && event.payload == event_of(seen_).payload;
      if (!whole || !is_stamp_of(event, seen_)) fail("ring: an event is not that of its view");
    }
    reader_->set_applied_view(seen_);
    shared_.events.fetch_add(events->size(), std::memory_order_relaxed);
  }

  void look(const Prompt& prompt, std::size_t start, std::size_t count) {
    FoundPage pages[kDepth];
    reader_->begin_counting(0, count);
    const LookUpResult result = reader_->pin(prompt.bytes(), start, count, kLeaseView, 0, pages);
    account(result, start, count);
    ChainCheck check(shared_.told, prompt, result.view);
    for (std::size_t i = 0; i < start; ++i) check.skip(i);
    for (std::size_t i = 0; i < result.pages; ++i) {
      if (pages[i].payload_bytes != prompt.page_bytes()) fail("view: a page has the wrong size");
      const std::byte* at = shared_.view.data + pages[i].offset;
      check.take(start + i, check_page(at, pages[i].payload_bytes, prompt.keys[start + i], "view"));
    }
    shared_.looks.fetch_add(1, std::memory_order_relaxed);
    shared_.hits.fetch_add(result.pages, std::memory_order_relaxed);
    const bool forget = random_() % 64 == 0 && reader_->held() < 48;
    if (!forget) reader_->unpin(pages, result.pages);
  }

  void copy(const Prompt& prompt, std::size_t start, std::size_t count, std::uint64_t lease_ns) {
    std::vector<std::byte> place(kDepth * prompt.page_bytes());
    std::byte* to[kDepth];
    for (std::size_t i = 0; i < kDepth; ++i) to[i] = place.data() + i * prompt.page_bytes();
    reader_->begin_counting(1, count);
    const LookUpResult result = reader_->copy_out(prompt.bytes(), start, count, to, prompt.page_bytes(), lease_ns, {});
    reader_->account(1, counts_of(result, start, count, result.pages * prompt.page_bytes()));
    ChainCheck check(shared_.told, prompt, result.view);
    for (std::size_t i = 0; i < start; ++i) check.skip(i);
    for (std::size_t i = 0; i < result.pages; ++i) {
      check.take(start + i, check_page(to[i], prompt.page_bytes(), prompt.keys[start + i], "copy"));
    }
    shared_.copies.fetch_add(1, std::memory_order_relaxed);
    shared_.expired.fetch_add(result.reason == kMissLeaseExpired, std::memory_order_relaxed);
    if (result.reason == kMissLeaseExpired && result.pages != 0) fail("bytes were served from a lease that ran out");
  }

  void account(const LookUpResult& result, std::size_t start, std::size_t count) {
    CountsDelta delta;
    delta.requested = count;
    delta.l1 = start;
    delta.l2 = result.pages;
    delta.missed = count - start - result.pages;
    delta.reason = result.reason;
    delta.look_ups = 1;
    reader_->account(0, delta);
  }

  void check_counts() {
    for (std::uint32_t counter = 0; counter < 2; ++counter) {
      const auto counts = read_counts(shared_.view.row(static_cast<std::uint32_t>(row_)).counts[counter]);
      if (!counts) fail("counters: could not be read");
      check_sums(*counts);
      if (counts->begun != counts->requested) fail("counters: a look-up is over and not accounted for");
    }
  }

  Shared& shared_;
  const std::vector<Prompt>& prompts_;
  int number_;
  int row_ = -1;
  std::uint64_t seen_ = 0;
  std::mt19937_64 random_;
  std::unique_ptr<Reader> reader_;
};

// A selection that is being hidden in steps, and what is told once that is done.
struct Hiding {
  std::uint64_t epoch = 0;
  std::uint64_t cursor = 0;
  bool has_begun = false;
  std::uint8_t bits = 0;
  Selection selection;
  Told::Cell* cell = nullptr;
};

struct Place {
  std::uint64_t reservation, offset;
  std::size_t depth;
};

// Reservations of one put, filled or about to be.
struct Put {
  const Prompt* prompt = nullptr;
  Origin origin;
  std::vector<Place> places;
};

class Writer {
 public:
  Writer(Arena& arena, Shared& shared, const std::vector<Prompt>& prompts, std::uint64_t seed)
      : arena_(arena), shared_(shared), prompts_(prompts), random_(seed), row_(*arena.open_row(1, kEngineNone)) {}

  void step() {
    serve_rows();
    switch (random_() % 64) {
      case 0: case 1: begin_hiding(); break;
      case 2: storm(); break;
      case 3: arena_.expire(boottime_ns()); break;
      case 4: arena_.check_invariants(); break;
      case 5: abandon(); break;
      case 6: write_late(); break;
      case 7: case 8: scrape(); break;
      case 9: case 10: case 11: hide_on(); break;
      case 12: commit_late(); break;
      case 13: reserve_late(); break;
      default: commit(fill(reserve(row_, 10 * kNs)));
    }
    arena_.publish_freshness(boottime_ns() + 5 * kNs);
  }

 private:
  void serve_rows() {
    for (int i = 0; i < kReaders; ++i) {
      const int ended = shared_.given_up[i].load();
      if (ended >= 0) {
        if (random_() % 2 == 0) arena_.orphan_row(static_cast<std::uint32_t>(ended));
        arena_.end_row(static_cast<std::uint32_t>(ended));
        shared_.given_up[i].store(-1);
      }
      if (shared_.wanted_row[i].load() == -1) shared_.wanted_row[i].store(static_cast<int>(*arena_.open_row(2, kEngineDrop)));
    }
  }

  // From here on no page that the selection names may become visible; what is visible goes step by step.
  void begin_hiding() {
    if (hidings_.size() >= 2) return;
    // Often what somebody is about to commit.
    const bool coming = !late_.empty() && random_() % 2 == 0;
    const Put* put = coming ? &late_[random_() % late_.size()] : nullptr;
    const Prompt& prompt = put != nullptr ? *put->prompt : prompts_[random_() % prompts_.size()];
    auto hiding = std::make_unique<Hiding>();
    hiding->epoch = ++epoch_;
    const std::size_t what = random_() % 32;
    if (what == 0) {
      hiding->cell = &shared_.told.everything;
    } else if (what == 1) {
      hiding->bits = static_cast<std::uint8_t>(1u << prompt.group());
      hiding->selection.namespaces = {&hiding->bits, 1};
      hiding->cell = &shared_.told.of_namespace[prompt.group()];
    } else if (what < 5) {
      const std::size_t provenance = put != nullptr ? put->origin.provenance : random_() % kProvenances;
      hiding->bits = static_cast<std::uint8_t>(1u << provenance);
      hiding->selection.provenances = {&hiding->bits, 1};
      hiding->cell = &shared_.told.of_provenance[provenance];
      judged_[provenance] = judged_any_ = epoch_;
    } else {
      const bool at_place = put != nullptr && !put->places.empty();
      const std::size_t depth = at_place ? put->places[random_() % put->places.size()].depth : random_() % kDepth;
      hiding->selection.key = prompt.keys[depth];
      hiding->cell = &shared_.told.of_key[prompt.key_name(depth)];
    }
    hidings_.push_back(std::move(hiding));
  }

  void hide_on() {
    if (hidings_.empty()) return;
    const std::size_t which = random_() % hidings_.size();
    Hiding& hiding = *hidings_[which];
    hiding.cursor = arena_.hide_step(hiding.selection, hiding.cursor, 1 + random_() % 60).cursor;
    if (hiding.cursor != 0) return;
    // Told before the view is: whoever finds the view finds this.
    hiding.cell->store(hiding.epoch << 32 | (arena_.view_number() + 1), std::memory_order_release);
    publish();
    hidings_.erase(hidings_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  // More events at once than the ring has records, now and then.
  void storm() {
    for (std::size_t events = 1 + random_() % 12; events > 0; --events) publish();
  }

  void publish() { arena_.publish_event(event_of(arena_.view_number() + 1)); }

  Put reserve(std::uint32_t row, std::uint64_t for_ns) {
    Put put;
    put.prompt = &prompts_[random_() % prompts_.size()];
    put.origin = {epoch_, random_() % kProvenances, random_() % 8 != 0};
    const std::uint64_t now = boottime_ns();
    ReserveRequest request;
    request.row = row;
    request.namespace_slot = put.prompt->group();
    request.keys = put.prompt->bytes();
    request.pages = 1 + random_() % kDepth;
    request.payload_bytes = put.prompt->page_bytes();
    request.expiry_s = random_() % 4 == 0 ? static_cast<std::uint32_t>(now / kNs + 1) : 0;
    request.deadline_ns = now + for_ns;
    request.now_ns = now;
    const std::vector<Reserved> reserved = arena_.reserve(request);
    for (std::size_t i = 0; i < reserved.size(); ++i) {
      if (reserved[i].status == kPutStored) put.places.push_back({reserved[i].reservation, reserved[i].offset, i});
    }
    return put;
  }

  Put fill(Put put) {
    for (const Place& place : put.places) {
      fill_page(shared_.view.data + place.offset, put.prompt->page_bytes(), put.prompt->keys[place.depth], random_(), put.origin);
    }
    return put;
  }

  // Publishes, but for torn pages and what a record newer than the fill names by its origin (rule I3).
  std::vector<Committed> commit(const Put& put) {
    std::vector<std::uint64_t> commits, aborts;
    const std::uint64_t judged = put.origin.lineage_known ? judged_[put.origin.provenance] : judged_any_;
    for (const Place& place : put.places) {
      const bool torn = random_() % 32 == 0;
      if (torn) std::memset(shared_.view.data + place.offset, 0, put.prompt->page_bytes() / 2);
      (torn || put.origin.epoch < judged ? aborts : commits).push_back(place.reservation);
    }
    arena_.abort(row_, aborts);
    CommitStamp stamp;
    stamp.producer = put.origin.provenance;
    stamp.rests_on = put.origin.lineage_known ? kNoInstance : kUnknownInstance;
    return arena_.commit(row_, commits, stamp, boottime_ns());
  }

  // Held over a number of other steps, so that hiding comes upon it.
  void reserve_late() {
    if (late_.size() < kLatePuts) late_.push_back(fill(reserve(row_, 10 * kNs)));
  }

  void commit_late() {
    if (late_.empty()) return;
    commit(late_.front());
    late_.pop_front();
  }

  // A client that is late and writes all the same: its places must be nobody else's yet.
  void write_late() {
    const Put put = reserve(row_, 1);
    arena_.expire(boottime_ns() + 1000);
    for (int i = 0; i < 4; ++i) commit(fill(reserve(row_, 10 * kNs)));
    fill(put);
    std::vector<std::uint64_t> reservations;
    for (const Place& place : put.places) reservations.push_back(place.reservation);
    for (const Committed& committed : arena_.commit(row_, reservations, CommitStamp{}, boottime_ns())) {
      if (committed.status != kPutRefused) fail("a reservation was committed after its deadline");
    }
  }

  // A writer that dies with half a page written.
  void abandon() {
    const std::optional<std::uint32_t> row = arena_.open_row(3, kEngineKeep);
    if (!row) return;
    const Put put = reserve(*row, 10 * kNs);
    for (const Place& place : put.places) {
      fill_page(shared_.view.data + place.offset, put.prompt->page_bytes() / 2, put.prompt->keys[place.depth], random_(), put.origin);
    }
    arena_.orphan_row(*row);
    arena_.end_row(*row);
  }

  // What the sidecar's metrics do, while the clients count.
  void scrape() {
    for (std::uint32_t row = 0; row < shared_.view.geometry.rows; ++row) {
      for (std::uint32_t counter = 0; counter < 2; ++counter) {
        const auto counts = read_counts(shared_.view.row(row).counts[counter]);
        if (counts) check_sums(*counts);
      }
    }
  }

  Arena& arena_;
  Shared& shared_;
  const std::vector<Prompt>& prompts_;
  std::mt19937_64 random_;
  std::uint32_t row_;
  std::uint64_t epoch_ = 1;
  std::uint64_t judged_[kProvenances] = {};
  std::uint64_t judged_any_ = 0;
  std::vector<std::unique_ptr<Hiding>> hidings_;
  std::deque<Put> late_;
};

int run(double seconds, std::uint64_t seed) {
  ArenaSettings settings;
  settings.arena_bytes = 2 << 20;
  settings.segment_bytes = 64 << 10;
  settings.entries = 300;
  settings.rows = kReaders + 2;
  settings.leases_per_row = 64;
  settings.ring_records = 8;
  Arena arena(settings);
  Shared shared(arena);
  const std::vector<Prompt> prompts = make_prompts();
  arena.publish_event(event_of(2));
  arena.publish_freshness(boottime_ns() + 5 * kNs);

  std::vector<std::thread> threads;
  for (int i = 0; i < kReaders; ++i) {
    shared.wanted_row[i].store(0);
    shared.given_up[i].store(-1);
    threads.emplace_back([&, i] { ReaderThread(shared, prompts, i, mix(seed, static_cast<std::uint64_t>(i) + 1)).run(); });
  }
  Writer writer(arena, shared, prompts, seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::uint64_t steps = 0;
  for (; std::chrono::steady_clock::now() < end; ++steps) writer.step();
  shared.stop.store(true);
  for (std::thread& thread : threads) thread.join();
  arena.check_invariants();

  const ArenaStatistics s = arena.statistics();
  const auto show = [](const char* what, std::uint64_t number) { std::printf("%s %llu\n", what, static_cast<unsigned long long>(number)); };
  show("writer steps", steps);
  show("views published", arena.view_number());
  show("look-ups", shared.looks.load());
  show("pages found", shared.hits.load());
  show("copies", shared.copies.load());
  show("copy leases that ran out", shared.expired.load());
  show("events followed", shared.events.load());
  show("stored", s.stored);
  show("evicted for room", s.evictions_capacity);
  show("evicted with segments", s.evictions_segment);
  show("expired", s.evictions_ttl);
  show("hidden", s.evictions_invalidated);
  for (const std::uint64_t met : {shared.hits.load(), shared.expired.load(), shared.events.load(), s.evictions_capacity, s.evictions_invalidated}) {
    if (met == 0) fail("the run was too short to meet what it is there to meet");
  }
  std::printf("PASSED\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device{}();
  if (argc > 3) pause_every = std::max(1ULL, std::strtoull(argv[3], nullptr, 10));
  std::printf("seed %llu, %g s\n", static_cast<unsigned long long>(seed), seconds);
  std::fflush(stdout);
  pause_seed.store(seed);
  try {
    return run(seconds, seed);
  } catch (const std::exception& error) {
    fail(error.what());
  }
}
