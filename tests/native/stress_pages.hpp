// Pages that betray any mixing of two fills and any page that an invalidation should have taken, for the stress test.
//
// A page carries a nonce, drawn for each fill, and what an invalidation could name it by: the epoch in which it was
// filled, its provenance, whether its lineage is known. Every other word depends on those and on its key.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "index.hpp"
#include "look_up.hpp"
#include "ring.hpp"

namespace stratakv::stress {

constexpr std::size_t kPrompts = 24;
constexpr std::size_t kShared = 8;   // first pages that all prompts of a group have in common
constexpr std::size_t kDepth = 24;
constexpr std::size_t kGroups = 2;   // namespaces, with pages of different sizes
constexpr std::size_t kPageBytes[kGroups] = {4096, 12'288};
constexpr std::size_t kProvenances = 4;
constexpr std::size_t kKeyNames = (kGroups + kPrompts) * kDepth;

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ 0x9E3779B97F4A7C15ULL) * 0xD6E8FEB86659FD93ULL + b;
  x ^= x >> 29;
  return x * 0xBF58476D1CE4E5B9ULL;
}

struct Prompt {
  std::vector<PageKey> keys;
  std::size_t number = 0;
  std::size_t group() const { return number % kGroups; }
  std::size_t page_bytes() const { return kPageBytes[group()]; }
  const std::uint8_t* bytes() const { return reinterpret_cast<const std::uint8_t*>(keys.data()); }
  Chain chain(std::size_t start, std::size_t count) const { return {group(), bytes(), start, count}; }
  // Number of the key at a depth among all keys there are.
  std::size_t key_name(std::size_t depth) const { return (depth < kShared ? group() : kGroups + number) * kDepth + depth; }
};

inline std::vector<Prompt> make_prompts() {
  std::vector<Prompt> prompts(kPrompts);
  for (std::size_t p = 0; p < kPrompts; ++p) {
    prompts[p].number = p;
    for (std::size_t i = 0; i < kDepth; ++i) {
      PageKey key;
      for (std::uint64_t w = 0; w < kKeyWords; ++w) key.word[w] = mix(prompts[p].key_name(i), w);
      prompts[p].keys.push_back(key);
    }
  }
  return prompts;
}

struct Origin {
  std::uint64_t epoch = 0;
  std::uint64_t provenance = 0;
  bool lineage_known = true;
  std::uint64_t below = 0;  // of the page that it was computed from, packed; 0: from none, or from whatever stands below it
  std::uint64_t packed() const { return epoch << 8 | provenance << 1 | static_cast<std::uint64_t>(lineage_known); }
  static Origin unpack(std::uint64_t word) { return {word >> 8, word >> 1 & 0x7F, (word & 1) != 0, 0}; }
};

inline void fill_page(std::byte* at, std::size_t bytes, const PageKey& key, std::uint64_t nonce, const Origin& origin) {
  auto* words = reinterpret_cast<std::uint64_t*>(at);
  words[0] = nonce;
  words[1] = origin.packed();
  words[2] = origin.below;
  const std::uint64_t word = mix(mix(key.word[0], nonce), mix(words[1], words[2]));
  for (std::size_t i = 3; i < bytes / 8; ++i) words[i] = word;
}

// Where the page came from; ends the process when it isn't one fill of this key.
inline Origin check_page(const std::byte* at, std::size_t bytes, const PageKey& key, const char* how) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(at);
  const std::uint64_t wanted = mix(mix(key.word[0], words[0]), mix(words[1], words[2]));
  for (std::size_t i = 3; i < bytes / 8; ++i) {
    if (words[i] != wanted) fail(std::string(how) + ": a page is of another fill or of two");
  }
  Origin origin = Origin::unpack(words[1]);
  origin.below = words[2];
  return origin;
}

// What was hidden last by each name, and by which view that was told: epoch << 32 | view, 0 for never.
struct Told {
  using Cell = std::atomic<std::uint64_t>;
  Cell everything{0};
  Cell of_namespace[kGroups] = {};
  Cell of_provenance[kProvenances] = {};
  Cell of_key[kKeyNames] = {};

  // Epoch before which pages were hidden, as far as a look-up under `view` had to know.
  static std::uint64_t before(const Cell& cell, std::uint64_t view) {
    const std::uint64_t word = cell.load(std::memory_order_acquire);
    return (word & 0xFFFFFFFFu) <= view ? word >> 32 : 0;
  }
};

// Follows a chain from its root and ends the process at a page that an event up to the look-up's view had taken.
class ChainCheck {
 public:
  ChainCheck(const Told& told, const Prompt& prompt, std::uint64_t view) : told_(told), prompt_(prompt), view_(view) {
    for (const Told::Cell& cell : told.of_provenance) any_provenance_ = std::max(any_provenance_, Told::before(cell, view));
    hidden_before_ = std::max(Told::before(told.everything, view), Told::before(told.of_namespace[prompt.group()], view));
  }

  void skip(std::size_t depth) { hidden_before_ = std::max(hidden_before_, Told::before(told_.of_key[prompt_.key_name(depth)], view_)); }

  void take(std::size_t depth, const Origin& origin) {
    skip(depth);
    const std::uint64_t by_provenance =
        origin.lineage_known ? Told::before(told_.of_provenance[origin.provenance], view_) : any_provenance_;
    if (origin.epoch < std::max(hidden_before_, by_provenance)) {
      fail("a look-up got a page that an event up to its view had taken");
    }
    if (origin.below == 0) return;
    const Origin below = Origin::unpack(origin.below);
    if (below.epoch < Told::before(told_.of_provenance[below.provenance], view_)) {
      fail("a look-up got a page that was loaded onto another than it was computed from");
    }
  }

 private:
  const Told& told_;
  const Prompt& prompt_;
  std::uint64_t view_;
  std::uint64_t any_provenance_ = 0;
  std::uint64_t hidden_before_ = 0;
};

// The event of a view: all of it can be told from its revision, which is the view.
inline Event event_of(std::uint64_t view) {
  Event event;
  event.view = event.revision = view;
  event.incarnation[0] = mix(view, 1);
  event.incarnation[1] = mix(view, 2);
  event.kind = static_cast<std::uint32_t>(mix(view, 3));
  event.payload.assign(mix(view, 4) % kRingPayloadBytes, static_cast<char>('a' + view % 26));
  return event;
}

template <typename Stamped>
bool is_stamp_of(const Stamped& stamp, std::uint64_t view) {
  const Event whole = event_of(view);
  return stamp.revision == view && stamp.incarnation[0] == whole.incarnation[0] && stamp.incarnation[1] == whole.incarnation[1];
}

}  // namespace stratakv::stress
