// Making room: evicting the coldest leaves, of the class that needs a slot or of any.
#include "arena.hpp"
#include "clock.hpp"

namespace stratakv {
namespace {

constexpr int kRounds = 3;  // a lease may be taken on a victim between the survey and its hiding

}  // namespace

// True when there are an entry and a slot of the class to give away. Evicts for up to `pages` at once, so that a batch
// scans the clients' leases once and not once a page. Memory moves ahead of need only where it follows demand: a load
// makes no more room than it takes. `spares_own`: whoever is owed the room evicts nothing of its own for it.
bool Arena::make_room(std::uint32_t size_class, std::uint64_t pages, bool may_rebalance, std::uint64_t now_ns, bool spares_own) {
  const auto slots = [&] { return segments_.available(size_class); };
  if (!free_entries_.empty() && slots() > 0) return true;
  reclaim();
  survey_leases(now_ns);
  go_on_vacating(now_ns);
  if (slots() == 0 && may_rebalance) follow_demand(size_class, now_ns);
  for (int round = 0; round < kRounds && slots() == 0; ++round) {
    const std::uint64_t evicted = evict(size_class, pages);
    reclaim();
    if (evicted != 0 || take_in_need(size_class, now_ns)) continue;
    if (spares_own || evict(size_class, pages, false) == 0) break;  // nobody else has what may go: its own pages do, owed or not
    reclaim();
  }
  for (int round = 0; round < kRounds && free_entries_.empty(); ++round) {
    if (evict_for_entries(pages) == 0) break;
    reclaim();
  }
  return !free_entries_.empty() && slots() > 0;
}

// Looks at all leases once; leaves parked for a lease that has ended are victims again.
void Arena::survey_leases(std::uint64_t now_ns) {
  scan_leases();
  round_began_ns_ = boottime_ns();
  looks_left_ = kLooksPerRound;
  policy_.begin_round(now_ns);
  for (std::size_t i = parked_.size(); i-- > 0;) {
    const std::uint32_t entry = parked_[i];
    if (leased(entry)) continue;
    unpark(entry);
    refresh_leaf(entry);
  }
}

// What clients wrote of a page's last use, for notes that were lost; in the steps of notes, which tell the same. That it was
// stored later than its request asked for it is no use of it, where uses are counted.
std::uint64_t Arena::last_access(std::uint32_t entry) {
  if (looks_left_ == 0) return 0;
  --looks_left_;
  const bool learns = policy_.options().mode == PolicyMode::kLearned;
  const std::uint64_t last = learns ? read_ns(view_, entry, round_began_ns_) : accessed_ns(view_, entry, round_began_ns_);
  return last / kNoteStepNs * kNoteStepNs;
}

// The leaf of a queue that goes next and that nobody leases; leased ones are parked on the way.
std::optional<ColdPage> Arena::coldest_of(std::uint16_t queue) {
  for (;;) {
    const std::optional<ColdPage> victim = policy_.coldest(queue, [&](std::uint32_t entry) { return last_access(entry); });
    if (!victim || !leased(victim->page)) return victim;
    park(victim->page);
  }
}

// Whoever is owed the room for another page does not make it by a page of its own, unless told that nobody else can.
std::uint64_t Arena::evict(std::uint32_t size_class, std::uint64_t pages, bool spares_owed) {
  std::uint64_t evicted = 0;
  while (evicted < pages) {
    const bool is_owed = spares_owed && shares_.is_owed(taker_, (evicted + 1) * segments_.slot_bytes(size_class));
    const std::optional<ColdPage> victim = coldest_victim(size_class, is_owed);
    if (!victim) break;
    evicted += hide_subtree(victim->page, HideCause::kCapacity);
  }
  return evicted;
}

// The table of entries is full: the coldest leaf of any class goes.
std::uint64_t Arena::evict_for_entries(std::uint64_t pages) {
  std::uint64_t evicted = 0;
  while (evicted < pages) {
    std::optional<ColdPage> coldest;
    for (std::uint32_t c = 0; c < segments_.classes(); ++c) {
      const std::optional<ColdPage> victim = coldest_victim(c, false);
      if (victim && (!coldest || victim->value < coldest->value)) coldest = victim;
    }
    if (!coldest) break;
    evicted += hide_subtree(coldest->page, HideCause::kCapacity);
  }
  return evicted;
}

std::vector<std::uint64_t> Arena::cold_used(std::uint32_t turn, std::uint32_t most) const {
  constexpr std::uint32_t kLooks = 2048;  // leaves, and kWalked pages, of all queues together: some hundred µs
  constexpr std::uint32_t kWalked = 8192;
  const std::uint32_t queues = segments_.classes() * shares_.tenants();
  std::vector<std::uint32_t> cold;
  std::vector<std::uint64_t> found;
  for (std::uint32_t queue = 0; queue < queues; ++queue) {
    cold.clear();
    policy_.cold(static_cast<std::uint16_t>(queue), turn, std::max(1U, kLooks / queues), std::max(1U, kWalked / queues), cold);
    for (const std::uint32_t entry : cold) {
      if (found.size() == most) return found;
      if (view_.access[entry].last.load(std::memory_order_relaxed) == 0) continue;
      const std::uint64_t generation = view_.entries[entry].generation.load(std::memory_order_relaxed);
      if (generation != 0 && generation % 2 == 0) found.push_back(instance_of(generation, entry));
    }
  }
  return found;
}

void Arena::note_evicted(std::uint32_t entry) {
  const std::uint32_t size_class = pages_[entry].size_class;
  if (evicted_.size() <= size_class) evicted_.resize(size_class + 1);
  evicted_keys_.add(key_of(view_.entries[entry]), ++evicted_[size_class]);
  segment_policy_.evicted(size_class, segments_.slots_per_segment(size_class));
  shares_.evicted(pages_[entry].tenant, taker_);
}

void Arena::note_taken(std::uint32_t size_class, const PageKey& key, std::uint64_t now_ns) {
  const std::uint32_t slots = segments_.slots_per_segment(size_class);
  segment_policy_.took(slots, now_ns);
  if (evicted_.size() <= size_class) return;
  const std::optional<std::uint64_t> distance = evicted_keys_.take(key, evicted_[size_class]);
  if (distance) segment_policy_.returned(size_class, slots, *distance);
}

}  // namespace stratakv
