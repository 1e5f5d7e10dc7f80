// PrefixPolicy's choices: who goes next, and when what is known is looked at again. Included by prefix_policy.hpp.
#pragma once

#include "prefix_policy.hpp"

namespace stratakv {

inline void PrefixPolicy::begin_round(std::uint64_t now_ns) {
  now_ns_ = std::max(now_ns_, now_ns);
  full_pages_ = resident_pages_;
  learns_now_ = is_learned();
  std::fill(chosen_.begin(), chosen_.end(), kNoRun);
}

// A run was used later than any look-up told.
inline void PrefixPolicy::used_since(std::uint32_t number, std::uint64_t touched_ns) {
  Run& run = runs_[number];
  ++counts_.made_up;
  hazards_.used(run.cell, seconds_between(run.touched_ns, touched_ns), weight(run.pages));
  shadow_.used(run.touched_ns, run.pages, 0, false);
  shadow_.touched(touched_ns, run.pages, room());
  run.touched_ns = touched_ns;
  run.reused = true;
  run.last = false;
  classify(number);
  refresh(number);
}

template <class LastAccess>
std::optional<ColdPage> PrefixPolicy::oldest(std::uint16_t queue, const LastAccess& last_access) {
  LeafHeap& heap = leaves_[queue];
  for (std::uint32_t looks = 0; !heap.empty(); ++looks) {
    const std::uint32_t number = heap[0].run;
    const Run& run = runs_[number];
    const std::uint64_t accessed = looks < kLooksPerCall ? last_access(run.tail) : 0;
    if (accessed <= run.touched_ns) return ColdPage{run.tail, static_cast<double>(run.touched_ns), run.touched_ns};
    used_since(number, accessed);
  }
  return std::nullopt;
}

// Expected uses a second, times what each is worth.
inline double PrefixPolicy::value_of(std::uint32_t number) const {
  const Run& run = runs_[number];
  const double age_s = seconds_between(run.touched_ns, now_ns_);
  double value = static_cast<double>(hazards_.index(run.cell, age_s));
  value *= cost_of(kind_of(run), run.depth);
  if (run.expires_s != 0) {
    const double left_s = static_cast<double>(run.expires_s) - static_cast<double>(now_ns_) * 1e-9;
    const double horizon_s = static_cast<double>(hazards_.horizon_s(run.cell, age_s));
    if (left_s < horizon_s) value *= left_s > 0 ? left_s / horizon_s : 0;
  }
  return value;
}

// What its value depends on besides age and depth, as far as it fits.
inline std::uint32_t PrefixPolicy::kind_of(const Run& run) const {
  const Page& tail = pages_[run.tail];
  const bool asks_run = run.left != 0 || run.expires_s != 0;
  return run.cell | (tail.elsewhere ? kElsewhereKind : 0u) | tail.cost << kCostShift | (asks_run ? kAskRun : 0u);
}

// What it costs to lose a leaf's last page. Of one that is loaded it matters not how long it would take to compute.
inline double PrefixPolicy::cost_of(std::uint32_t kind, std::uint32_t depth) const {
  static const std::array<double, kCosts> costs = [] {
    std::array<double, kCosts> all{};
    for (std::uint32_t i = 0; i < kCosts; ++i) all[i] = std::exp2(0.5 * (static_cast<double>(i) - kCostOne));
    return all;
  }();
  const double cost = costs[kind >> kCostShift & (kCosts - 1)];
  return (kind & kElsewhereKind) != 0 ? cost * elsewhere_cost_ : cost * (1 + attention_ * depth);
}

inline double PrefixPolicy::value_of(const LeafHeap::Leaf& leaf) const {
  constexpr double kKept = 1e300;  // chosen only when there is nothing else: more is being put on top of it
  if ((leaf.kind & kAskRun) == 0) {
    const float index = hazards_.index(leaf.kind & kCellMask, seconds_between(leaf.touched_ns, now_ns_));
    return static_cast<double>(index) * cost_of(leaf.kind, leaf.depth);
  }
  return is_open(runs_[leaf.run]) ? kKept : value_of(leaf.run);
}

// The least of a sample, in which the least recently used is always; equal values: the older.
inline std::uint32_t PrefixPolicy::least_of_samples(const LeafHeap& heap) {
  std::array<std::uint32_t, kSamples> places;
  const std::uint32_t count = std::min(heap.size(), kSamples);
  for (std::uint32_t i = 0; i < count; ++i) {
    places[i] = i == 0 || heap.size() <= kSamples ? i : drawn(heap.size());
    heap.prefetch(places[i]);
  }
  std::uint32_t best = 0;
  double least = value_of(heap[0]);
  for (std::uint32_t i = 1; i < count; ++i) {
    const LeafHeap::Leaf& leaf = heap[places[i]];
    const double value = value_of(leaf);
    if (value > least || (value == least && leaf.touched_ns >= heap[best].touched_ns)) continue;
    best = places[i];
    least = value;
  }
  return heap[best].run;
}

template <class LastAccess>
std::optional<ColdPage> PrefixPolicy::coldest(std::uint16_t queue, const LastAccess& last_access) {
  if (leaves_.size() <= queue || leaves_[queue].empty()) return std::nullopt;
  if (!learns_now_) return oldest(queue, last_access);
  std::uint32_t chosen = chosen_[queue];
  if (chosen == kNoRun || runs_[chosen].place == LeafHeap::kNowhere) {
    for (std::uint32_t i = 0;; ++i) {
      chosen = least_of_samples(leaves_[queue]);
      const std::uint64_t accessed = last_access(runs_[chosen].tail);
      if (accessed <= runs_[chosen].touched_ns) break;
      used_since(chosen, accessed);
      if (i == kRetries) break;
    }
    chosen_[queue] = chosen;
  }
  const std::uint32_t tail = runs_[chosen].tail;
  ghosts_.prefetch(pages_[tail].digest);
  if (pages_[tail].parent != kNoPage) __builtin_prefetch(&pages_[pages_[tail].parent], 1);
  return ColdPage{tail, value_of(chosen), runs_[chosen].touched_ns};
}

inline void PrefixPolicy::cold(std::uint16_t queue, std::uint32_t turn, std::uint32_t looks, std::uint32_t most,
                               std::vector<std::uint32_t>& found) const {
  if (leaves_.size() <= queue || leaves_[queue].empty() || looks == 0) return;
  const LeafHeap& heap = leaves_[queue];
  const bool learns = is_learned();
  const std::uint32_t stride = learns ? (heap.size() - 1) / looks + 1 : 1;  // the heap's front holds the least recently used
  std::vector<std::pair<double, std::uint32_t>> runs;
  for (std::uint32_t at = learns ? turn % stride : 0; at < heap.size() && runs.size() < looks; at += stride) {
    const LeafHeap::Leaf& leaf = heap[at];
    runs.emplace_back(learns ? value_of(leaf) : static_cast<double>(leaf.touched_ns), leaf.run);
  }
  std::sort(runs.begin(), runs.end());
  std::uint32_t left = most;
  for (const auto& [value, number] : runs) {
    std::uint32_t page = runs_[number].tail;
    for (std::uint32_t i = 0; i < runs_[number].pages && left > 0; ++i, --left) {
      found.push_back(page);
      page = pages_[page].parent;
    }
  }
}

// Weights of the lives that go on, at their ages: of runs, and of ghosts, of either a bounded sample.
inline void PrefixPolicy::begin_gathering() {
  for (Hazards::Bins& bins : living_) bins.fill(0);
  run_step_ = runs_.size() / kLivesSampled + 1;
  next_run_ = run_step_ == 1 ? 0 : drawn(static_cast<std::uint32_t>(run_step_));
  bucket_step_ = (ghosts_.buckets() - 1) / (kLivesSampled / Ghosts::kWays) + 1;
  next_bucket_ = bucket_step_ == 1 ? 0 : drawn(static_cast<std::uint32_t>(bucket_step_));
}

// Looks at so many, or some more; false when that was the last of them.
inline bool PrefixPolicy::gather_living(std::uint32_t lives) {
  for (; lives > 0 && next_run_ < runs_.size(); next_run_ += run_step_, --lives) {
    const Run& run = runs_[static_cast<std::uint32_t>(next_run_)];
    if (run.pages == 0) continue;
    const std::uint32_t bin = AgeScale::place(seconds_between(run.touched_ns, now_ns_)).bin;
    const float share = static_cast<float>(run.pages) / weight(run.whole);
    living_[run.cell][bin] += share * static_cast<float>(run_step_);
  }
  for (; lives > 0 && next_bucket_ < ghosts_.buckets(); next_bucket_ += bucket_step_) {
    ghosts_.visit(next_bucket_, now_ns_, [&](std::uint32_t, const Ghosts::Ghost& ghost) {
      const std::uint32_t bin = AgeScale::place(ghost.age_s).bin;
      living_[ghost.cell][bin] += ghost_weight(ghost.weight_class) * static_cast<float>(bucket_step_);
    });
    lives -= std::min(lives, Ghosts::kWays);
  }
  return next_run_ < runs_.size() || next_bucket_ < ghosts_.buckets();
}

inline void PrefixPolicy::estimate_at_once() {
  begin_gathering();
  while (gather_living(kLivesSampled)) continue;
  hazards_.estimate(living_);
  hazards_.index_cells(Cell::kCells);
  estimating_ = Estimating::kNot;
}

// Often while little is known, then every so often; in a large cache in steps, so that no request takes long for it.
inline void PrefixPolicy::maybe_estimate() {
  const std::uint64_t requests = counts_.requests;
  if (options_.mode != PolicyMode::kLearned) return;
  go_on_estimating();
  if (requests % estimate_every() != 0 && requests != 20 && requests != 50 && requests != 100) return;
  if (!is_large()) {
    estimate_at_once();
    ++counts_.estimates;
  } else if (estimating_ == Estimating::kNot) {
    begin_gathering();
    estimating_ = Estimating::kGathering;
  }
}

inline void PrefixPolicy::go_on_estimating() {
  switch (estimating_) {
    case Estimating::kNot:
      break;
    case Estimating::kGathering:
      if (gather_living(kLivesPerRequest)) break;
      hazards_.estimate(living_);
      estimating_ = Estimating::kIndexing;
      break;
    case Estimating::kIndexing:
      if (hazards_.index_cells(kCellsPerRequest)) break;
      estimating_ = Estimating::kNot;
      ++counts_.estimates;
      break;
  }
}

}  // namespace stratakv
