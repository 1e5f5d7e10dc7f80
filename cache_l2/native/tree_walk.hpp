// Where a walk over the tree of pages stands: it goes on in bounded steps while pages come and go between them.
//
// A walk goes through the roots of each namespace, or from one page, in pre-order. A page that leaves the tree takes
// the walks that stand on it to its place's successor first (arena_walk.cpp), so no walk ever begins anew or skips a
// page that was there when it began.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "index.hpp"

namespace stratakv {

struct TreeWalk {
  std::uint64_t number = 0;               // its cursor; 0: not under way
  std::uint64_t stepped = 0;              // when it was last stepped, in steps of all walks
  std::uint64_t census = 0;               // the census that it counts for; 0: itself alone
  std::uint32_t top = kNoEntry;           // the page that it began at, where it was one page
  std::uint32_t next_namespace = 0;       // whose roots come once `at` is none
  std::uint32_t at = kNoEntry;
  bool is_entering = false;               // `at` has not been looked at yet; otherwise all below it has been
  std::uint32_t going = kNoEntry;         // hiding what stands on `at`, leaves first: how far down it has come
  std::uint32_t selected = kNoEntry;      // counting: the ancestor by which all below is selected

  bool is_under_way() const { return number != 0; }
  void enter(std::uint32_t entry) {
    at = entry;
    is_entering = true;
  }
};

// The place of a page among its siblings, before it left it.
struct TreePlace {
  std::uint32_t parent, next_sibling;
};

// A few walks at a time: one more takes the place of the one that was stepped least recently.
class TreeWalks {
 public:
  TreeWalk* find(std::uint64_t number) {
    for (TreeWalk& walk : walks_) {
      if (walk.is_under_way() && walk.number == number) return &walk;
    }
    return nullptr;
  }

  TreeWalk& begin(std::uint64_t number) {
    TreeWalk& walk = *std::min_element(walks_.begin(), walks_.end(), [](const TreeWalk& a, const TreeWalk& b) {
      return a.stepped < b.stepped;
    });
    walk = TreeWalk{};
    walk.number = number;
    return walk;
  }

  template <typename Visit>
  void each(Visit visit) {
    for (TreeWalk& walk : walks_) {
      if (walk.is_under_way()) visit(walk);
    }
  }

 private:
  static constexpr std::size_t kWalks = 4;
  std::array<TreeWalk, kWalks> walks_{};
};

}  // namespace stratakv
