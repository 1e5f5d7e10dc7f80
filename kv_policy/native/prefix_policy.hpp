// Which page goes next: the eviction policy of all tiers, a state machine that learns from what is asked for.
//
// The owner of the memory tells what happens to its pages and asks for victims; it carries them out. A page is a handle below
// `pages`. Only pages without a resident page on top of them are ever victims, so that what stays is closed under prefixes.
// There is no clock, no I/O and no lock in here; times are ns of one clock that never steps. Memory is 16 bytes a page, 56 and
// 24 a run (consecutive pages that one request used), that of the ghosts (ghosts.hpp), and 2 MB at most besides.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "ages.hpp"
#include "ghosts.hpp"
#include "hazards.hpp"
#include "leaves.hpp"
#include "lru_shadow.hpp"
#include "runs.hpp"

namespace stratakv {

enum class PolicyMode : std::uint8_t {
  kLearned,  // by what is learned; least recently used tails first until enough is known
  kLru,      // least recently used tails first, always
};

struct PolicyOptions {
  std::uint32_t pages = 0;            // handles are below it; 2^24 at most
  PolicyMode mode = PolicyMode::kLearned;
  std::uint32_t attention_pages = 0;  // the depth at which to compute a page costs twice what the first one does; 0: all cost the same
  std::uint64_t seed = 1;             // of the samples
  std::uint32_t cached_pages = 0;     // that are resident at once, usually; 0: all handles. As many ghosts are kept as fit it
};

struct ColdPage {
  std::uint32_t page;
  double value;              // comparable between queues until the next `begin_round`; the least goes first
  std::uint64_t touched_ns;  // last access
};

// What the policy has seen and done.
struct PolicyCounts {
  std::uint64_t requests = 0;     // looked-up ones that it learned from
  std::uint64_t estimates = 0;
  std::uint64_t evicted = 0;
  std::uint64_t returned = 0;     // pages inserted that were evicted lately
  std::uint64_t made_up = 0;      // victims that were used later than any look-up told
  std::uint64_t elsewhere = 0;    // resident now, and held by a slower tier too
  std::uint64_t steps = 0;        // pages that were passed to split, merge or measure runs: what look-ups cost
};

class PrefixPolicy {
 public:
  static constexpr std::uint32_t kPagesMost = 1u << 24;
  static constexpr std::uint64_t kNever = 0;

  // Throws std::invalid_argument when there are no pages or too many.
  explicit PrefixPolicy(const PolicyOptions& options)
      : options_(options), ghosts_(options.cached_pages != 0 ? options.cached_pages : options.pages),
        shadow_(options.cached_pages != 0 ? options.cached_pages : options.pages),
        full_pages_(options.pages),
        random_(options.seed | 1) {
    if (options.pages == 0 || options.pages > kPagesMost) throw std::invalid_argument("pages must be 1 to 2^24");
    pages_.resize(options.pages);
    living_.resize(Cell::kCells);
    set_attention_pages(options.attention_pages);
  }

  // A request asked for a chain. `resident_pages` of it were there, `deepest` the last of them (kNoPage: none was);
  // `missing_pages` were not. What its owner then inserts on top of `deepest`, in however many pieces, is taken for these.
  // `first_missing` is the digest of the first page that was missing, if known: it finds the request again where none was there.
  void looked(std::uint32_t deepest, std::uint32_t resident_pages, std::uint32_t missing_pages, std::uint64_t now_ns,
              std::uint32_t first_missing = 0);

  // A page was used with all that it stands on, and nothing else is known of the request.
  void touched(std::uint32_t page, std::uint64_t now_ns);

  // A page became resident on top of `parent` (kNoPage: first of its chain). `digest` is of its key: the same page gets the
  // same one whenever it comes back; 0: unknown, and it is not known again. Victims are asked for by queue. `expires_ns`: kNever, or when its time to live ends.
  void insert(std::uint32_t page, std::uint32_t parent, std::uint32_t digest, std::uint16_t queue, std::uint64_t now_ns,
              std::uint64_t expires_ns = kNever);

  // A page is resident no more: `evicted` for want of room, or because it is not valid any more (such a page is forgotten).
  // Whoever removes a page removes all that stands on it, in any order, before it calls anything but `remove` again.
  void remove(std::uint32_t page, bool evicted);

  // A page that is leased, pinned, or carries something that is not inserted yet is no victim while it is withdrawn.
  // Both may be said again. A page is offered when it is inserted.
  void withdraw(std::uint32_t page);
  void offer(std::uint32_t page);

  // What it costs to lose a page, against computing the first one of a chain anew (1). Kept in steps of √2, from 2^−8 to 2^7.5.
  void set_cost(std::uint32_t page, double cost);

