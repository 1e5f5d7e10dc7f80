// Replays a trace of requests through the policy: what a cache of so many blocks would have had of what is asked for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "prefix_policy.hpp"

namespace stratakv {

// Requests are chains of block numbers; those of request i stand at offsets[i] to offsets[i + 1].
struct Trace {
  const std::int64_t* times_ns;
  const std::uint64_t* offsets;
  const std::uint64_t* blocks;
  std::uint64_t requests;
};

struct ReplayOptions {
  PolicyMode mode = PolicyMode::kLearned;
  std::uint32_t piece_blocks = 0;  // blocks that are put at once; 0: all of a request
  std::uint64_t seed = 1;
  std::uint32_t attention_blocks = 0;  // see PolicyOptions
  double elsewhere_cost = 1;           // below 1: a slower tier holds every block that was put too
};

struct ReplayResult {
  std::uint64_t requested = 0, hit = 0, evictions = 0;
  std::uint64_t decision_ns = 0;  // spent in the policy: look-ups, insertions, choices and removals
  std::uint64_t longest_ns = 0;   // of that, on one request
  std::uint64_t choice_ns = 0;    // of that, on choosing victims and removing them
};

// `Now` tells the time in ns, to say how long decisions took; nothing depends on it.
template <class Now>
class Replay {
 public:
  // `request_blocks_most`: of the longest request, which has its place beside the cache until what goes has been chosen.
  Replay(std::uint32_t capacity_blocks, std::uint32_t request_blocks_most, const ReplayOptions& options, const Now& now)
      : policy_(PolicyOptions{capacity_blocks + request_blocks_most, options.mode, options.attention_blocks, options.seed, capacity_blocks}),
        now_(now),
        capacity_blocks_(capacity_blocks),
        piece_blocks_(options.piece_blocks),
        is_elsewhere_(options.elsewhere_cost < 1),
        id_of_(capacity_blocks + request_blocks_most) {
    for (std::uint32_t page = capacity_blocks + request_blocks_most; page-- > 0;) free_.push_back(page);
    resident_.reserve(capacity_blocks);
    policy_.set_elsewhere_cost(options.elsewhere_cost);
  }

  PrefixPolicy& policy() { return policy_; }
  const ReplayResult& result() const { return result_; }

  // A hit counts only when every earlier block is resident on arrival. Then all blocks are used or inserted, and what is too
  // much goes, of the request itself too; put in pieces, it goes after each. Of a request longer than the cache the head stays.
  void request(std::uint64_t now_ns, const std::uint64_t* blocks, std::uint64_t count) {
    result_.requested += count;
    std::uint64_t found = 0;
    std::uint32_t tip = kNoPage;
    for (; found < count; ++found) {
      const auto at = resident_.find(blocks[found]);
      if (at == resident_.end()) break;
      tip = at->second;
    }
    result_.hit += found;
    if (count == 0) return;
    const std::uint64_t spent_before = result_.decision_ns;
    const std::uint64_t began = now_();
    const std::uint32_t missing_digest = found < count ? digest_of(blocks[found]) : 0;
    policy_.looked(tip, static_cast<std::uint32_t>(found), static_cast<std::uint32_t>(count - found), now_ns, missing_digest);
    result_.decision_ns += now_() - began;
    for (std::uint64_t i = found; i < count;) {
      if (tip != kNoPage && !policy_.resident(tip)) break;  // its last piece did not stay, so nothing can stand on it
      const std::uint64_t end = piece_blocks_ == 0 ? count : std::min<std::uint64_t>(count, i + piece_blocks_);
      tip = put(blocks, i, end, tip, now_ns);
      evict_to_capacity(now_ns);
      i = end;
    }
    result_.longest_ns = std::max(result_.longest_ns, result_.decision_ns - spent_before);
  }

 private:
  static std::uint32_t digest_of(std::uint64_t block) {
    block += 0x9E3779B97F4A7C15ULL;
    block = (block ^ block >> 30) * 0xBF58476D1CE4E5B9ULL;
    block = (block ^ block >> 27) * 0x94D049BB133111EBULL;
    return std::max(static_cast<std::uint32_t>(block >> 32), 1u);  // 0 stands for none
  }

  std::uint32_t put(const std::uint64_t* blocks, std::uint64_t from, std::uint64_t end, std::uint32_t tip, std::uint64_t now_ns) {
    const std::uint64_t began = now_();
    for (std::uint64_t i = from; i < end; ++i) {
      const std::uint32_t page = free_[free_.size() - 1 - (i - from)];
      policy_.insert(page, tip, digest_of(blocks[i]), 0, now_ns);
      if (is_elsewhere_) policy_.set_elsewhere(page, true);
      tip = page;
    }
    result_.decision_ns += now_() - began;
    for (std::uint64_t i = from; i < end; ++i) {
      const std::uint32_t page = free_.back();
      free_.pop_back();
      resident_.emplace(blocks[i], page);
      id_of_[page] = blocks[i];
    }
    return tip;
  }

  void evict_to_capacity(std::uint64_t now_ns) {
    if (resident_.size() <= capacity_blocks_) return;
    victims_.clear();
    const std::uint64_t began = now_();
    policy_.begin_round(now_ns);
    while (resident_.size() - victims_.size() > capacity_blocks_) {
      const std::optional<ColdPage> victim = policy_.coldest(0);
      if (!victim) break;
      policy_.remove(victim->page, true);
      victims_.push_back(victim->page);
    }
    const std::uint64_t spent_ns = now_() - began;
    result_.decision_ns += spent_ns;
    result_.choice_ns += spent_ns;
    result_.evictions += victims_.size();
    for (const std::uint32_t page : victims_) {
      resident_.erase(id_of_[page]);
      free_.push_back(page);
    }
  }

  PrefixPolicy policy_;
  Now now_;
  std::uint32_t capacity_blocks_;
  std::uint32_t piece_blocks_;
  bool is_elsewhere_;
  std::unordered_map<std::uint64_t, std::uint32_t> resident_;
  std::vector<std::uint64_t> id_of_;
  std::vector<std::uint32_t> free_, victims_;
  ReplayResult result_;
};

}  // namespace stratakv
