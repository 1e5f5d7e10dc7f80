// A row's ring of posts: what a client writes about pages that it has filled in granted slots, and how the sidecar reads it.
//
// A post is one contiguous run of bytes that may come round the ring's end: PostHead, keys (32 bytes a page), ids of the
// granted slots (8 bytes a page), terms (the caller's bytes), zeros up to a multiple of 8. The client publishes it by
// advancing posted_bytes; the sidecar copies it out before it looks at it, and bounds every number.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "geometry.hpp"
#include "index.hpp"
#include "layout.hpp"

namespace stratakv {

struct PostHead {
  std::uint64_t namespace_slot;
  std::int64_t ttl_s;  // −1: the sidecar's default, 0: never
  std::uint32_t payload_bytes;
  std::uint32_t pages;        // 1 … kGrantsPerRow
  std::uint32_t terms_bytes;  // up to kPostTermsMax
  std::uint32_t has_parent;   // 1: keys[0] stands on `parent`
  std::uint8_t parent[kKeyBytes];

  // Bytes of the whole post. Only for a head whose numbers are in their bounds.
  std::uint64_t bytes() const {
    const std::uint64_t all = sizeof(PostHead) + pages * (kKeyBytes + sizeof(std::uint64_t)) + terms_bytes;
    return (all + 7) / 8 * 8;
  }
};
static_assert(sizeof(PostHead) == 64);
constexpr std::uint64_t kPostBytesMax = sizeof(PostHead) + kGrantsPerRow * (kKeyBytes + 8) + kPostTermsMax;
static_assert(kPostBytesMax < kPostRingBytes);

// What the sidecar has read of one post.
struct Post {
  PostHead head;
  std::vector<std::uint8_t> keys;
  std::vector<std::uint64_t> ids;
  std::string terms;
};

// Copies bytes into the ring, or out of it, at a place counted from the row's beginning on.
inline void ring_write(Posts& posts, std::uint64_t at, const void* from, std::size_t bytes) {
  auto* ring = reinterpret_cast<std::byte*>(posts.ring);
  const std::size_t place = at % kPostRingBytes;
  const std::size_t first = std::min<std::size_t>(bytes, kPostRingBytes - place);
  std::memcpy(ring + place, from, first);
  std::memcpy(ring, static_cast<const std::byte*>(from) + first, bytes - first);
}

inline void ring_read(const Posts& posts, std::uint64_t at, void* to, std::size_t bytes) {
  const auto* ring = reinterpret_cast<const std::byte*>(posts.ring);
  const std::size_t place = at % kPostRingBytes;
  const std::size_t first = std::min<std::size_t>(bytes, kPostRingBytes - place);
  std::memcpy(to, ring + place, first);
  std::memcpy(static_cast<std::byte*>(to) + first, ring, bytes - first);
}

inline Word& posting_word(const ArenaView& view, std::uint32_t row) { return view.posting[row / kRowsPerPostingWord]; }
inline std::uint64_t posting_bit(std::uint32_t row) { return 1ULL << (row % kRowsPerPostingWord); }

// Calls visit(row) for each row that has posts which are not settled, or may have, while it says true.
template <typename Visit>
void each_posting_row(const ArenaView& view, Visit visit) {
  for (std::uint32_t word = 0; word < view.posting_words(); ++word) {
    for (std::uint64_t bits = view.posting[word].load(std::memory_order_acquire) & kPostingBits; bits != 0; bits &= bits - 1) {
      const std::uint32_t row = word * kRowsPerPostingWord + static_cast<std::uint32_t>(__builtin_ctzll(bits));
      if (row < view.geometry.rows && !visit(row)) return;
    }
  }
}

// Whether any row has. Read by everybody before a page counts as absent.
inline bool any_posting(const ArenaView& view) {
  std::uint64_t bits = 0;
  for (std::uint32_t word = 0; word < view.posting_words(); ++word) bits |= view.posting[word].load(std::memory_order_acquire);
  return (bits & kPostingBits) != 0;
}

// Behind posting: whoever looks from here on sees it. The count first: a sidecar that found the row empty before doesn't take
// the bit away any more, and one that does so now is followed by the bit.
inline void say_posted(const ArenaView& view, std::uint32_t row) {
  posting_word(view, row).fetch_add(1ULL << kRowsPerPostingWord, std::memory_order_seq_cst);
  posting_word(view, row).fetch_or(posting_bit(row), std::memory_order_seq_cst);
}

// Whether a row has posted a page under a key that is not settled. By the key's first word: another key's page with the same
// one is waited for in vain, no more.
inline bool has_posted(const Posts& posts, const PageKey& key) {
  // In this order: of what was posted up to here no more than a row may have is not settled. The other way round more would
  // seem to be, where some was settled and as much posted in between.
  const std::uint64_t posted = posts.posted_pages.load(std::memory_order_acquire);
  const std::uint64_t settled = posts.settled_pages.load(std::memory_order_acquire);
  if (settled >= posted || posted - settled > kGrantsPerRow) return false;
  for (std::uint64_t page = settled; page != posted; ++page) {
    if (posts.key[page % kGrantsPerRow].load(std::memory_order_relaxed) == key.word[0]) return true;
  }
  return false;
}

// Pages of a row that are posted and not settled. In this order: else one that is posted and settled in between would count
// below none.
inline std::uint64_t unsettled_pages(const Posts& posts) {
  const std::uint64_t settled = posts.settled_pages.load(std::memory_order_acquire);
  return posts.posted_pages.load(std::memory_order_acquire) - settled;
}

}  // namespace stratakv
