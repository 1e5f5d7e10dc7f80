// The writer of the stress test: puts and loads pages, evicts, hides in steps among all of it, is slow, and dies half way.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "arena.hpp"
#include "clock.hpp"
#include "outcomes.hpp"
#include "stress_posts.hpp"
#include "stress_shared.hpp"

namespace stratakv::stress {

// A selection that is being hidden in steps, and what is told once that is done.
struct Hiding {
  std::uint64_t epoch = 0;
  std::uint64_t cursor = 0;
  bool has_begun = false;
  std::uint8_t bits = 0;
  Selection selection;
  Told::Cell* cell = nullptr;
};

// Reservations of one put, filled or about to be.
struct Put {
  const Prompt* prompt = nullptr;
  Origin origin;
  std::vector<Place> places;
};

// A page as it was once, for what was computed from it then.
struct Lower {
  std::uint64_t line = 0;
  std::uint64_t packed = 0;
  std::uint64_t epoch = 0;  // at which it was valid
};

class Writer {
 public:
  Writer(Arena& arena, Shared& shared, const std::vector<Prompt>& prompts, std::uint64_t seed)
      : arena_(arena), shared_(shared), prompts_(prompts), random_(seed), row_(*arena.open_row(1, kEngineNone)) {}

  void step() {
    serve_rows();
    shared_.epoch.store(published_epoch(), std::memory_order_release);
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
      case 14: case 15: case 16: case 17: begin_load(); break;
      case 18: case 19: case 20: case 21: case 22: end_load(); break;
      case 23: case 24: case 25: case 26: grant(); break;
      case 27: case 28: case 29: case 30: case 31: settle_posts(); break;
      case 32: recall(); break;
      case 33: arena_.read_notes(1 + random_() % 200, boottime_ns()); break;
      case 34: if (random_() % 16 == 0) arena_.import_policy(arena_.export_policy(), boottime_ns()); break;
      case 35: case 36: pin(); break;
      default: commit(fill(reserve(row_, 10 * kNs)));
    }
    arena_.publish_freshness(boottime_ns() + 5 * kNs);
  }

