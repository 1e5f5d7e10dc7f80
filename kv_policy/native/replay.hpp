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
  // `request_blocks_most`: of the longest request, which has its place beside the cache until what goes has been chosen.
  Replay(std::uint32_t capacity_blocks, std::uint32_t request_blocks_most, const ReplayOptions& options)
      : policy_(PolicyOptions{capacity_blocks + request_blocks_most, options.mode, 0, options.seed, capacity_blocks}),
        capacity_blocks_(capacity_blocks),
        piece_blocks_(options.piece_blocks),
        id_of_(capacity_blocks + request_blocks_most) {
    for (std::uint32_t page = capacity_blocks + request_blocks_most; page-- > 0;) free_.push_back(page);
    resident_.reserve(capacity_blocks);
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
    const std::uint32_t missing_digest = found < count ? digest_of(blocks[found]) : 0;
    policy_.looked(tip, static_cast<std::uint32_t>(found), static_cast<std::uint32_t>(count - found), now_ns, missing_digest);
    for (std::uint64_t i = found; i < count; ++i) {
      if (tip != kNoPage && !policy_.resident(tip)) break;  // its last piece did not stay, so nothing can stand on it
      const std::uint32_t page = free_.back();
      free_.pop_back();
      policy_.insert(page, tip, digest_of(blocks[i]), 0, now_ns);
      resident_.emplace(blocks[i], page);
      id_of_[page] = blocks[i];
      tip = page;
      if (piece_blocks_ != 0 && (i + 1 - found) % piece_blocks_ == 0) evict_to_capacity(now_ns);
    }
    evict_to_capacity(now_ns);
  }

 private:
  static std::uint32_t digest_of(std::uint64_t block) {
    block += 0x9E3779B97F4A7C15ULL;
    block = (block ^ block >> 30) * 0xBF58476D1CE4E5B9ULL;
    block = (block ^ block >> 27) * 0x94D049BB133111EBULL;
    return static_cast<std::uint32_t>(block >> 32) | 1u;  // 0 stands for none
  }

  void evict_to_capacity(std::uint64_t now_ns) {
    if (resident_.size() <= capacity_blocks_) return;
    policy_.begin_round(now_ns);
    while (resident_.size() > capacity_blocks_) {
      const std::optional<ColdPage> victim = policy_.coldest(0);
      if (!victim) return;
      policy_.remove(victim->page, true);
      resident_.erase(id_of_[victim->page]);
      free_.push_back(victim->page);
      ++result_.evictions;
    }
  }

  PrefixPolicy policy_;
  std::uint32_t capacity_blocks_;
  std::uint32_t piece_blocks_;
  std::unordered_map<std::uint64_t, std::uint32_t> resident_;
  std::vector<std::uint64_t> id_of_;
  std::vector<std::uint32_t> free_;
  ReplayResult result_;
};

}  // namespace stratakv
