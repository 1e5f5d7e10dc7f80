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
  const std::uint32_t cost = pages_[run.tail].cost;
  if (cost != kCostOne) value *= std::exp2(0.25 * (static_cast<double>(cost) - kCostOne));
  if (options_.attention_pages != 0) value *= 1 + static_cast<double>(run.depth) / options_.attention_pages;
  if (run.expires_s != 0) {
    const double left_s = static_cast<double>(run.expires_s) - static_cast<double>(now_ns_) * 1e-9;
    const double horizon_s = static_cast<double>(hazards_.horizon_s(run.cell, age_s));
    if (left_s < horizon_s) value *= left_s > 0 ? left_s / horizon_s : 0;
  }
  return value;
}

// A run's cell, if its value depends on nothing but that and its age; else more than any cell.
inline std::uint32_t PrefixPolicy::kind_of(const Run& run) const {
  const bool is_plain = run.left == 0 && run.expires_s == 0 && options_.attention_pages == 0 && pages_[run.tail].cost == kCostOne;
  return is_plain ? run.cell : Cell::kCells;
}

inline double PrefixPolicy::value_of(const LeafHeap::Leaf& leaf) const {
  constexpr double kKept = 1e300;  // chosen only when there is nothing else: more is being put on top of it
  if (leaf.kind < Cell::kCells) {
    return static_cast<double>(hazards_.index(leaf.kind, seconds_between(leaf.touched_ns, now_ns_)));
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
  return ColdPage{runs_[chosen].tail, value_of(chosen), runs_[chosen].touched_ns};
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
inline void PrefixPolicy::gather_living() {
  for (Hazards::Bins& bins : living_) bins.fill(0);
  const std::uint32_t step = runs_.size() / kLivesSampled + 1;
  for (std::uint32_t i = step == 1 ? 0 : drawn(step); i < runs_.size(); i += step) {
    const Run& run = runs_[i];
    if (run.pages == 0) continue;
    const std::uint32_t bin = AgeScale::place(seconds_between(run.touched_ns, now_ns_)).bin;
    const float share = static_cast<float>(run.pages) / weight(run.whole);
    living_[run.cell][bin] += share * static_cast<float>(step);
  }
  const std::uint64_t buckets = ghosts_.buckets();
  const std::uint64_t stride = (buckets - 1) / (kLivesSampled / Ghosts::kWays) + 1;
  for (std::uint64_t i = stride == 1 ? 0 : drawn(static_cast<std::uint32_t>(stride)); i < buckets; i += stride) {
    ghosts_.visit(i, now_ns_, [&](std::uint32_t, const Ghosts::Ghost& ghost) {
      const std::uint32_t bin = AgeScale::place(ghost.age_s).bin;
      living_[ghost.cell][bin] += ghost_weight(ghost.weight_class) * static_cast<float>(stride);
    });
  }
}

// Often while little is known, then every so often.
inline void PrefixPolicy::maybe_estimate() {
  const std::uint64_t requests = counts_.requests;
  if (options_.mode != PolicyMode::kLearned) return;
  hazards_.index_cells(kCellsPerRequest);
  if (requests % estimate_every() != 0 && requests != 20 && requests != 50 && requests != 100) return;
  gather_living();
  hazards_.estimate(living_);
  if (counts_.estimates++ == 0 || pages_.size() <= kSmallPages) hazards_.index_cells(Cell::kCells);
}

}  // namespace stratakv