 private:
  void serve_rows() {
    for (int i = 0; i < kClients; ++i) {
      const int ended = shared_.given_up[i].load();
      if (ended >= 0) {
        if (random_() % 2 == 0) settle_posts();
        if (random_() % 2 == 0) arena_.orphan_row(static_cast<std::uint32_t>(ended));
        arena_.end_row(static_cast<std::uint32_t>(ended));
        shared_.wanted_row[i].store(-2);
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
      judged_all_ = epoch_;
    } else if (what == 1) {
      hiding->bits = static_cast<std::uint8_t>(1u << prompt.group());
      hiding->selection.namespaces = {&hiding->bits, 1};
      hiding->cell = &shared_.told.of_namespace[prompt.group()];
      judged_namespace_[prompt.group()] = epoch_;
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
      judged_key_[prompt.key_name(depth)] = epoch_;
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
    put.origin = {epoch_, random_() % kProvenances, random_() % 8 != 0, 0};
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

  // Reserves what a chain lacks for another thread to fill; computed from nothing, or from one of the pages below it.
  void begin_load() {
    Load& load = shared_.loads[random_() % kLoads];
    if (load.state.load(std::memory_order_relaxed) != Load::kIdle) return;
    load.prompt = &prompts_[random_() % prompts_.size()];
    load.origin = {epoch_, random_() % kProvenances, true, 0};
    load.rests_on = kNoInstance;
    load.nonce = random_();
    load.places.clear();
    const std::size_t resident = look_below(*load.prompt);
    const Lower& below = pick_below(*load.prompt, resident);
    if (resident > 0 && below.line != 0 && random_() % 2 == 0) {  // computed when that page was there: it may have been replaced since
      load.origin.epoch = below.epoch;
      load.origin.below = below.packed;
      load.rests_on = below.line;
    }
    if (resident == kDepth) return;
    const std::uint64_t now = boottime_ns();
    ReserveRequest request;
    request.row = row_;
    request.namespace_slot = load.prompt->group();
    request.parent = resident == 0 ? nullptr : load.prompt->bytes() + (resident - 1) * kKeyBytes;
    request.keys = load.prompt->bytes() + resident * kKeyBytes;
    request.pages = 1 + random_() % (kDepth - resident);
    request.payload_bytes = load.prompt->page_bytes();
    request.deadline_ns = random_() % 8 == 0 ? now + 1 : now + 10 * kNs;
    request.now_ns = now;
    request.gives_way = true;
    const std::vector<Reserved> reserved = arena_.reserve(request);
    for (std::size_t i = 0; i < reserved.size(); ++i) {
      if (reserved[i].status == kPutStored) load.places.push_back({reserved[i].reservation, reserved[i].offset, resident + i});
    }
    load.state.store(Load::kMoving, std::memory_order_release);
  }

  // How much of a chain is resident; now and then the pages are remembered, for pages that were computed from them.
  std::size_t look_below(const Prompt& prompt) {
    std::size_t resident = 0;
    for (; resident < kDepth; ++resident) {
      const std::optional<std::uint32_t> entry = arena_.find(prompt.keys[resident]);
      if (!entry) break;
      Lower& lower = lower_[prompt.key_name(resident)];
      if (lower.line != 0 && random_() % 16 != 0) continue;
      const std::uint64_t place = shared_.view.entries[*entry].place.load(std::memory_order_relaxed);
      const std::byte* at = shared_.view.data + (place >> 32) * kSlotAlign;
      const Origin origin = check_page(at, prompt.page_bytes(), prompt.keys[resident], "load");
      lower = {arena_.births_of(*entry)[1], origin.packed(), published_epoch()};
    }
    return resident;
  }

  // One of the pages below, by preference one that a record has taken since: what was computed from it must not come back.
  const Lower& pick_below(const Prompt& prompt, std::size_t resident) const {
    for (std::size_t i = 0; i < resident; ++i) {
      const Lower& lower = lower_[prompt.key_name(i)];
      const Origin origin = Origin::unpack(lower.packed);
      if (lower.line != 0 && origin.epoch < judged_[origin.provenance]) return lower;
    }
    return lower_[prompt.key_name(resident / 2)];
  }

  // What a request that begins now may claim: nothing that is still being hidden.
  std::uint64_t published_epoch() const {
    std::uint64_t epoch = epoch_;
    for (const auto& hiding : hidings_) epoch = std::min(epoch, hiding->epoch - 1);
    return epoch;
  }

  // The newest epoch whose record names a page by what it is, or by what stands below it.
  std::uint64_t judged_by_name(const Prompt& prompt, std::size_t depth) const {
    std::uint64_t newest = std::max(judged_all_, judged_namespace_[prompt.group()]);
    for (std::size_t i = 0; i <= depth; ++i) newest = std::max(newest, judged_key_[prompt.key_name(i)]);
    return newest;
  }

  // Publishes what has arrived, but for what a newer record names by its origin or may name by what it rests on.
  void end_load() {
    Load& load = shared_.loads[random_() % kLoads];
    if (load.state.load(std::memory_order_acquire) != Load::kArrived) return;
    load.state.store(Load::kIdle, std::memory_order_relaxed);
    for (const Place& place : load.places) {
      const bool is_known = arena_.loaded_lineage_known(row_, place.reservation, load.rests_on);
      const std::uint64_t by_origin = is_known ? judged_[load.origin.provenance] : judged_any_;
      const std::uint64_t judged = std::max(by_origin, judged_by_name(*load.prompt, place.depth));
      if (load.origin.epoch < judged || random_() % 32 == 0) {
        arena_.abort(row_, {place.reservation});
        continue;
      }
      CommitStamp stamp;
      stamp.producer = load.origin.provenance;
      stamp.rests_on = load.rests_on;
      arena_.publish_loaded(row_, place.reservation, stamp, random_() >> 1 | 1, boottime_ns());
    }
  }

  int poster_row() { return shared_.wanted_row[kReaders + random_() % kPosters].load(); }

  void grant() {
    const int row = poster_row();
    if (row < 0) return;
    arena_.grant(static_cast<std::uint32_t>(row), kPageBytes[random_() % kGroups],
                 {static_cast<std::uint32_t>(1 + random_() % 12), 256 << 10, boottime_ns(), kNoInstance, random_() % kGroups});
  }

  // A few chains are pinned at a time, some of them longer than what is there, some beyond the quota.
  void pin() {
    if (pinned_.size() > random_() % 4) {
      arena_.unpin(pinned_.front().prompt->bytes(), pinned_.front().pages);
      pinned_.pop_front();
      return;
    }
    const Pinned wanted{&prompts_[random_() % prompts_.size()], 1 + random_() % kDepth};
    const std::uint64_t known_bytes = random_() % 4 == 0 ? 0 : wanted.prompt->page_bytes();
    if (arena_.pin(wanted.prompt->bytes(), wanted.pages, known_bytes)) pinned_.push_back(wanted);
  }

  void recall() {
    const int row = poster_row();
    if (row >= 0) arena_.recall_all_grants(static_cast<std::uint32_t>(row));
  }

  void settle_posts() {
    for (const std::uint32_t row : arena_.posting_rows()) {
      while (const std::optional<Post> post = arena_.next_post(row)) {
        carry_out(row, *post);
        arena_.settle_post(row);
      }
    }
  }

  // As a put: reserved in the slots that hold the pages already, judged by name and origin at this moment, and published.
  void carry_out(std::uint32_t row, const Post& post) {
    PostTerms terms;
    if (post.terms.size() != sizeof(terms)) fail("post: its terms are of another");
    std::memcpy(&terms, post.terms.data(), sizeof(terms));
    const Prompt& prompt = prompts_[terms.prompt];
    if (std::memcmp(post.keys.data(), prompt.bytes() + terms.depth * kKeyBytes, post.keys.size()) != 0) fail("post: of two posts");
    const Origin origin = Origin::unpack(terms.origin);
    ReserveRequest request;
    request.row = row;
    request.namespace_slot = post.head.namespace_slot;
    request.parent = post.head.has_parent != 0 ? post.head.parent : nullptr;
    request.keys = post.keys.data();
    request.pages = post.head.pages;
    request.payload_bytes = post.head.payload_bytes;
    request.now_ns = boottime_ns();
    request.deadline_ns = request.now_ns + 10 * kNs;
    request.granted = post.ids.data();
    const std::vector<Reserved> reserved = arena_.reserve(request);
    std::vector<std::uint64_t> commits, aborts;
    for (std::size_t i = 0; i < reserved.size(); ++i) {
      if (reserved[i].status != kPutStored) continue;
      const std::uint64_t judged = std::max(judged_[origin.provenance], judged_by_name(prompt, terms.depth + i));
      (origin.epoch < judged ? aborts : commits).push_back(reserved[i].reservation);
    }
    arena_.abort(row, aborts);
    CommitStamp stamp;
    stamp.producer = origin.provenance;
    arena_.commit(row, commits, stamp, boottime_ns());
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
  std::uint64_t judged_all_ = 0;
  std::uint64_t judged_namespace_[kGroups] = {};
  std::uint64_t judged_key_[kKeyNames] = {};
  Lower lower_[kKeyNames] = {};
  std::vector<std::unique_ptr<Hiding>> hidings_;
  std::deque<Put> late_;
  struct Pinned {
    const Prompt* prompt;
    std::size_t pages;
  };
  std::deque<Pinned> pinned_;
};

}  // namespace stratakv::stress
