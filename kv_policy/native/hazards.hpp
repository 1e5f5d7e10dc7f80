// How likely a run is to be asked for again, by its kind and its age: counts of what happened, and an estimate made of them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ages.hpp"

namespace stratakv {

// A cell is a kind of run: reused before or new; `fan`: what went on from it was something else; `last`: the last page that
// its request asked for, which is seldom full of what the next request begins with; and how many pages of its request were
// unknown, by powers of two.
struct Cell {
  static constexpr std::uint32_t kCells = 128;
  static constexpr std::uint32_t kShapes = 3;  // new, reused, reused with fan

  static std::uint32_t of(bool reused, bool fan, bool last, std::uint32_t unknown_pages) {
    std::uint32_t length = 0;
    while (unknown_pages != 0 && length < 15) {
      unknown_pages >>= 1;
      ++length;
    }
    return (reused ? 64u : 0u) | (fan ? 32u : 0u) | (last ? 16u : 0u) | length;
  }
  static std::uint32_t shape(std::uint32_t cell) { return (cell & 64u) == 0 ? 0u : 1u + (cell >> 5 & 1u); }
};

// Lives of runs, each begun by a request and ended by the next use or by being forgotten, weighted by the root of their pages.
// The hazard at an age is the share of lives of that age that a use ends. Cells have few lives, so theirs are drawn towards
// those of their shape, and these towards those of all.
class Hazards {
 public:
  static constexpr std::uint32_t kBins = AgeScale::kBins;
  using Bins = std::array<float, kBins>;
  using Table = std::vector<Bins>;  // a row a cell

  Hazards() : used_(Cell::kCells), ended_(Cell::kCells), edges_(Cell::kCells), horizons_(Cell::kCells), theta_(Cell::kCells) {}

  void used(std::uint32_t cell, double age_s, float weight) {
    const std::uint32_t bin = AgeScale::place(age_s).bin;
    used_[cell][bin] += weight;
    ended_[cell][bin] += weight;
  }

  void forgotten(std::uint32_t cell, double age_s, float weight) { ended_[cell][AgeScale::place(age_s).bin] += weight; }

  // Expected uses a second of keeping a run of this kind, for as long as that is best.
  float index(std::uint32_t cell, double age_s) const {
    const AgeScale::Place at = AgeScale::place(age_s);
    const auto& row = edges_[cell];
    return row[at.bin] + at.within * (row[at.bin + 1] - row[at.bin]);
  }

  // For how long that is.
  float horizon_s(std::uint32_t cell, double age_s) const { return horizons_[cell][AgeScale::place(age_s).bin]; }

  // `living`: weights of lives that have not ended, at their ages. Then all that was counted counts a little less. What is
  // estimated counts once `index_cells` has been called until it says that it is through.
  void estimate(const Table& living);

  // Indexes some cells more; false when there are none left.
  bool index_cells(std::uint32_t count);

  const Table& used_table() const { return used_; }
  const Table& ended_table() const { return ended_; }
  void restore(std::uint32_t cell, std::uint32_t bin, float used, float ended) {
    used_[cell][bin] = used;
    ended_[cell][bin] = ended;
  }

 private:
  static constexpr float kDecay = 0.985F;
  static constexpr float kLeastHazard = 0.02F;   // of a bin, before anything is known
  static constexpr float kAllPrior = 30, kShapePrior = 130, kScalePrior = 10;
  static constexpr float kThetaNew = 1, kThetaReused = 3;
  static constexpr double kLeastSurvival = 1e-4;
  static constexpr float kMostHazard = 0.98F, kMostPrior = 0.95F;
  using Edges = std::array<float, kBins + 1>;

  struct Pooled {
    Bins events{}, reach{};
    void smooth() {
      for (Bins* curve : {&events, &reach}) {
        for (int pass = 0; pass < 2; ++pass) {
          Bins next;
          for (std::uint32_t k = 0; k < kBins; ++k) {
            const float before = (*curve)[k == 0 ? 0 : k - 1], after = (*curve)[k + 1 == kBins ? k : k + 1];
            next[k] = 0.25F * before + 0.5F * (*curve)[k] + 0.25F * after;
          }
          *curve = next;
        }
      }
    }
  };

  static Bins reach_of(const Bins& used, const Bins& ended, const Bins& living);
  void index_cell(std::uint32_t cell, const Bins& hazard);

