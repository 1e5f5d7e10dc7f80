// Which size class gets a segment of another one: a pure state machine over counters. It sees no arena, reads no clock and
// allocates nothing; the arena tells it what happens, hands it samples of what others hold, and executes what it decides.
//
// A class's gain is the rate at which what it evicted is asked for again, by how much more memory would have kept it. A
// donor's loss is the rate at which what it would lose is used. What is used now but lies among the rest is missed once.
// All three are in segments' worth of hits. A page is worth the root of its size: halfway between the hits counted in pages,
// for which only small pages would be kept, and in bytes, for which only large ones, both counts stay near their best.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace stratakv {

constexpr std::uint32_t kSizeClassesMax = 192;  // more than steps of the ladder up to the largest segment
constexpr std::uint32_t kAgesSampled = 512;
constexpr std::uint32_t kDonorsMax = 8;

// A segment that a donor could give.
struct SegmentOffer {
  std::uint32_t segment = 0;
  std::uint32_t sampled = 0;  // slots of it that were looked at
  std::uint32_t used = 0;     // of those, slots that hold a page
  std::uint32_t warm = 0;     // of those, read within the policy's window
  std::uint32_t fresh = 0;    // of those, stored within it and never read yet
  std::uint32_t busy = 0;     // of all its slots and what stands on them, those leased, reserved, or hidden and still leased
  double elsewhere = 0;       // segments' worth of pages in others that stand on its own, and would go with them
  std::uint64_t youngest_age_ns = ~0ULL;
};

// Another class, as a bounded sample of its pages shows it.
struct Donor {
  std::uint32_t size_class = 0;
  std::uint32_t slots_per_segment = 1;
  std::uint64_t slots = 0, free_slots = 0;
  std::uint32_t ages = 0;  // of pages looked at; those of `age_ns` from here on mean nothing
  std::array<std::uint64_t, kAgesSampled> age_ns;
  SegmentOffer best;       // the cheapest of the segments that were looked at
};

class SegmentPolicy {
 public:
  static constexpr std::uint32_t kDistances = 16;  // by doublings of segments

  explicit SegmentPolicy(std::uint32_t segments) : segments_(segments) {}

  // A class of so many slots a segment took one. `now_ns` never goes back.
  void took(std::uint32_t slots_per_segment, std::uint64_t now_ns) {
    if (last_ns_ == 0) last_ns_ = now_ns;
    const double share = 1.0 / slots_per_segment;
    volume_ += share;
    pending_volume_ += share;
    if (pending_volume_ < 1) return;
    pending_volume_ -= 1;
    elapsed_ns_ += static_cast<double>(now_ns > last_ns_ ? now_ns - last_ns_ : 0);
    last_ns_ = std::max(last_ns_, now_ns);
    fade();
  }

  // A class lost a page for want of room.
  void evicted(std::uint32_t size_class, std::uint32_t slots_per_segment) {
    Demand& demand = demands_[size_class];
    demand.evicted += 1.0 / slots_per_segment;
    ++demand.since_asked;
  }

  // A page is stored anew that was evicted when its class had evicted `distance` pages fewer.
  void returned(std::uint32_t size_class, std::uint32_t slots_per_segment, std::uint64_t distance) {
    std::uint32_t step = 0;
    for (std::uint64_t slots = slots_per_segment; slots <= distance && step + 1 < kDistances; slots *= 2) ++step;
    demands_[size_class].returned[step] += 1.0 / slots_per_segment;
  }

  // What became of it when a class asked last.
  void answered(std::uint32_t size_class, bool got) {
    demands_[size_class].got = got;
    demands_[size_class].since_asked = 0;
  }

  // Whether a class that needs a slot is to ask for a segment before it evicts pages of its own.
  bool asks(std::uint32_t size_class, std::uint32_t slots_per_segment) const {
    const Demand& demand = demands_[size_class];
    return demand.got || demand.since_asked >= std::max(1u, slots_per_segment / kAsksPerSegment);
  }

  // How far back pages count as used now: the time in which a quarter of the arena was written lately.
  std::uint64_t window_ns() const {
    return volume_ > 0 ? static_cast<std::uint64_t>(elapsed_ns_ / volume_ * segments_ / kWindowsPerTurnover) : 0;
  }

  // The most that a segment more would have served lately, in segments a nanosecond.
  double gain(std::uint32_t size_class) const {
    double most = 0, sum = 0, distance = 1;
    for (const double hits : demands_[size_class].returned) {
      sum += hits;
      most = std::max(most, sum / distance);
      distance *= 2;
    }
    return elapsed_ns_ > 0 ? most / elapsed_ns_ : 0;
  }

  // The rate at which the coldest segment's worth of a donor is used, at most; no page more often than once in its age,
  // and none of a class more often than the class is used at all. Sorts the ages.
  double loss(Donor& donor) const {
    if (donor.free_slots >= donor.slots_per_segment) return 0;
    if (donor.ages == 0) return 0;
    const auto begin = donor.age_ns.begin();
    std::sort(begin, begin + donor.ages);
    const std::uint64_t window = std::max<std::uint64_t>(window_ns(), 1);
    const auto recent = static_cast<double>(std::lower_bound(begin, begin + donor.ages, window) - begin);
    const std::uint64_t used = std::max<std::uint64_t>(donor.slots - std::min(donor.slots, donor.free_slots), 1);
    const double share = std::min(1.0, static_cast<double>(donor.slots_per_segment) / static_cast<double>(used));
    const auto coldest = std::max(1u, static_cast<std::uint32_t>(share * donor.ages));
    double by_age = 0;
    for (std::uint32_t i = donor.ages - coldest; i < donor.ages; ++i) {
      by_age += 1.0 / static_cast<double>(std::max<std::uint64_t>(donor.age_ns[i], 1));
    }
    double rate = std::min(by_age / coldest, recent / donor.ages / static_cast<double>(window));
    if (demands_[donor.size_class].evicted >= 1) rate = std::min(rate, gain(donor.size_class));
    return rate;
  }

