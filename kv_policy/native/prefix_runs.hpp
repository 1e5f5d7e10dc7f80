// PrefixPolicy's bookkeeping: runs grow, split and merge as requests use paths. Included by prefix_policy.hpp.
#pragma once

#include "prefix_policy.hpp"

namespace stratakv {

// What lies above a page in its run becomes a run of its own, as it was. Returns the page's run.
inline std::uint32_t PrefixPolicy::cut_above(std::uint32_t page) {
  const std::uint32_t below = pages_[page].run;
  if (runs_[below].tail == page) return below;
  const std::uint32_t above = runs_.make(Run{runs_[below]});
  Run& upper = runs_[above];
  Run& lower = runs_[below];
  upper.pages = 0;
  std::uint32_t at = upper.tail;
  while (at != page && at != kNoPage && pages_[at].run == below) {
    pages_[at].run = above;
    upper.first = at;
    ++upper.pages;
    at = pages_[at].parent;
  }
  counts_.steps += upper.pages;
  lower.tail = page;
  lower.pages -= std::min(lower.pages, upper.pages);
  lower.depth -= upper.pages;
  upper.whole = lower.whole > lower.pages ? lower.whole - lower.pages : upper.pages;
  lower.whole = lower.pages;
  lower.left = 0;
  if (upper.place != LeafHeap::kNowhere) {
    const LeafHeap::Leaf leaf{upper.touched_ns, above, upper.tail, kind_of(upper), upper.depth};
    lower.place = LeafHeap::kNowhere;
    leaves_[upper.queue].change(upper.place, leaf, [&](std::uint32_t run, std::uint32_t place) { runs_[run].place = place; });
  }
  return below;
}

// All pages of a run become another one's.
inline void PrefixPolicy::relabel(std::uint32_t run, std::uint32_t to) {
  counts_.steps += runs_[run].pages;
  std::uint32_t page = runs_[run].tail;
  for (std::uint32_t i = runs_[run].pages; i > 0 && page != kNoPage && pages_[page].run == run; --i) {
    pages_[page].run = to;
    page = pages_[page].parent;
  }
}

// A request used the path up to `deepest`: its runs become one of now, or one a queue where the path has several.
inline void PrefixPolicy::cover(std::uint32_t deepest, std::uint32_t missing_pages, bool fan, bool may_fan) {
  covered_.clear();
  for (std::uint32_t page = deepest; page != kNoPage && pages_[page].resident;) {
    const std::uint32_t run = cut_above(page);
    Run& covered = runs_[run];
    hazards_.used(covered.cell, seconds_between(covered.touched_ns, now_ns_), static_cast<float>(covered.pages) / weight(covered.whole));
    shadow_.used(covered.touched_ns, covered.pages, 0, true);
    covered_.emplace_back(run, run);
    page = pages_[covered.first].parent;
  }
  shadow_.touched(now_ns_, runs_[covered_.front().first].depth, room());
  const std::uint32_t path_depth = runs_[covered_.front().first].depth + missing_pages;
  std::uint32_t left = missing_pages;
  for (std::size_t top = 0; top < covered_.size();) {
    std::size_t end = top, widest = top;
    std::uint32_t pages = 0;
    for (; end < covered_.size() && runs_[covered_[end].first].queue == runs_[covered_[top].first].queue; ++end) {
      if (runs_[covered_[end].first].pages > runs_[covered_[widest].first].pages) widest = end;
      pages += runs_[covered_[end].first].pages;
    }
    const std::uint32_t kept = covered_[widest].first;
    const Run topmost = runs_[covered_[top].first];
    const std::uint32_t first = runs_[covered_[end - 1].first].first;
    for (std::size_t i = top; i < end; ++i) {
      const std::uint32_t run = covered_[i].first;
      if (run == kept) continue;
      relabel(run, kept);
      drop_run(run);
    }
    Run& merged = runs_[kept];
    merged.touched_ns = now_ns_;
    merged.first = first;
    merged.tail = topmost.tail;
    merged.pages = merged.whole = pages;
    merged.depth = topmost.depth;
    merged.path_depth = path_depth;
    merged.expires_s = topmost.expires_s;
    merged.left = left;
    merged.unknown = missing_pages;
    merged.reused = true;
    merged.fan = fan;
    merged.may_fan = may_fan;
    merged.last = merged.unasked = false;
    classify(kept);
    refresh(kept);
    left = 0;
    top = end;
  }
}

inline void PrefixPolicy::looked(std::uint32_t deepest, std::uint32_t resident_pages, std::uint32_t missing_pages,
                                 std::uint64_t now_ns, std::uint32_t first_missing) {
  now_ns_ = std::max(now_ns_, now_ns);
  missing_pages = std::min(missing_pages, kMissingMost);
  ++counts_.requests;
  if (deepest == kNoPage || !resident(deepest) || resident_pages == 0) {
    shadow_.asked(missing_pages, 0);
    asks_[next_ask_] = Ask{first_missing, missing_pages, now_ns_};
    next_ask_ = (next_ask_ + 1) % kAsks;
  } else {
    const Run& before = runs_[pages_[deepest].run];
    const std::uint32_t above = before.tail == deepest ? 0 : 1;
    const bool goes_on = above != 0 || pages_[deepest].children != 0;
    // How far the path of whoever used it last went on beyond what was found now. What was evicted of it may come back.
    std::uint32_t depth = before.depth;
    if (above != 0) {
      for (std::uint32_t page = before.tail; page != deepest && page != kNoPage; page = pages_[page].parent) --depth;
      counts_.steps += before.depth - depth;
    }
    const bool is_short = before.path_depth > depth + kFanPages;
    shadow_.asked(std::uint64_t{depth} + missing_pages, depth);
    cover(deepest, missing_pages, is_short && goes_on, is_short && !goes_on);
  }
  maybe_estimate();
}

inline void PrefixPolicy::touched(std::uint32_t page, std::uint64_t now_ns) {
  if (!resident(page)) throw std::invalid_argument("page is not resident");
  if (now_ns <= touched_ns(page)) return;
  now_ns_ = std::max(now_ns_, now_ns);
  cover(page, 0, false, false);
}

inline Run PrefixPolicy::asked_at_root(std::uint32_t digest) {
  Run like;
  like.touched_ns = now_ns_;
  like.unasked = true;
  for (std::uint32_t i = 1; i <= kAsks; ++i) {
    Ask& ask = asks_[(next_ask_ + kAsks - i) % kAsks];
    if (ask.pages == 0 || (ask.digest != 0 && ask.digest != digest) || now_ns_ - ask.now_ns > kPutsWithinNs) continue;
    like.left = ask.pages;
    like.unknown = ask.pages;
    like.path_depth = ask.pages;
    like.unasked = false;
    ask.pages = 0;
    break;
  }
  return like;
}

inline void PrefixPolicy::start_run(std::uint32_t page, const Run& like, std::uint32_t parent) {
  Run run = like;
  run.first = run.tail = page;
  run.pages = run.whole = 1;
  run.depth = parent == kNoPage ? 1 : runs_[pages_[parent].run].depth + 1;
  run.place = LeafHeap::kNowhere;
  const std::uint32_t number = runs_.make(run);
  pages_[page].run = number;
  classify(number);
}

inline void PrefixPolicy::extend_run(std::uint32_t number, std::uint32_t page) {
  Run& run = runs_[number];
  run.tail = page;
  ++run.pages;
  ++run.whole;
  ++run.depth;
  pages_[page].run = number;
}

// Finds the run of a page that comes on top of `parent`, which may be none. `known`: it was here lately.
inline void PrefixPolicy::join(std::uint32_t page, std::uint32_t parent, std::uint16_t queue,
                               const std::optional<Ghosts::Ghost>& ghost) {
  const bool known = ghost.has_value();
  const std::uint32_t below = parent == kNoPage ? kNoRun : pages_[parent].run;
  Run like;
  if (options_.mode == PolicyMode::kLru) {  // a page was used when it was inserted, whenever its request asked for it
    like.unasked = true;
    like.touched_ns = now_ns_;
  } else if (below == kNoRun) {
    like = asked_at_root(pages_[page].digest);
  } else if (runs_[below].tail == parent && now_ns_ - std::min(now_ns_, runs_[below].touched_ns) <= kPutsWithinNs) {
    like = runs_[below];
    if (like.left == 0 && !like.unasked) {
      like = Run{};
      like.unasked = true;
      like.touched_ns = now_ns_;
    }
  } else {
    like.unasked = true;
    like.touched_ns = now_ns_;
  }
  like.queue = queue;
  const bool is_next_known = known && (below == kNoRun || like.reused || like.unasked);
  if (like.unasked) {
    // Nobody told how much comes: it grows, and with it what is known of its request.
    const bool grows = below != kNoRun && runs_[below].unasked && runs_[below].tail == parent &&
                       runs_[below].queue == queue && runs_[below].reused == known &&
                       runs_[below].touched_ns == now_ns_;
    if (grows) {
      Run& run = runs_[below];
      if (!known) ++run.unknown;
      run.path_depth = run.depth + 1;
      extend_run(below, page);
      classify(below);
      return;
    }
    like.touched_ns = now_ns_;
    like.left = 0;
    like.reused = known;
    like.fan = like.may_fan = like.last = false;
    like.unknown = known ? 0 : 1;
    like.expires_s = 0;
    start_run(page, like, parent);
    Run& run = runs_[pages_[page].run];
    run.path_depth = run.depth;
    return;
  }
  const std::uint32_t left = like.left - 1;
  if (below != kNoRun) runs_[below].left = 0;
  like.left = left;
  if (is_next_known) {
    if (like.unknown > 0) --like.unknown;
    if (below != kNoRun && runs_[below].queue == queue) {
      extend_run(below, page);
      runs_[below].left = left;
      runs_[below].unknown = like.unknown;
      runs_[below].may_fan = !runs_[below].fan && ghost->goes_on;
      if (left == 0 && runs_[below].may_fan) runs_[below].fan = true;
      if (left == 0) classify_request(below);
      return;
    }
    like.reused = true;
    like.may_fan = ghost->goes_on;
    like.fan = left == 0 && like.may_fan;
    start_run(page, like, parent);
    return;
  }
  if (below != kNoRun && runs_[below].may_fan) {
    runs_[below].fan = true;
    runs_[below].may_fan = false;
    classify(below);
  }
  const bool is_last = left == 0;
  if (below != kNoRun && !like.reused && !is_last && runs_[below].queue == queue && !runs_[below].last) {
    extend_run(below, page);
    runs_[below].left = left;
    return;
  }
  like.reused = like.fan = like.may_fan = false;
  like.last = is_last;
  like.expires_s = 0;
  start_run(page, like, parent);
  if (is_last) classify_request(pages_[page].run);
}

// A request's pages are all there, and how many of them nobody knew is known: so are the kinds of its runs.
inline void PrefixPolicy::classify_request(std::uint32_t run) {
  const std::uint32_t unknown = runs_[run].unknown;
  const std::uint64_t touched_ns = runs_[run].touched_ns;
  for (std::uint32_t i = 0; i < 4 && run != kNoRun && runs_[run].touched_ns == touched_ns; ++i) {
    runs_[run].unknown = unknown;
    classify(run);
    const std::uint32_t below = pages_[runs_[run].first].parent;
    run = below == kNoPage || !pages_[below].resident ? kNoRun : pages_[below].run;
  }
}

inline void PrefixPolicy::classify(std::uint32_t number) {
  Run& run = runs_[number];
  run.cell = static_cast<std::uint8_t>(Cell::of(run.reused, run.fan, run.last, run.unknown));
  if (run.place != LeafHeap::kNowhere) leaves_[run.queue].set_kind(run.place, kind_of(run));
}

// Puts a run where victims are looked for, or takes it away from there.
inline void PrefixPolicy::refresh(std::uint32_t number) {
  Run& run = runs_[number];
  const auto moved = [&](std::uint32_t other, std::uint32_t place) { runs_[other].place = place; };
  const bool may_go = run.pages != 0 && pages_[run.tail].children == 0 && !pages_[run.tail].withdrawn;
  LeafHeap& heap = leaves_[run.queue];
  if (!may_go) {
    if (run.place != LeafHeap::kNowhere) heap.remove(run.place, moved);
    return;
  }
  const LeafHeap::Leaf leaf{run.touched_ns, number, run.tail, kind_of(run), run.depth};
  if (run.place == LeafHeap::kNowhere) {
    heap.add(leaf, moved);
  } else {
    heap.change(run.place, leaf, moved);
  }
}

inline void PrefixPolicy::drop_run(std::uint32_t number) {
  Run& run = runs_[number];
  if (run.place != LeafHeap::kNowhere) {
    leaves_[run.queue].remove(run.place, [&](std::uint32_t other, std::uint32_t place) { runs_[other].place = place; });
  }
  if (chosen_[run.queue] == number) chosen_[run.queue] = kNoRun;
  runs_.drop(number);
}

inline void PrefixPolicy::insert(std::uint32_t page, std::uint32_t parent, std::uint32_t digest, std::uint16_t queue,
                                 std::uint64_t now_ns, std::uint64_t expires_ns) {
  ghosts_.prefetch(digest);
  if (page >= pages_.size() || pages_[page].resident) throw std::invalid_argument("page is resident already, or none");
  if (parent != kNoPage && !resident(parent)) throw std::invalid_argument("parent is not resident");
  now_ns_ = std::max(now_ns_, now_ns);
  if (leaves_.size() <= queue) {
    leaves_.resize(queue + 1u);
    chosen_.resize(queue + 1u, kNoRun);
  }
  Page& added = pages_[page];
  added = Page{};
  added.parent = parent;
  added.digest = digest;
  added.resident = true;
  ++resident_pages_;
  const std::optional<Ghosts::Ghost> ghost = digest == 0 ? std::nullopt : ghosts_.take(digest, now_ns_);
  if (ghost) {
    ++counts_.returned;
    shadow_.used(now_ns_ - static_cast<std::uint64_t>(ghost->age_s * 1e9), 1, Ghosts::kTickNs, true);
    hazards_.used(ghost->cell, ghost->age_s, ghost_weight(ghost->weight_class));
  }
  join(page, parent, queue, ghost);
  const std::uint32_t run = added.run;
  shadow_.touched(runs_[run].touched_ns, 1, room());
  if (expires_ns != kNever) {
    const auto expires_s = static_cast<std::uint32_t>(std::min<std::uint64_t>(expires_ns / 1'000'000'000 + 1, 0xFFFFFFFFu));
    Run& own = runs_[run];
    own.expires_s = own.expires_s == 0 ? expires_s : std::min(own.expires_s, expires_s);
  }
  if (parent != kNoPage) {
    ++pages_[parent].children;
    if (pages_[parent].run != run) refresh(pages_[parent].run);
  }
  refresh(run);
}

inline void PrefixPolicy::remove(std::uint32_t page, bool evicted) {
  if (!resident(page)) throw std::invalid_argument("page is not resident");
  Page& gone = pages_[page];
  const std::uint32_t number = gone.run;
  if (page != runs_[number].tail && runs_[number].first != kNoPage) {  // what stands on it goes too, but not yet
    if (page == runs_[number].first) {
      runs_[number].first = kNoPage;
    } else {
      cut_above(page);
    }
  }
  Run& run = runs_[number];
  if (evicted) ++counts_.evicted;
  if (evicted && gone.digest != 0) {
    const bool goes_on = run.path_depth > run.depth + kFanPages;
    const auto forgotten = ghosts_.add(gone.digest, run.touched_ns, run.cell, weight_class(run.whole), goes_on, now_ns_);
    if (forgotten) hazards_.forgotten(forgotten->cell, forgotten->age_s, ghost_weight(forgotten->weight_class));
  } else {
    hazards_.forgotten(run.cell, seconds_between(run.touched_ns, now_ns_), ghost_weight(weight_class(run.whole)));
  }
  const std::uint32_t parent = gone.parent;
  --run.pages;
  --resident_pages_;
  counts_.elsewhere -= gone.elsewhere;
  gone.resident = false;
  if (run.pages == 0) {
    drop_run(number);
  } else if (page == run.tail) {
    run.tail = parent;
    --run.depth;
    run.left = 0;
  }
  if (parent == kNoPage || !pages_[parent].resident) return;
  --pages_[parent].children;
  refresh(pages_[parent].run);
}

inline void PrefixPolicy::withdraw(std::uint32_t page) {
  if (!resident(page)) throw std::invalid_argument("page is not resident");
  if (pages_[page].withdrawn) return;
  pages_[page].withdrawn = true;
  refresh(pages_[page].run);
}

inline void PrefixPolicy::offer(std::uint32_t page) {
  if (!resident(page)) throw std::invalid_argument("page is not resident");
  if (!pages_[page].withdrawn) return;
  pages_[page].withdrawn = false;
  refresh(pages_[page].run);
}

inline void PrefixPolicy::set_cost(std::uint32_t page, double cost) {
  if (!resident(page)) throw std::invalid_argument("page is not resident");
  if (!(cost > 0) || !std::isfinite(cost)) throw std::invalid_argument("cost must be a positive number");
  const double step = std::round(2 * std::log2(cost)) + kCostOne;
  pages_[page].cost = static_cast<std::uint32_t>(std::clamp(step, 0.0, kCosts - 1.0)) & (kCosts - 1);
  refresh(pages_[page].run);
}

inline void PrefixPolicy::set_elsewhere(std::uint32_t page, bool is_elsewhere) {
  if (!resident(page)) throw std::invalid_argument("page is not resident");
  if (pages_[page].elsewhere == is_elsewhere) return;
  pages_[page].elsewhere = is_elsewhere;
  is_elsewhere ? ++counts_.elsewhere : --counts_.elsewhere;
  const std::uint32_t run = pages_[page].run;
  if (runs_[run].tail != page) return;
  refresh(run);
  std::uint32_t& chosen = chosen_[runs_[run].queue];
  if (chosen == run) chosen = kNoRun;  // for what it cost before
}

inline void PrefixPolicy::set_elsewhere_cost(double cost) {
  if (!(cost > 0 && cost <= 1)) throw std::invalid_argument("to load a page costs more than 0 and not more than 1");
  elsewhere_cost_ = cost;
}

}  // namespace stratakv