  Table used_, ended_;
  std::vector<Edges> edges_;
  Table horizons_;
  std::vector<float> theta_;
  std::array<Bins, Cell::kShapes> shape_hazards_{};
  std::uint32_t indexed_ = Cell::kCells;  // of the last estimate
};

inline Hazards::Bins Hazards::reach_of(const Bins& used, const Bins& ended, const Bins& living) {
  Bins reach;
  float beyond = 0;
  for (std::uint32_t k = kBins; k-- > 0;) {
    const float here = ended[k] + living[k];
    beyond += here;
    reach[k] = beyond - 0.5F * (here - used[k]);
  }
  return reach;
}

inline void Hazards::estimate(const Table& living) {
  std::vector<Bins> reach(Cell::kCells);
  std::array<Pooled, Cell::kShapes> shapes;
  Pooled all;
  for (std::uint32_t cell = 0; cell < Cell::kCells; ++cell) {
    reach[cell] = reach_of(used_[cell], ended_[cell], living[cell]);
    Pooled& shape = shapes[Cell::shape(cell)];
    for (std::uint32_t k = 0; k < kBins; ++k) {
      shape.events[k] += used_[cell][k];
      shape.reach[k] += reach[cell][k];
    }
  }
  for (const Pooled& shape : shapes) {
    for (std::uint32_t k = 0; k < kBins; ++k) {
      all.events[k] += shape.events[k];
      all.reach[k] += shape.reach[k];
    }
  }
  for (Pooled& shape : shapes) shape.smooth();
  all.smooth();
  float events = 0, exposed = 0;
  for (std::uint32_t k = 0; k < kBins; ++k) {
    events += all.events[k];
    exposed += all.reach[k];
  }
  const float flat = std::max(kLeastHazard, (events + 1) / (exposed + 10));
  Bins of_all;
  for (std::uint32_t k = 0; k < kBins; ++k) of_all[k] = (all.events[k] + kAllPrior * flat) / (all.reach[k] + kAllPrior);
  std::array<Bins, Cell::kShapes>& of_shape = shape_hazards_;
  for (std::uint32_t s = 0; s < Cell::kShapes; ++s) {
    float seen = kScalePrior, expected = kScalePrior;
    for (std::uint32_t k = 0; k < kBins; ++k) {
      seen += shapes[s].events[k];
      expected += shapes[s].reach[k] * of_all[k];
    }
    const float scale = seen / expected;
    for (std::uint32_t k = 0; k < kBins; ++k) {
      const float prior = std::min(kMostPrior, scale * of_all[k]);
      of_shape[s][k] = (shapes[s].events[k] + kShapePrior * prior) / (shapes[s].reach[k] + kShapePrior);
    }
  }
  for (std::uint32_t cell = 0; cell < Cell::kCells; ++cell) {
    const Bins& shape = of_shape[Cell::shape(cell)];
    const float usual = Cell::shape(cell) == 0 ? kThetaNew : kThetaReused;
    float seen = kScalePrior, expected = 0;
    for (std::uint32_t k = 0; k < kBins; ++k) {
      seen += used_[cell][k];
      expected += reach[cell][k] * shape[k];
    }
    theta_[cell] = usual * seen / (usual * expected + kScalePrior);
    for (std::uint32_t k = 0; k < kBins; ++k) {
      used_[cell][k] *= kDecay;
      ended_[cell][k] *= kDecay;
    }
  }
  indexed_ = 0;
}

inline bool Hazards::index_cells(std::uint32_t count) {
  for (; count > 0 && indexed_ < Cell::kCells; --count, ++indexed_) {
    const Bins& shape = shape_hazards_[Cell::shape(indexed_)];
    Bins hazard;
    for (std::uint32_t k = 0; k < kBins; ++k) {
      hazard[k] = 1 - std::pow(1 - std::min(shape[k], kMostHazard), theta_[indexed_]);
    }
    index_cell(indexed_, hazard);
  }
  return indexed_ < Cell::kCells;
}

// From each edge on: the best chance to be used per time held, over all ages until which a run could be held.
inline void Hazards::index_cell(std::uint32_t cell, const Bins& hazard) {
  for (std::uint32_t k = 0; k < kBins; ++k) {
    double survives = 1, held_s = 0;
    double best = 0, horizon = 0;
    for (std::uint32_t j = k; j < kBins && survives > kLeastSurvival; ++j) {
      const double width_s = AgeScale::edge_s(j + 1) - AgeScale::edge_s(j);
      held_s += width_s * (1 - 0.5 * hazard[j]) * survives;
      survives *= 1 - hazard[j];
      const double rate = (1 - survives) / held_s;
      if (rate <= best) continue;
      best = rate;
      horizon = AgeScale::edge_s(j + 1) - AgeScale::edge_s(k);
    }
    edges_[cell][k] = static_cast<float>(best);
    horizons_[cell][k] = static_cast<float>(horizon);
  }
  edges_[cell][kBins] = edges_[cell][kBins - 1];
}

}  // namespace stratakv
