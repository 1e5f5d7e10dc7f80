// Replays a trace of requests through the policy: what a cache of so many blocks would have had of what is asked for.
#pragma once

#include <chrono>
#include <cstdint>
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
};

struct ReplayResult {
  std::uint64_t requested = 0, hit = 0, evictions = 0;
  std::uint64_t decision_ns = 0;  // spent in the policy, by whoever's clock is given
};

class Replay {
 public:
  Replay(std::uint32_t capacity_blocks, const ReplayOptions& options)
      : policy_(PolicyOptions{capacity_blocks, options.mode, 0, options.seed}),
        piece_blocks_(options.piece_blocks),
        id_of_(capacity_blocks) {
    for (std::uint32_t page = capacity_blocks; page-- > 0;) free_.push_back(page);
    resident_.reserve(capacity_blocks);
  }

  PrefixPolicy& policy() { return policy_; }
  const ReplayResult& result() const { return result_; }

  // A hit counts only when every earlier block is resident on arrival. Then all blocks are used or inserted, room being made
  // by what is none of the request's own; of a request longer than the cache the head stays.
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
    const std::uint32_t missing_digest = found < count ? digest_of(blocks[found]) : 0;
    policy_.looked(tip, static_cast<std::uint32_t>(found), static_cast<std::uint32_t>(count - found), now_ns, missing_digest);
    if (tip != kNoPage) policy_.withdraw(tip);
    policy_.begin_round(now_ns);
    for (std::uint64_t i = found; i < count; ++i) {
      if (piece_blocks_ != 0 && (i - found) % piece_blocks_ == 0) policy_.begin_round(now_ns);
      if (free_.empty() && !evict()) break;
      const std::uint32_t page = free_.back();
      free_.pop_back();
      policy_.insert(page, tip, digest_of(blocks[i]), 0, now_ns);
      policy_.withdraw(page);
      if (tip != kNoPage) policy_.offer(tip);
      resident_.emplace(blocks[i], page);
      id_of_[page] = blocks[i];
      tip = page;
    }
    if (tip != kNoPage) policy_.offer(tip);
  }

 private:
  static std::uint32_t digest_of(std::uint64_t block) {
    block += 0x9E3779B97F4A7C15ULL;
    block = (block ^ block >> 30) * 0xBF58476D1CE4E5B9ULL;
    block = (block ^ block >> 27) * 0x94D049BB133111EBULL;
    return static_cast<std::uint32_t>(block >> 32) | 1u;  // 0 stands for none
  }

  bool evict() {
    const std::optional<ColdPage> victim = policy_.coldest(0);
    if (!victim) return false;
    policy_.remove(victim->page, true);
    resident_.erase(id_of_[victim->page]);
    free_.push_back(victim->page);
    ++result_.evictions;
    return true;
  }

  PrefixPolicy policy_;
  std::uint32_t piece_blocks_;
  std::unordered_map<std::uint64_t, std::uint32_t> resident_;
  std::vector<std::uint64_t> id_of_;
  std::vector<std::uint32_t> free_;
  ReplayResult result_;
};

}  // namespace stratakv