  // The donor of which a class that needs a slot takes the offered segment; null: none is worth it. `own_age_ns` is that
  // of the page that the class would evict instead.
  const Donor* choose(std::uint32_t size_class, std::uint32_t slots_per_segment, std::uint64_t own_age_ns, Donor* donors, std::uint32_t count) const {
    const double horizon_ns = static_cast<double>(window_ns());
    const double wins = gain(size_class) * worth(slots_per_segment);
    const Donor* best = nullptr;
    double best_net = 0;
    for (Donor* donor = donors; donor != donors + count; ++donor) {
      const SegmentOffer& offer = donor->best;
      if (offer.sampled == 0 || offer.busy != 0) continue;
      const double loses = loss(*donor) * worth(donor->slots_per_segment);
      const double once = once_lost(*donor) * worth(donor->slots_per_segment);
      double net = (wins - kLossWeight * loses) * horizon_ns - once - kMargin;
      // Nobody uses it, and all of it is colder than what would go instead: it serves whoever has use for memory.
      if (net <= 0 && loses == 0 && offer.youngest_age_ns > own_age_ns && offer.youngest_age_ns >= window_ns()) net = kMargin;
      if (net <= best_net) continue;
      best = donor;
      best_net = net;
    }
    return best;
  }

  // The donor that gives to a class which has neither a slot nor a page that may go: the one that loses least.
  const Donor* choose_in_need(Donor* donors, std::uint32_t count) const {
    const Donor* best = nullptr;
    double best_cost = 0;
    for (Donor* donor = donors; donor != donors + count; ++donor) {
      const SegmentOffer& offer = donor->best;
      if (offer.sampled == 0) continue;
      const double lost = loss(*donor) * static_cast<double>(window_ns()) + once_lost(*donor);
      const double cost = kBusyCost * offer.busy + lost * worth(donor->slots_per_segment);
      if (best != nullptr && cost >= best_cost) continue;
      best = donor;
      best_cost = cost;
    }
    return best;
  }

  // Which of two segments of one class is the cheaper to give: what is read counts most, what is there and used by nobody a
  // little, and what would go with either as much again.
  static bool is_cheaper(const SegmentOffer& a, const SegmentOffer& b) {
    if (a.busy != b.busy) return a.busy < b.busy;
    const auto cost = [](const SegmentOffer& offer) {
      const double pages = offer.warm + kFreshCost * offer.fresh + kUsedCost * offer.used;
      return pages / std::max(1u, offer.sampled) * (1 + offer.elsewhere);
    };
    const double cost_a = cost(a), cost_b = cost(b);
    return cost_a != cost_b ? cost_a < cost_b : a.youngest_age_ns > b.youngest_age_ns;
  }

 private:
  static constexpr double kWindowsPerTurnover = 4;
  static constexpr std::uint32_t kAsksPerSegment = 4;
  static constexpr double kLossWeight = 1.3;  // two equal classes don't take from each other by turns
  static constexpr double kMargin = 0.02;      // of a segment
  static constexpr double kBusyCost = 1e6;
  static constexpr double kFreshCost = 0.1, kUsedCost = 0.03;  // of a page that is read

  // What a class did lately: fades with what the whole arena takes in.
  struct Demand {
    double evicted = 0;  // segments' worth
    std::array<double, kDistances> returned{};
    std::uint32_t since_asked = 0;  // pages evicted
    bool got = false;               // a segment when it asked last
  };

  static double worth(std::uint32_t slots_per_segment) { return std::sqrt(static_cast<double>(slots_per_segment)); }

  // What is used now and goes with the offered segment, in segments' worth: it is missed once.
  double once_lost(const Donor& donor) const {
    const SegmentOffer& offer = donor.best;
    if (offer.used == 0) return 0;
    const double wanted = offer.warm + share_returned(donor.size_class) * offer.fresh;
    return wanted / offer.sampled + wanted / offer.used * offer.elsewhere;
  }

  // Of the pages that a class evicted lately, the share that is asked for again.
  double share_returned(std::uint32_t size_class) const {
    const Demand& demand = demands_[size_class];
    double sum = 0;
    for (const double hits : demand.returned) sum += hits;
    return demand.evicted < 1 ? 1 : std::min(1.0, sum / demand.evicted);
  }

  void fade() {
    const double keep = 1 - 1 / std::max(2.0, segments_ / kWindowsPerTurnover);
    volume_ *= keep;
    elapsed_ns_ *= keep;
    for (Demand& demand : demands_) {
      demand.evicted *= keep;
      for (double& hits : demand.returned) hits *= keep;
    }
  }

  std::uint32_t segments_;
  std::uint64_t last_ns_ = 0;
  double volume_ = 0, pending_volume_ = 0, elapsed_ns_ = 0;  // of what was taken lately, in segments, and in which time
  std::array<Demand, kSizeClassesMax> demands_{};
};

}  // namespace stratakv
