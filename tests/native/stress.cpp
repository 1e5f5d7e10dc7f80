// Stress of the shared-memory protocol in one process: one writer, many readers, pages whose bytes betray any mixing.
//
// Every page is filled with one 64-bit word that depends on its key and on a nonce drawn for each fill, so a page that
// mixes two fills, or carries another key's bytes, is found by looking at it. Readers lease, look, copy, race against
// copy leases that run out at once, and abandon their rows as a killed process does. All threads share one mapping:
// ThreadSanitizer follows addresses.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "arena.hpp"
#include "clock.hpp"
#include "outcomes.hpp"
#include "pauses.hpp"
#include "reader.hpp"

// Holds a thread up now and then between two steps of the protocol, long enough for the other side to do all of its own.
void stratakv::pause_here() noexcept {
  thread_local std::minstd_rand random(std::random_device{}());
  if (random() % 512 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
}

namespace {

using namespace stratakv;

constexpr std::uint64_t kNs = 1'000'000'000ULL;
constexpr std::size_t kPrompts = 24;
constexpr std::size_t kShared = 8;   // first pages that all prompts of a group have in common
constexpr std::size_t kDepth = 24;
constexpr int kReaders = 4;
constexpr std::size_t kPageBytes[2] = {4096, 12'288};  // by prompt group: two size classes

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::abort();
}

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ 0x9E3779B97F4A7C15ULL) * 0xD6E8FEB86659FD93ULL + b;
  x ^= x >> 29;
  return x * 0xBF58476D1CE4E5B9ULL;
}

struct Prompt {
  std::vector<PageKey> keys;
  std::size_t page_bytes;
  const std::uint8_t* bytes() const { return reinterpret_cast<const std::uint8_t*>(keys.data()); }
};

std::vector<Prompt> make_prompts() {
  std::vector<Prompt> prompts(kPrompts);
  for (std::size_t p = 0; p < kPrompts; ++p) {
    const std::size_t group = p % 2;
    prompts[p].page_bytes = kPageBytes[group];
    for (std::size_t i = 0; i < kDepth; ++i) {
      const std::uint64_t name = i < kShared ? group : 100 + p;
      PageKey key;
      for (std::uint64_t w = 0; w < kKeyWords; ++w) key.word[w] = mix(mix(name, i), w);
      prompts[p].keys.push_back(key);
    }
  }
  return prompts;
}

// The word that fills a page. The nonce is stored first, so that a reader can recompute it.
std::uint64_t fill_word(const PageKey& key, std::uint64_t nonce) { return mix(key.word[0], nonce); }

void fill_page(std::byte* at, std::size_t bytes, const PageKey& key, std::uint64_t nonce) {
  auto* words = reinterpret_cast<std::uint64_t*>(at);
  words[0] = nonce;
  for (std::size_t i = 1; i < bytes / 8; ++i) words[i] = fill_word(key, nonce);
}

void check_page(const std::byte* at, std::size_t bytes, const PageKey& key, const char* how) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(at);
  const std::uint64_t wanted = fill_word(key, words[0]);
  for (std::size_t i = 1; i < bytes / 8; ++i) {
    if (words[i] != wanted) fail(std::string(how) + ": word " + std::to_string(i) + " of a page is of another fill");
  }
}