  // Whether a slower tier holds the page too, so that whoever misses it here loads it. What that costs against computing it is
  // the same for all of them, in (0, 1], and counts from now on for those that are known to be there already.
  void set_elsewhere(std::uint32_t page, bool is_elsewhere);
  void set_elsewhere_cost(double cost);

  // The depth at which to compute a page costs twice what the first one does; 0: all cost the same.
  void set_attention_pages(std::uint32_t pages) {
    options_.attention_pages = pages;
    attention_ = pages == 0 ? 0 : 1.0 / pages;
  }

  // Victims are about to be asked for.
  void begin_round(std::uint64_t now_ns);

  // The next victim of a queue; it stays until it is removed. `last_access(page)` is asked about pages that seem cold: the
  // owner's own knowledge of their last use, 0 if it has none. What was used later than look-ups told is no victim for that.
  template <class LastAccess>
  std::optional<ColdPage> coldest(std::uint16_t queue, const LastAccess& last_access);
  std::optional<ColdPage> coldest(std::uint16_t queue) {
    return coldest(queue, [](std::uint32_t) { return std::uint64_t{0}; });
  }

  // Adds up to `most` pages of a queue that are likely to go soon, a run's tail before what it stands on: of `looks` leaves those
  // first that are worth least. These are the least recently used ones, or, where values are learned, other ones with each `turn`,
  // all in the end. Changes nothing, and asks nobody about later uses: a hint, not a choice.
  void cold(std::uint16_t queue, std::uint32_t turn, std::uint32_t looks, std::uint32_t most,
            std::vector<std::uint32_t>& found) const;

  bool resident(std::uint32_t page) const { return page < pages_.size() && pages_[page].resident; }
  bool is_leaf(std::uint32_t page) const { return resident(page) && pages_[page].children == 0; }
  bool is_elsewhere(std::uint32_t page) const { return resident(page) && pages_[page].elsewhere; }
  double elsewhere_cost() const { return elsewhere_cost_; }
  bool is_offered(std::uint32_t page) const { return resident(page) && !pages_[page].withdrawn; }
  std::uint32_t parent(std::uint32_t page) const { return pages_[page].parent; }
  std::uint64_t touched_ns(std::uint32_t page) const { return runs_[pages_[page].run].touched_ns; }
  const PolicyCounts& counts() const { return counts_; }
  const PolicyOptions& options() const { return options_; }
  // Whether enough is known to choose by, and that is no worse than least recently used would be.
  bool is_learned() const {
    return options_.mode == PolicyMode::kLearned && counts_.estimates > 0 && !shadow_.is_worse();
  }
  const LruShadow& shadow() const { return shadow_; }
  std::uint32_t runs() const { return runs_.living(); }
  std::uint64_t bytes() const {
    return pages_.size() * sizeof(Page) + runs_.bytes() + runs_.living() * sizeof(LeafHeap::Leaf) + ghosts_.bytes() +
           shadow_.bytes();
  }

 private:
  friend class PolicyState;

  static constexpr std::uint32_t kSamples = 64;
  static constexpr std::uint32_t kLooksPerCall = 2048;   // at what the owner knows, of one call; a third of a ms or so
  static constexpr std::uint32_t kRetries = 16;          // likewise of learned choices
  static constexpr std::uint32_t kLivesSampled = 8192;
  static constexpr std::uint32_t kLivesPerRequest = 128, kCellsPerRequest = 4;  // looked at and indexed, in a large cache
  static constexpr std::uint32_t kSmallPages = 1 << 16;
  static constexpr std::uint64_t kEstimateEvery = 100, kEstimateSeldom = 2000;  // requests, in small and in large caches
  static constexpr std::uint32_t kFanPages = 2;          // so much of a path may be left out without having gone elsewhere
  static constexpr std::uint32_t kMissingMost = 65'536;  // pages of one request that are believed to come
  static constexpr std::uint32_t kAsks = 64;             // requests of which nothing was there, that are remembered
  static constexpr std::uint64_t kOpenShare = 8;  // of the cache that a request may take which is waited for
  static constexpr std::uint64_t kOpenNs = 30'000'000'000;  // for so long is the rest of a request waited for
  static constexpr std::uint64_t kPutsWithinNs = 120'000'000'000;  // after a look-up

  struct Page {
    std::uint32_t parent = kNoPage;
    std::uint32_t run = kNoRun;
    std::uint32_t digest = 0;
    std::uint32_t children : 24;
    std::uint32_t cost : 5;  // steps of √2 from 2^−8
    std::uint32_t elsewhere : 1;
    std::uint32_t withdrawn : 1;
    std::uint32_t resident : 1;
    Page() : children(0), cost(kCostOne), elsewhere(0), withdrawn(0), resident(0) {}
  };
  static constexpr std::uint32_t kCostOne = 16, kCosts = 32;
  // A leaf's kind: the cell in the lowest bits; where nothing else tells its value, its cost and whether it is elsewhere.
  static constexpr std::uint32_t kCellMask = Cell::kCells - 1, kElsewhereKind = Cell::kCells, kCostShift = 8;
  static constexpr std::uint32_t kAskRun = 1u << 31;
  static_assert((Cell::kCells & kCellMask) == 0 && Cell::kCells * 2 <= 1u << kCostShift);
  struct Ask {
    std::uint32_t digest = 0, pages = 0;
    std::uint64_t now_ns = 0;
  };

