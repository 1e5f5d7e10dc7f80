// Stress of the shared-memory protocol in one process: one writer, many readers, pages that betray what went wrong.
//
// Readers lease, look, copy, follow the ring, race against copy leases that run out at once, and abandon their rows as a
// killed process does. The writer puts, evicts, hides in steps among all of it, and is slow and dies with half a page
// written. All threads share one mapping: ThreadSanitizer follows addresses.
#include "stress_shared.hpp"
#include "stress_writer.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "arena.hpp"
#include "clock.hpp"
#include "held_pages.hpp"
#include "look_up_counts.hpp"
#include "outcomes.hpp"
#include "pauses.hpp"
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
      shared_.bury(std::move(holdings_));
      holdings_.clear();
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
    reader_ = std::make_shared<Reader>(shared_.view, static_cast<std::uint32_t>(row_), false, Descriptor());
    seen_ = reader_->view_number();
    begun_ = 0;
    return true;
  }

  // What a client could write there, too: the writer bounds all of it.
  void scribble() {
    Notes& notes = shared_.view.row(static_cast<std::uint32_t>(row_)).notes;
    for (int i = 0; i < 8; ++i) {
      Note& note = notes.ring[random_() % kNotesPerRow];
      note.page.store(random_(), std::memory_order_relaxed);
      note.time.store(random_(), std::memory_order_release);
    }
    notes.written.fetch_add(random_() % 4 == 0 ? random_() : random_() % 64, std::memory_order_relaxed);
  }

  void step() {
    if (random_() % 256 == 0) scribble();
    const Prompt& prompt = prompts_[random_() % prompts_.size()];
    const std::size_t count = 1 + random_() % kDepth;
    const std::size_t start = random_() % 4 == 0 ? random_() % count : 0;
    switch (random_() % 16) {
      case 10: case 11: pin(); break;
      case 12: hold(prompt, start, count); break;
      case 13: case 14: case 15: let_go(); break;
      case 0: match(prompt.chain(start, count)); break;
      case 1: copy(prompt, start, count, 1); break;  // one nanosecond: always late
      case 2: copy(prompt, start, count, 20'000); break;
      case 3: copy(prompt, start, count, 10 * kNs); break;
      case 4: request(); break;
      case 5: case 6: follow(); break;
      default: look(prompt, start, count);
    }
  }

  void match(Chain chain) {
    reader_->match(chain);
    chain.namespace_slot = (chain.namespace_slot + 1) % kGroups;
    if (reader_->match(chain).pages != 0) fail("match: a page of another namespace");
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
    Chain chain = prompt.chain(start, count);
    chain.is_noted = true;
    const LookUpResult result = reader_->pin(chain, kLeaseView, 0, pages);
    account(result, prompt.chain(start, count));
    met_ = {&prompt, start, result.pages == 0 ? FoundPage{} : pages[0], 0};
    ChainCheck check(shared_.told, prompt, result.view);
    for (std::size_t i = 0; i < start; ++i) check.skip(i);
    for (std::size_t i = 0; i < result.pages; ++i) {
      if (pages[i].payload_bytes != prompt.page_bytes()) fail("view: a page has the wrong size");
      const std::byte* at = shared_.view.data + pages[i].offset;
      check.take(start + i, check_page(at, pages[i].payload_bytes, prompt.keys[start + i], "view"));
      if (i == 0) met_.nonce = *reinterpret_cast<const std::uint64_t*>(at);
    }
    shared_.looks.fetch_add(1, std::memory_order_relaxed);
    shared_.hits.fetch_add(result.pages, std::memory_order_relaxed);
    const bool forget = random_() % 64 == 0 && reader_->held() < 48;
    if (!forget && result.pages != 0) reader_->unpin(result.lease);
  }

  // Keeps looking at some pages of a chain when its lease is released.
  void hold(const Prompt& prompt, std::size_t start, std::size_t count) {
    if (holdings_.size() >= kHoldings) return;
    FoundPage pages[kDepth];
    const LookUpResult result = reader_->pin(prompt.chain(start, count), kLeaseView, 0, pages);
    if (result.pages == 0) return;
    Holding holding{HeldPages::create(reader_, pages, result.pages, result.lease), {}};
    for (std::size_t i = 0; i < result.pages; ++i) {
      const std::byte* at = holding.held->data(i);
      check_page(at, holding.held->bytes(i), prompt.keys[start + i], "chain");
      if (random_() % 4 != 0) continue;
      holding.held->add_view(i);
      holding.views.push_back({&prompt, start + i, pages[i], *reinterpret_cast<const std::uint64_t*>(at)});
    }
    holding.first = start;
    holding.held->release();
    if (!holding.views.empty()) {
      holdings_.push_back(std::move(holding));
    } else {
      holding.held->unref();
    }
  }

  // Looks at all that is still viewed of one chain, and ends one of the views, in whatever order.
  void let_go() {
    if (holdings_.empty()) return;
    const std::size_t which = random_() % holdings_.size();
    Holding& holding = holdings_[which];
    for (const Met& view : holding.views) {
      const std::byte* at = holding.held->data(view.depth - holding.first);
      check_page(at, view.page.payload_bytes, view.prompt->keys[view.depth], "chain");
      if (*reinterpret_cast<const std::uint64_t*>(at) != view.nonce) fail("chain: another page");
    }
    const std::size_t gone = random_() % holding.views.size();
    holding.held->drop_view(holding.views[gone].depth - holding.first);
    holding.views.erase(holding.views.begin() + static_cast<std::ptrdiff_t>(gone));
    shared_.views.fetch_add(1, std::memory_order_relaxed);
    if (!holding.views.empty()) return;
    holding.held->unref();
    holdings_.erase(holdings_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  void copy(const Prompt& prompt, std::size_t start, std::size_t count, std::uint64_t lease_ns) {
    std::vector<std::byte> place(kDepth * prompt.page_bytes());
    std::byte* to[kDepth];
    for (std::size_t i = 0; i < kDepth; ++i) to[i] = place.data() + i * prompt.page_bytes();
    reader_->begin_counting(1, count);
    const LookUpResult result = reader_->copy_out(prompt.chain(start, count), to, prompt.page_bytes(), lease_ns, {});
    reader_->account(1, counts_of(result, prompt.chain(start, count), result.pages * prompt.page_bytes()));
    ChainCheck check(shared_.told, prompt, result.view);
    for (std::size_t i = 0; i < start; ++i) check.skip(i);
    for (std::size_t i = 0; i < result.pages; ++i) {
      check.take(start + i, check_page(to[i], prompt.page_bytes(), prompt.keys[start + i], "copy"));
    }
    shared_.copies.fetch_add(1, std::memory_order_relaxed);
    shared_.expired.fetch_add(result.reason == kMissLeaseExpired, std::memory_order_relaxed);
    if (result.reason == kMissLeaseExpired && result.pages != 0) fail("bytes were served from a lease that ran out");
  }

  // The very page that was met before, for as long as it is there.
  void pin() {
    if (met_.page.generation == 0) return;
    FoundPage page{};
    const LookUpResult result = reader_->pin_instance(instance_of(met_.page), &page);
    if (result.pages == 0) return;
    const std::byte* at = shared_.view.data + page.offset;
    if (page.offset != met_.page.offset || page.payload_bytes != met_.prompt->page_bytes()) fail("pin: another place");
    check_page(at, page.payload_bytes, met_.prompt->keys[met_.depth], "pin");
    if (*reinterpret_cast<const std::uint64_t*>(at) != met_.nonce) fail("pin: another page");
    reader_->unpin(result.lease);
    shared_.pins.fetch_add(1, std::memory_order_relaxed);
  }

  // Counted at once, or begun here and completed by a later look-up as after a load.
  void account(const LookUpResult& result, const Chain& chain) {
    const bool may_load = random_() % 4 == 0;
    settle(*reader_, 0, counts_of(result, chain, 0), may_load);
    if (may_load && result.reason == kMissAbsent) begun_ += chain.count;
    if (begun_ == 0 || random_() % 4 != 0) return;
    CountsDelta delta;
    delta.requested = 1 + random_() % begun_;
    delta.l3 = delta.requested / 2;
    delta.missed = delta.requested - delta.l3;
    delta.reason = kMissAbsent;
    if (!reader_->complete(0, delta)) fail("counters: a look-up that was begun can't be completed");
    begun_ -= delta.requested;
  }

  void check_counts() {
    for (std::uint32_t counter = 0; counter < 2; ++counter) {
      const auto counts = read_counts(shared_.view.row(static_cast<std::uint32_t>(row_)).counts[counter]);
      if (!counts) fail("counters: could not be read");
      check_sums(*counts);
      const std::uint64_t begun = counter == 0 ? begun_ : 0;
      if (counts->begun != counts->requested + begun) fail("counters: a look-up is over and not accounted for");
      CountsDelta more;
      more.requested = more.l2 = begun + 1;
      if (reader_->complete(counter, more)) fail("counters: more was completed than was begun");
    }
  }

  Shared& shared_;
  const std::vector<Prompt>& prompts_;
  int number_;
  int row_ = -1;
  std::uint64_t seen_ = 0;
  std::uint64_t begun_ = 0;  // pages of look-ups that are not completed yet
  Met met_;
  std::mt19937_64 random_;
  std::shared_ptr<Reader> reader_;
  std::vector<Holding> holdings_;
};

int run(double seconds, std::uint64_t seed) {
  ArenaSettings settings;
  settings.arena_bytes = 2 << 20;
  settings.segment_bytes = 64 << 10;
  settings.entries = 300;
  settings.rows = kClients + 2;
  settings.leases_per_row = 64;
  settings.ring_records = 8;
  Arena arena(settings);
  arena.set_pin_quota(settings.arena_bytes / 4);
  arena.set_tenant_shares({settings.arena_bytes / 4, settings.arena_bytes / 4});
  for (std::uint32_t group = 0; group < kGroups; ++group) arena.set_tenant(group, group + 1);
  Shared shared(arena);
  const std::vector<Prompt> prompts = make_prompts();
  arena.publish_event(event_of(2));
  arena.publish_freshness(boottime_ns() + 5 * kNs);

  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    shared.wanted_row[i].store(-2);
    shared.given_up[i].store(-1);
  }
  for (int i = kReaders; i < kClients; ++i) {
    threads.emplace_back([&, i] { PosterThread(shared, prompts, i, mix(seed, static_cast<std::uint64_t>(i) + 1)).run(); });
  }
  for (int i = 0; i < kReaders; ++i) {
    threads.emplace_back([&, i] { ReaderThread(shared, prompts, i, mix(seed, static_cast<std::uint64_t>(i) + 1)).run(); });
  }
  threads.emplace_back([&] { move_bytes(shared.loads, shared.view.data, shared.stop); });
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
  show("pages pinned", arena.pin_statistics().held_pages);
  for (std::uint32_t tenant = 1; tenant < arena.tenants(); ++tenant) show("pages evicted for another tenant", arena.tenant_statistics(tenant).evictions_suffered);
  show("views published", arena.view_number());
  show("look-ups", shared.looks.load());
  show("pages found", shared.hits.load());
  show("copies", shared.copies.load());
  show("copy leases that ran out", shared.expired.load());
  show("events followed", shared.events.load());
  show("pages pinned again", shared.pins.load());
  show("notes read", s.notes_read);
  show("notes lost", s.notes_lost);
  show("posts", shared.posts.load());
  show("stored out of posts", s.posted);
  show("views ended after their lease", shared.views.load());
  show("stored", s.stored);
  show("loaded", s.loaded);
  show("loads that gave way", s.gave_way);
  show("evicted for room", s.evictions_capacity);
  show("evicted with segments", s.evictions_segment);
  show("expired", s.evictions_ttl);
  show("hidden", s.evictions_invalidated);
  for (const std::uint64_t met : {shared.hits.load(), shared.expired.load(), shared.events.load(), shared.pins.load(), shared.views.load(),
                                  s.loaded, s.posted, s.gave_way, s.evictions_capacity, s.evictions_invalidated, s.notes_read, s.notes_lost}) {
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