struct Shared {
  explicit Shared(Arena& arena) : view(arena.view()) {
    auto files = arena.duplicate_descriptors(true);
    data = std::make_unique<Mapping>(files[2].get(), view.geometry.data_bytes, true, true);
    view.data = data->data();
  }
  ArenaView view;
  std::unique_ptr<Mapping> data;
  std::atomic<bool> stop{false};
  std::atomic<int> wanted_row[kReaders];  // a row asked for (-1), given (>= 0)
  std::atomic<int> given_up[kReaders];    // a row to end, or -1
  std::atomic<std::uint64_t> looks{0}, copies{0}, expired{0}, hits{0};
};

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
    return true;
  }

  void step() {
    const Prompt& prompt = prompts_[random_() % prompts_.size()];
    const std::size_t count = 1 + random_() % kDepth;
    const std::size_t start = random_() % 4 == 0 ? random_() % count : 0;
    switch (random_() % 8) {
      case 0: reader_->match(prompt.bytes(), start, count); break;
      case 1: copy(prompt, start, count, 1); break;  // one nanosecond: always late
      case 2: copy(prompt, start, count, 20'000); break;
      case 3: copy(prompt, start, count, 10 * kNs); break;
      case 4: request(); break;
      default: look(prompt, start, count);
    }
  }

  void request() {
    const auto [slot, stamp] = reader_->begin_request();
    if (slot < 0) fail("no request slot is free");
    if (stamp.revision != stamp.view) fail("a stamp's revision is not that of its view");
    if (random_() % 16 != 0) reader_->end_request(static_cast<std::uint32_t>(slot));
  }

  void look(const Prompt& prompt, std::size_t start, std::size_t count) {
    FoundPage pages[kDepth];
    reader_->begin_counting(0, count);
    const LookUpResult result = reader_->pin(prompt.bytes(), start, count, kLeaseView, 0, pages);
    account(result, start, count);
    for (std::size_t i = 0; i < result.pages; ++i) {
      if (pages[i].payload_bytes != prompt.page_bytes) fail("a page has the wrong size");
      check_page(shared_.view.data + pages[i].offset, pages[i].payload_bytes, prompt.keys[start + i], "view");
    }
    shared_.looks.fetch_add(1, std::memory_order_relaxed);
    shared_.hits.fetch_add(result.pages, std::memory_order_relaxed);
    const bool forget = random_() % 64 == 0 && reader_->held() < 48;
    if (!forget) reader_->unpin(pages, result.pages);
  }

  void copy(const Prompt& prompt, std::size_t start, std::size_t count, std::uint64_t lease_ns) {
    std::vector<std::byte> place(kDepth * prompt.page_bytes);
    std::byte* to[kDepth];
    for (std::size_t i = 0; i < kDepth; ++i) to[i] = place.data() + i * prompt.page_bytes;
    const LookUpResult result = reader_->get(prompt.bytes(), start, count, to, prompt.page_bytes, lease_ns, {}, 1);
    for (std::size_t i = 0; i < result.pages; ++i) check_page(to[i], prompt.page_bytes, prompt.keys[start + i], "copy");
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
      if (!counts) fail("counters could not be read");
      std::uint64_t sum = counts->l1 + counts->l2 + counts->l3;
      for (const std::uint64_t missed : counts->miss) sum += missed;
      if (counts->requested != sum || counts->begun != sum) fail("pages requested are not accounted for");
    }
  }

  Shared& shared_;
  const std::vector<Prompt>& prompts_;
  int number_;
  int row_ = -1;
  std::mt19937_64 random_;
  std::unique_ptr<Reader> reader_;
};

class Writer {
 public:
  Writer(Arena& arena, Shared& shared, const std::vector<Prompt>& prompts, std::uint64_t seed)
      : arena_(arena), shared_(shared), prompts_(prompts), random_(seed), row_(*arena.open_row(1)) {}

  void step() {
    serve_rows();
    switch (random_() % 64) {
      case 0: hide_prefix(); break;
      case 1: hide_much(); break;
      case 2: case 3: publish(); break;
      case 4: arena_.expire(boottime_ns()); break;
      case 5: arena_.check_invariants(); break;
      case 6: abandon(); break;
      default: put();
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
      if (shared_.wanted_row[i].load() == -1) shared_.wanted_row[i].store(static_cast<int>(*arena_.open_row(2)));
    }
  }

  void hide_much() {
    switch (random_() % 32) {
      case 0: arena_.hide_all(); break;
      case 1: arena_.hide_namespace(random_() % 2); break;
      default: return;  // most of the time pages go for want of room, which no view tells
    }
    publish();
  }