  // Runs and the pages in them (prefix_runs.hpp).
  std::uint32_t cut_above(std::uint32_t page);
  void relabel(std::uint32_t run, std::uint32_t to);
  void cover(std::uint32_t deepest, std::uint32_t missing_pages, bool fan, bool may_fan);
  void join(std::uint32_t page, std::uint32_t parent, std::uint16_t queue, const std::optional<Ghosts::Ghost>& ghost);
  void start_run(std::uint32_t page, const Run& like, std::uint32_t parent);
  void extend_run(std::uint32_t run, std::uint32_t page);
  Run asked_at_root(std::uint32_t digest);
  void classify(std::uint32_t run);
  void classify_request(std::uint32_t run);
  void refresh(std::uint32_t run);
  void drop_run(std::uint32_t run);

  // Choices.
  template <class LastAccess>
  std::optional<ColdPage> oldest(std::uint16_t queue, const LastAccess& last_access);
  double value_of(std::uint32_t run) const;
  double value_of(const LeafHeap::Leaf& leaf) const;
  double cost_of(std::uint32_t kind, std::uint32_t depth) const;
  std::uint32_t kind_of(const Run& run) const;
  std::uint64_t room() const { return options_.cached_pages != 0 ? options_.cached_pages : full_pages_; }
  // Whether more is being put on top of a run; in a cache of a few requests, which would have room for little else, it is taken
  // for what it is so far.
  bool is_open(const Run& run) const {
    return run.left != 0 && std::uint64_t{run.path_depth} * kOpenShare <= room() &&
           now_ns_ - std::min(now_ns_, run.touched_ns) < kOpenNs;
  }
  std::uint32_t least_of_samples(const LeafHeap& heap);
  bool is_large() const { return pages_.size() > kSmallPages; }
  std::uint64_t estimate_every() const {
    return std::clamp<std::uint64_t>(pages_.size() / 512, kEstimateEvery, kEstimateSeldom);
  }
  void used_since(std::uint32_t run, std::uint64_t touched_ns);
  void maybe_estimate();
  void go_on_estimating();
  void begin_gathering();
  bool gather_living(std::uint32_t lives);
  void estimate_at_once();

  static float weight(std::uint32_t pages) { return std::sqrt(static_cast<float>(pages)); }
  static std::uint32_t weight_class(std::uint32_t pages) {
    std::uint32_t length = 0;
    while (pages > 1 && length + 1 < Ghosts::kWeightClasses) {
      pages >>= 1;
      ++length;
    }
    return length;
  }
  static float ghost_weight(std::uint32_t weight_class) { return std::exp2(-0.5F * static_cast<float>(weight_class)); }
  std::uint32_t drawn(std::uint32_t below) {
    random_ ^= random_ >> 12;
    random_ ^= random_ << 25;
    random_ ^= random_ >> 27;
    const std::uint64_t word = (random_ * 0x2545F4914F6CDD1DULL) >> 32;
    return static_cast<std::uint32_t>(word * below >> 32);
  }

  PolicyOptions options_;
  std::vector<Page> pages_;
  Runs runs_;
  std::vector<LeafHeap> leaves_;            // by queue
  std::vector<std::uint32_t> chosen_;       // by queue: the run whose tails go, until the next round
  Ghosts ghosts_;
  Hazards hazards_;
  Hazards::Table living_;
  enum class Estimating : std::uint8_t { kNot, kGathering, kIndexing };
  Estimating estimating_ = Estimating::kNot;  // in a large cache: some of it at each request
  std::uint64_t next_run_ = 0, run_step_ = 1, next_bucket_ = 0, bucket_step_ = 1;  // whose lives are gathered
  LruShadow shadow_;
  bool learns_now_ = false;                 // in this round
  std::array<Ask, kAsks> asks_{};
  std::uint32_t next_ask_ = 0;
  std::uint64_t now_ns_ = 0;
  std::uint64_t resident_pages_ = 0;
  std::uint64_t full_pages_;  // what fits, as far as is known
  std::uint64_t random_;
  double elsewhere_cost_ = 1, attention_ = 0;
  PolicyCounts counts_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> covered_;  // scratch: runs on the path, and what they become
};

}  // namespace stratakv

#include "prefix_choice.hpp"
#include "prefix_runs.hpp"
