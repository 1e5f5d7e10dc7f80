// Stress of the eviction policy: any order of calls that its owner may make, with times, counts and answers that are garbage.
//
// Beside it a model of plain tables says who is resident, on what it stands, and who may be a victim; AddressSanitizer and
// UndefinedBehaviorSanitizer see the rest.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "policy_state.hpp"
#include "prefix_policy.hpp"

namespace {

using namespace stratakv;

constexpr std::uint64_t kSecondNs = 1'000'000'000;
constexpr std::uint16_t kQueues = 3;
constexpr int kStepsPerLife = 20'000;

[[noreturn]] void fail(const std::string& why, std::uint64_t seed) {
  std::fprintf(stderr, "FAILED with seed %llu: %s\n", static_cast<unsigned long long>(seed), why.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

struct Told {
  std::uint32_t parent;
  std::uint16_t queue;
  bool withdrawn = false;
  std::set<std::uint32_t> children;
};

class Life {
 public:
  Life(std::uint64_t seed, const std::string& state)
      : seed_(seed), draw_(seed), pages_(1 + below(300)), policy_(options()) {
    if (!state.empty() && below(2) == 0) PolicyState::restore(policy_, state, now_);
  }

  std::string run() {
    for (int step = 0; step < kStepsPerLife; ++step) {
      if (below(3) == 0) now_ += below(4) == 0 ? below(100) * kSecondNs : below(kSecondNs);
      switch (below(12)) {
        case 0: case 1: case 2: ask(); break;
        case 3: insert_one(); break;
        case 4: case 5: evict(); break;
        case 6: remove_subtree(); break;
        case 7: withdraw_or_offer(); break;
        case 8: if (const auto page = any(); page != kNoPage) policy_.set_cost(page, std::exp2(static_cast<double>(below(40)) - 20)); break;
        case 9: if (const auto page = any(); page != kNoPage) policy_.set_elsewhere(page, below(2) == 0); break;
        case 10: policy_.set_elsewhere_cost(std::exp2(-static_cast<double>(below(4)))); policy_.set_attention_pages(below(3) * 5); break;
        default: if (const auto page = any(); page != kNoPage) policy_.touched(page, now_ - below(2) * kSecondNs); break;
      }
    }
    check_all();
    return PolicyState::exported(policy_);
  }

 private:
  PolicyOptions options() {
    PolicyOptions options;
    options.pages = pages_;
    options.mode = below(5) == 0 ? PolicyMode::kLru : PolicyMode::kLearned;
    options.attention_pages = below(2) * 7;
    options.seed = seed_;
    return options;
  }

  std::uint32_t below(std::uint64_t bound) { return static_cast<std::uint32_t>(draw_() % bound); }
  std::uint32_t any() {
    if (resident_.empty()) return kNoPage;
    auto at = resident_.lower_bound(below(pages_));
    return at == resident_.end() ? resident_.begin()->first : at->first;
  }

  void put(std::uint32_t parent, std::uint32_t count, std::uint16_t queue) {
    for (std::uint32_t page = below(pages_), tried = 0; count > 0 && tried < pages_; page = (page + 1) % pages_, ++tried) {
      if (resident_.count(page) != 0) continue;
      policy_.insert(page, parent, below(200) * 0x01000193u, queue, now_, below(3) == 0 ? now_ + below(90) * kSecondNs : 0);
      resident_[page] = Told{parent, queue, false, {}};
      if (parent != kNoPage) resident_[parent].children.insert(page);
      parent = page;
      --count;
    }
  }

  void ask() {
    const std::uint32_t deepest = below(4) == 0 ? kNoPage : any();
    const std::uint32_t missing = below(20) == 0 ? 0xFFFFFFFFu : below(12);
    policy_.looked(deepest, below(30), missing, now_ - std::min<std::uint64_t>(now_, below(3) * kSecondNs), below(200) * 0x01000193u);
    const auto queue = static_cast<std::uint16_t>(deepest != kNoPage && below(10) != 0 ? resident_[deepest].queue : below(kQueues));
    put(deepest, below(std::min(missing, 12u) + 1), queue);
  }

  void insert_one() { put(below(3) == 0 ? kNoPage : any(), 1, static_cast<std::uint16_t>(below(kQueues))); }

  void forget(std::uint32_t page) {
    const std::uint32_t parent = resident_[page].parent;
    if (const auto at = resident_.find(parent); at != resident_.end()) at->second.children.erase(page);
    resident_.erase(page);
  }

  void evict() {
    const auto queue = static_cast<std::uint16_t>(below(kQueues + 1));
    policy_.begin_round(now_);
    for (std::uint32_t count = below(8); count > 0; --count) {
      const auto last_access = [&](std::uint32_t) { return below(4) == 0 ? std::uint64_t{draw_()} << below(33) : 0; };
      const std::optional<ColdPage> victim = below(2) == 0 ? policy_.coldest(queue) : policy_.coldest(queue, last_access);
      bool is_there = false;
      for (const auto& [page, told] : resident_) is_there |= told.queue == queue && told.children.empty() && !told.withdrawn;
      if (victim.has_value() != is_there) fail("there is (not) a victim", seed_);
      if (!victim) return;
      const auto at = resident_.find(victim->page);
      if (at == resident_.end() || at->second.queue != queue) fail("a victim is not resident in its queue", seed_);
      if (!at->second.children.empty() || at->second.withdrawn) fail("a victim carries others or was withdrawn", seed_);
      policy_.remove(victim->page, true);
      forget(victim->page);
    }
  }

  // From its top or from its leaves.
  void remove_subtree() {
    const std::uint32_t top = any();
    if (top == kNoPage) return;
    std::vector<std::uint32_t> all{top};
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (const std::uint32_t child : resident_[all[i]].children) all.push_back(child);
    }
    if (all.size() > 8 && below(4) != 0) return;
    if (below(2) == 0) std::reverse(all.begin(), all.end());
    const bool evicted = below(2) == 0;
    for (const std::uint32_t page : all) policy_.remove(page, evicted);
    for (const std::uint32_t page : all) forget(page);
  }

  void withdraw_or_offer() {
    const std::uint32_t page = any();
    if (page == kNoPage) return;
    resident_[page].withdrawn = below(2) == 0;
    resident_[page].withdrawn ? policy_.withdraw(page) : policy_.offer(page);
  }

  void check_all() {
    for (std::uint32_t page = 0; page < pages_; ++page) {
      const auto at = resident_.find(page);
      if (policy_.resident(page) != (at != resident_.end())) fail("another page is resident", seed_);
      if (at == resident_.end()) continue;
      if (policy_.is_leaf(page) != at->second.children.empty()) fail("another page is a leaf", seed_);
      if (policy_.parent(page) != at->second.parent) fail("a page stands on another", seed_);
      if (at->second.withdrawn) policy_.offer(page);
    }
    std::size_t gone = 0;
    for (std::uint16_t queue = 0, idle = 0; idle < kQueues; queue = static_cast<std::uint16_t>((queue + 1) % kQueues)) {
      policy_.begin_round(now_);
      const std::optional<ColdPage> victim = policy_.coldest(queue);
      idle = victim ? static_cast<std::uint16_t>(0) : static_cast<std::uint16_t>(idle + 1);
      if (!victim) continue;
      policy_.remove(victim->page, true);
      ++gone;
    }
    if (gone != resident_.size()) fail("not all pages went in the end", seed_);
    if (policy_.runs() != 0) fail("runs are left without pages", seed_);
  }

  std::uint64_t seed_;
  std::mt19937_64 draw_;
  std::uint64_t now_ = kSecondNs;
  std::uint32_t pages_;
  PrefixPolicy policy_;
  std::map<std::uint32_t, Told> resident_;
};

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::string state;
  std::uint64_t lives = 0;
  do {
    state = Life(seed, state).run();
    ++seed;
    ++lives;
  } while (std::chrono::steady_clock::now() < end);
  std::printf("policy: %llu lives of %d steps, the last of seed %llu\n", static_cast<unsigned long long>(lives), kStepsPerLife,
              static_cast<unsigned long long>(seed - 1));
}