  void publish() {
    Event event;
    event.revision = arena_.view_number() + 1;
    event.payload.assign(random_() % 400, 'x');
    arena_.publish_event(event);
  }

  void hide_prefix() {
    const Prompt& prompt = prompts_[random_() % prompts_.size()];
    arena_.hide(prompt.bytes() + random_() % kDepth * kKeyBytes, 1);
    publish();
  }

  std::vector<Reserved> reserve(const Prompt& prompt, std::uint32_t row) {
    const std::uint64_t now = boottime_ns();
    ReserveRequest request;
    request.row = row;
    request.namespace_slot = prompt.page_bytes == kPageBytes[0] ? 0 : 1;
    request.keys = prompt.bytes();
    request.pages = 1 + random_() % kDepth;
    request.payload_bytes = prompt.page_bytes;
    request.expiry_s = random_() % 4 == 0 ? static_cast<std::uint32_t>(now / kNs + 1) : 0;
    request.deadline_ns = now + 10 * kNs;
    request.now_ns = now;
    return arena_.reserve(request);
  }

  void put() {
    const Prompt& prompt = prompts_[random_() % prompts_.size()];
    const std::vector<Reserved> reserved = reserve(prompt, row_);
    std::vector<std::uint64_t> commits, aborts;
    for (std::size_t i = 0; i < reserved.size(); ++i) {
      if (reserved[i].status != kPutStored) continue;
      std::byte* at = shared_.view.data + reserved[i].offset;
      if (random_() % 32 == 0) {
        fill_page(at, prompt.page_bytes / 2, prompt.keys[i], random_());  // a torn page: must never be seen
        aborts.push_back(reserved[i].reservation);
      } else {
        fill_page(at, prompt.page_bytes, prompt.keys[i], random_());
        commits.push_back(reserved[i].reservation);
      }
    }
    if (random_() % 128 == 0) hide_prefix();
    arena_.abort(row_, aborts);
    arena_.commit(row_, commits, CommitStamp{}, boottime_ns());
  }

  // A writer that dies with half a page written.
  void abandon() {
    const std::optional<std::uint32_t> row = arena_.open_row(3);
    if (!row) return;
    const Prompt& prompt = prompts_[random_() % prompts_.size()];
    for (const Reserved& r : reserve(prompt, *row)) {
      if (r.status == kPutStored) fill_page(shared_.view.data + r.offset, prompt.page_bytes / 2, prompt.keys[0], random_());
    }
    arena_.orphan_row(*row);
    arena_.end_row(*row);
  }

  Arena& arena_;
  Shared& shared_;
  const std::vector<Prompt>& prompts_;
  std::mt19937_64 random_;
  std::uint32_t row_;
};

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device{}();
  std::printf("seed %llu, %g s\n", static_cast<unsigned long long>(seed), seconds);
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
  Event first;
  first.revision = 2;
  arena.publish_event(first);
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
  std::printf("%llu writer steps, %llu views (%llu pages), %llu copies (%llu leases ran out), %llu stored, evicted %llu for room, "
              "%llu with segments, %llu expired, %llu invalidated\n",
              static_cast<unsigned long long>(steps), static_cast<unsigned long long>(shared.looks.load()),
              static_cast<unsigned long long>(shared.hits.load()), static_cast<unsigned long long>(shared.copies.load()),
              static_cast<unsigned long long>(shared.expired.load()), static_cast<unsigned long long>(s.stored),
              static_cast<unsigned long long>(s.evictions_capacity), static_cast<unsigned long long>(s.evictions_segment),
              static_cast<unsigned long long>(s.evictions_ttl), static_cast<unsigned long long>(s.evictions_invalidated));
  if (shared.hits.load() == 0 || shared.expired.load() == 0 || s.evictions_capacity == 0 || s.evictions_invalidated == 0) {
    fail("the run was too short to meet what it is there to meet");
  }
  std::printf("PASSED\n");
  return 0;
}
