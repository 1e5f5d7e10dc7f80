// Moving segments between size classes: samples for the policy, and carrying out what it decides (segment_policy.hpp).
#include <algorithm>

#include "arena.hpp"

namespace stratakv {
namespace {

constexpr std::uint32_t kSegmentsLookedAt = 16;  // of a donor, a survey; the next one looks at the next ones
constexpr std::uint32_t kSlotsLookedAt = kAgesSampled / kSegmentsLookedAt;
constexpr std::uint32_t kOffersExamined = 4;
constexpr std::uint64_t kExaminedMax = 40'960;   // pages a survey looks at in full: a ms or two
constexpr std::uint64_t kVacatedPerCall = 4'096; // pages: a ms or two
constexpr std::uint64_t kLooksPerCall = 65'536;  // at pages on the way to leaves, of a segment that is vacated: as long
constexpr std::size_t kAhead = 8;                // slots whose pages are fetched into the caches meanwhile
static_assert(kExaminedMax > 2 * (kSegmentBytesMax / kSlotAlign), "each page of a segment, and again as another one's child");
constexpr std::size_t kVacatingMax = 4;
constexpr int kSurveysInNeed = 4;
constexpr int kStepsInNeed = 4;
static_assert(kStepsInNeed * kVacatedPerCall >= kSegmentBytesMax / kSlotAlign);
constexpr std::uint64_t kVacatingNsMax = 10'000'000'000ULL;  // then whoever holds a page of it has it keep its class

}  // namespace

// A class that has a page to evict takes a segment instead where the policy finds that this serves more.
void Arena::follow_demand(std::uint32_t size_class, std::uint64_t now_ns) {
  if (!segment_policy_.asks(size_class, segments_.slots_per_segment(size_class))) return;
  if (segments_.segments_of_class(size_class) == segments_.total() || !vacating_.empty()) return;
  const std::optional<ColdPage> victim = coldest_victim(size_class, false);
  if (!victim) return;
  const std::uint64_t own_age_ns = now_ns - std::min(now_ns, victim->touched_ns);
  const std::uint32_t donors = survey_donors(size_class, now_ns);
  const Donor* donor = segment_policy_.choose(size_class, segments_.slots_per_segment(size_class), own_age_ns, donors_.data(), donors);
  segment_policy_.answered(size_class, donor != nullptr);
  if (donor != nullptr) begin_vacating(donor->best.segment, now_ns);
}

// A class that has nothing to evict takes a segment that may go at once, or else has one vacated that somebody still holds
// pages of: no new ones come to it, so that it is free when those are given back. True if there is a slot now.
bool Arena::take_in_need(std::uint32_t size_class, std::uint64_t now_ns) {
  const Donor* fallback = nullptr;
  std::uint32_t held = kNoSegment;
  for (int i = 0; i < kSurveysInNeed; ++i) {
    const std::uint32_t donors = survey_donors(size_class, now_ns);
    fallback = segment_policy_.choose_in_need(donors_.data(), donors);
    if (fallback == nullptr) break;
    if (fallback->best.busy == 0) {
      begin_vacating(fallback->best.segment, now_ns);
      // Nobody holds it: rather some ms now than a refusal.
      for (int step = 1; step < kStepsInNeed && segments_.available(size_class) == 0; ++step) go_on_vacating(now_ns);
      return segments_.available(size_class) != 0;
    }
    if (held == kNoSegment) held = fallback->best.segment;
  }
  if (held != kNoSegment && vacating_.size() < kVacatingMax) begin_vacating(held, now_ns);
  return segments_.available(size_class) != 0;
}

// Fills donors_ with samples of other classes, some of them if they are many; returns how many.
std::uint32_t Arena::survey_donors(std::uint32_t size_class, std::uint64_t now_ns) {
  recall_grants_but(size_class);  // a segment must not be held by slots that nobody uses
  std::uint32_t donors = 0;
  std::uint64_t work = kExaminedMax;
  donor_cursors_.resize(segments_.classes());
  for (std::uint32_t i = 0; i < segments_.classes() && donors < kDonorsMax; ++i) {
    const std::uint32_t other = (donor_classes_cursor_ + i) % segments_.classes();
    if (other == size_class || segments_.segments_of_class(other) == 0) continue;
    Donor& donor = donors_[donors++];
    donor.size_class = other;
    survey_donor(donor, now_ns, work);
  }
  donor_classes_cursor_ = (donor_classes_cursor_ + donors) % std::max(1u, segments_.classes());
  return donors;
}

void Arena::survey_donor(Donor& donor, std::uint64_t now_ns, std::uint64_t& work) {
  const std::vector<std::uint32_t>& segments = segments_.of_class(donor.size_class);
  donor.slots_per_segment = segments_.slots_per_segment(donor.size_class);
  donor.slots = static_cast<std::uint64_t>(segments.size()) * donor.slots_per_segment;
  donor.free_slots = segments_.free_slots(donor.size_class);
  donor.ages = 0;
  donor.best = SegmentOffer{};
  std::array<SegmentOffer, kSegmentsLookedAt> offers;
  std::uint32_t count = 0;
  std::uint32_t& cursor = donor_cursors_[donor.size_class];
  for (std::uint32_t i = 0; i < std::min<std::size_t>(kSegmentsLookedAt, segments.size()); ++i) {
    const std::uint32_t segment = segments[cursor++ % segments.size()];
    if (segments_.draining(segment)) continue;
    offers[count] = look_at_segment(donor, segment, now_ns);
    count += offers[count].sampled != 0;
  }
  const auto end = offers.begin() + count;
  std::sort(offers.begin(), end, SegmentPolicy::is_cheaper);
  for (std::uint32_t i = 0; i < std::min(count, kOffersExamined) && work > 0; ++i) {
    examine_offer(offers[i], work);
    if (offers[i].sampled == 0) continue;
    if (donor.best.sampled == 0 || SegmentPolicy::is_cheaper(offers[i], donor.best)) donor.best = offers[i];
    if (donor.best.busy == 0 && donor.best.elsewhere == 0) break;
  }
}

// Samples a segment's slots evenly, and adds their ages to the donor's.
SegmentOffer Arena::look_at_segment(Donor& donor, std::uint32_t segment, std::uint64_t now_ns) {
  const std::vector<std::uint32_t>& owners = segments_.owners(segment);
  const std::uint64_t window_ns = segment_policy_.window_ns();
  SegmentOffer offer;
  offer.segment = segment;
  offer.sampled = std::min(kSlotsLookedAt, donor.slots_per_segment);
  const std::uint64_t sampled_bytes = segments_.segment_bytes() / offer.sampled;  // that each of them stands for
  std::array<std::uint64_t, kTenantsMax> lost{};
  for (std::uint32_t i = 0; i < offer.sampled; ++i) {
    const std::uint32_t entry = owners[static_cast<std::uint64_t>(i) * donor.slots_per_segment / offer.sampled];
    if (is_free_slot(entry)) continue;
    ++offer.used;
    lost[pages_[entry].tenant] += sampled_bytes;
    if (pages_[entry].state != PageState::kVisible || leased(entry)) {
      ++offer.busy;
      continue;
    }
    const std::uint64_t age_ns = now_ns - std::min(now_ns, accessed_ns(view_, entry, round_began_ns_));
    donor.age_ns[donor.ages++] = age_ns;
    const bool is_read = view_.access[entry].last.load(std::memory_order_relaxed) != 0;
    if (age_ns < window_ns) ++(is_read ? offer.warm : offer.fresh);
    offer.youngest_age_ns = std::min(offer.youngest_age_ns, age_ns);
  }
  return may_all_lose(lost) ? offer : SegmentOffer{};
}

// Whether each tenant would have its share left without so much, for the one that room is made for.
bool Arena::may_all_lose(const std::array<std::uint64_t, kTenantsMax>& lost_bytes) const {
  for (std::uint32_t tenant = 0; tenant < shares_.tenants(); ++tenant) {
    if (lost_bytes[tenant] != 0 && !shares_.may_lose(tenant, taker_, lost_bytes[tenant])) return false;
  }
  return true;
}

// Looks at all slots of an offered segment and at what stands on their pages: what is held, and how much goes with them.
void Arena::examine_offer(SegmentOffer& offer, std::uint64_t& work) const {
  offer.busy = 0;
  std::uint64_t elsewhere = 0;
  std::array<std::uint64_t, kTenantsMax> lost{};  // bytes, by tenant
  std::vector<std::uint32_t> open;
  const std::vector<std::uint32_t>& owners = segments_.owners(offer.segment);
  for (std::size_t slot = 0; slot < owners.size(); ++slot) {
    prefetch_page(owners, slot + kAhead);
    const std::uint32_t owner = owners[slot];
    if (is_free_slot(owner)) continue;
    open.assign(1, owner);
    while (!open.empty()) {
      const std::uint32_t entry = open.back();
      open.pop_back();
      const Page& page = pages_[entry];
      if (pins_.holds(entry)) {  // the segment would never come free
        offer = SegmentOffer{};
        return;
      }
      const bool is_held = page.state != PageState::kVisible || leased(entry) || entry == pinned_parent_;
      offer.busy += is_held || work == 0;
      if (is_held || work == 0) continue;
      --work;
      const bool is_elsewhere = entry != owner && segments_.segment_of(offset_of(entry)) != offer.segment;
      elsewhere += is_elsewhere;
      if (!is_elsewhere && entry != owner) continue;  // it comes, or came, by itself
      lost[page.tenant] += segments_.slot_bytes(page.size_class);
      for (std::uint32_t child = page.first_child; child != kNoEntry; child = pages_[child].next_sibling) {
        open.push_back(child);
      }
    }
  }
  offer.elsewhere = static_cast<double>(elsewhere) / static_cast<double>(owners.size());
  if (!may_all_lose(lost)) offer = SegmentOffer{};
}

void Arena::prefetch_page(const std::vector<std::uint32_t>& owners, std::size_t slot) const {
  if (slot >= owners.size() || is_free_slot(owners[slot])) return;
  __builtin_prefetch(&pages_[owners[slot]]);
  __builtin_prefetch(&view_.entries[owners[slot]]);
}

void Arena::begin_vacating(std::uint32_t segment, std::uint64_t now_ns) {
  ++counters_.segments_moved;
  segments_.drain(segment);
  vacating_.push_back({segment, 0, now_ns, taker_});
  go_on_vacating(now_ns);
}

// Forgets segments that are free by now; those that somebody holds for too long keep their class.
void Arena::go_on_vacating(std::uint64_t now_ns) {
  std::size_t kept = 0;
  for (Vacating& vacating : vacating_) {
    if (segments_.draining(vacating.segment)) vacate(vacating);
    if (!segments_.draining(vacating.segment)) continue;
    if (now_ns - std::min(now_ns, vacating.since_ns) < kVacatingNsMax) {
      vacating_[kept++] = vacating;
    } else {
      segments_.reopen(vacating.segment);
    }
  }
  vacating_.resize(kept);
}

// Hides what is in a segment, leased or not, a bounded number of pages; what is reserved ends by itself. Each call goes on where
// the last one ended: below what is reserved there may be long chains, which are looked at in vain.
void Arena::vacate(Vacating& vacating) {
  std::uint64_t left = kVacatedPerCall;
  std::uint64_t looks = kLooksPerCall;
  const std::vector<std::uint32_t>& owners = segments_.owners(vacating.segment);
  for (std::size_t i = 0; i < owners.size() && left > 0 && looks > 0; ++i) {
    const std::size_t slot = vacating.next_slot++ % owners.size();
    prefetch_page(owners, slot + kAhead);
    const std::uint32_t entry = owners[slot];
    if (is_free_slot(entry) || pages_[entry].state != PageState::kVisible) continue;
    left -= std::min(left, hide_from_leaves_but_needed(entry, vacating, left, looks));
  }
  reclaim();
}

// As hide_from_leaves, but ends at a page that is being filled or reserved upon, pinned, or owed to its tenant. Takes what it
// looked at off `looks`.
std::uint64_t Arena::hide_from_leaves_but_needed(std::uint32_t top, const Vacating& vacating, std::uint64_t pages, std::uint64_t& looks) {
  std::uint64_t hidden = 0;
  std::uint32_t at = top;
  while (hidden < pages) {
    for (; pages_[at].first_child != kNoEntry; looks -= looks > 0) at = pages_[at].first_child;
    if (pages_[at].state != PageState::kVisible || at == pinned_parent_ || is_kept(at, vacating.taker)) break;
    const std::uint32_t parent = pages_[at].parent;
    hidden += hide_subtree(at, HideCause::kSegment);
    if (at == top) break;
    at = parent;
  }
  return hidden;
}

}  // namespace stratakv
