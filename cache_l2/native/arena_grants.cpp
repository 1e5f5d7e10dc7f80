// Slots granted to writers in advance, and the posts by which they tell what they have filled.
#include <stdexcept>
#include <string>

#include "arena.hpp"
#include "fences.hpp"
#include "pauses.hpp"

namespace stratakv {

// Takes back what nobody has in its hands; `chosen` tells by the size class. What a client has swapped out stays its.
template <typename Chosen>
void Arena::recall_grants(std::uint32_t row, Chosen chosen) {
  std::vector<std::uint32_t>& grants = rows_[row].grants;
  for (std::uint32_t at = 0; at < grants.size(); ++at) {
    const std::uint32_t entry = grants[at];
    if (entry == kNoEntry || !chosen(pages_[entry].size_class)) continue;
    std::uint64_t offered = reservation_of(entry);
    // Acquire: a client that gave it back has finished with the slot.
    if (!view_.row(row).posts.grants[at].offer.compare_exchange_strong(offered, 0, std::memory_order_acq_rel)) continue;
    grants[at] = kNoEntry;
    end_grant(entry);
  }
}

std::uint32_t Arena::grant(std::uint32_t row, std::uint64_t payload_bytes, const GrantTerms& terms) {
  check_row(row, true);
  const std::optional<std::uint32_t> size_class = payload_bytes == 0 ? std::nullopt : segments_.class_of(payload_bytes);
  if (!size_class || rows_[row].state != kRowAttached) return 0;
  const AsTaker as_taker(taker_, shares_.of_namespace(terms.namespace_slot));
  std::vector<std::uint32_t>& grants = rows_[row].grants;
  grants.resize(kGrantsPerRow, kNoEntry);
  std::uint32_t offered = 0;
  for (std::uint32_t at = 0; at < kGrantsPerRow; ++at) {
    offered += grants[at] != kNoEntry && pages_[grants[at]].size_class == *size_class && is_on_offer(row, at);
  }
  if (terms.wanted > offered) recall_grants(row, [&](std::uint32_t other) { return other != *size_class; });
  const std::optional<std::uint32_t> kept = entry_of(terms.spared);
  pinned_parent_ = kept.value_or(kNoEntry);
  if (kept) refresh_leaf(*kept);
  for (std::uint32_t at = 0; at < kGrantsPerRow && offered < terms.wanted; ++at) {
    if (grants[at] != kNoEntry) continue;
    if (tally(PageState::kGranted).bytes + segments_.slot_bytes(*size_class) > terms.bytes_max) break;
    if (!make_room(*size_class, terms.wanted - offered, true, terms.now_ns)) break;
    offer_slot(row, at, *size_class);
    ++offered;
  }
  pinned_parent_ = kNoEntry;
  if (kept) refresh_leaf(*kept);
  return offered;
}

void Arena::offer_slot(std::uint32_t row, std::uint32_t at, std::uint32_t size_class) {
  const std::uint32_t entry = take_slot(row, size_class);
  rows_[row].grants[at] = entry;
  const std::uint64_t units = segments_.slot_bytes(size_class) / kSlotAlign;
  Grant& grant = view_.row(row).posts.grants[at];
  grant.place.store(offset_of(entry) / kSlotAlign << 32 | units, std::memory_order_relaxed);
  grant.offer.store(reservation_of(entry), std::memory_order_release);
}

// An entry with a slot of its own; there must be room.
std::uint32_t Arena::take_slot(std::uint32_t row, std::uint32_t size_class) {
  const std::uint32_t entry = free_entries_.back();
  free_entries_.pop_back();
  pages_[entry].size_class = static_cast<std::uint8_t>(size_class);
  pages_[entry].row = static_cast<std::uint16_t>(row);
  pages_[entry].tenant = static_cast<std::uint8_t>(taker_);
  const std::uint64_t offset = *segments_.allocate(size_class, entry);
  const std::uint64_t place = offset / kSlotAlign << 32 | segments_.slot_bytes(size_class);
  view_.entries[entry].place.store(place, std::memory_order_relaxed);
  set_state(entry, PageState::kGranted);
  return entry;
}

std::uint64_t Arena::reservation_of(std::uint32_t entry) const {
  return generation_of(entry) << 32 | (entry + 1);
}

bool Arena::is_on_offer(std::uint32_t row, std::uint32_t at) const {
  const Word& offer = view_.row(row).posts.grants[at].offer;
  return offer.load(std::memory_order_relaxed) == reservation_of(rows_[row].grants[at]);
}

void Arena::recall_grants_of_class(std::uint32_t row, std::uint32_t size_class) {
  recall_grants(row, [&](std::uint32_t other) { return other == size_class; });
}

void Arena::recall_grants_but(std::uint32_t size_class) {
  if (tally(PageState::kGranted).pages == 0) return;
  for (std::uint32_t row = 0; row < rows_.size(); ++row) {
    recall_grants(row, [&](std::uint32_t other) { return other != size_class; });
  }
}

void Arena::recall_all_grants(std::uint32_t row) {
  recall_grants(row, [](std::uint32_t) { return true; });
}

// Every row's: the last resort before a put is refused for want of room.
void Arena::recall_every_grant() {
  if (tally(PageState::kGranted).pages == 0) return;
  for (std::uint32_t row = 0; row < rows_.size(); ++row) recall_all_grants(row);
}

// The process has ended: nobody writes into its slots any more, on offer or not.
void Arena::end_grants(std::uint32_t row) {
  for (const std::uint32_t entry : rows_[row].grants) {
    if (entry != kNoEntry) end_grant(entry);
  }
  rows_[row].grants.clear();
}

void Arena::end_grant(std::uint32_t entry) {
  Word& generation = view_.entries[entry].generation;
  generation.store(generation.load(std::memory_order_relaxed) + 2, std::memory_order_release);  // ends the id
  free_entry(entry);
}

// The granted slot of a posted page, if it is this row's, of this size and in its client's hands: it leaves the grants.
std::optional<std::uint32_t> Arena::adopt_grant(std::uint32_t row, std::uint64_t id, std::uint32_t size_class) {
  const std::optional<std::uint32_t> at = grant_of(row, id);
  if (!at || pages_[rows_[row].grants[*at]].size_class != size_class) return std::nullopt;
  return std::exchange(rows_[row].grants[*at], kNoEntry);
}

std::optional<std::uint32_t> Arena::grant_of(std::uint32_t row, std::uint64_t id) const {
  const std::uint32_t entry = static_cast<std::uint32_t>(id) - 1;
  const std::vector<std::uint32_t>& grants = rows_[row].grants;
  for (std::uint32_t at = 0; at < grants.size(); ++at) {
    const bool is_it = grants[at] == entry && entry != kNoEntry && reservation_of(entry) == id && !is_on_offer(row, at);
    if (is_it) return at;
  }
  return std::nullopt;
}

void Arena::drop_grant(std::uint32_t row, std::uint64_t id) {
  const std::optional<std::uint32_t> at = grant_of(row, id);
  if (at) end_grant(std::exchange(rows_[row].grants[*at], kNoEntry));
}

std::vector<std::uint32_t> Arena::posting_rows() const {
  std::vector<std::uint32_t> rows;
  each_posting_row(view_, [&](std::uint32_t row) {
    rows.push_back(row);
    return true;
  });
  return rows;
}

// The next post of a row, copied out; `settle_post` says that it was carried out. Nothing: there is none, and the row's bit
// is cleared. Throws invalid_argument, once, for what no client of ours writes: such a row is not read any more.
std::optional<Post> Arena::next_post(std::uint32_t row) {
  check_row(row, false);
  Posts& posts = view_.row(row).posts;
  ClientRow& client = rows_[row];
  const bool is_read = client.state != kRowFree && !client.garbled;
  Word& word = posting_word(view_, row);
  // Acquire, and before the look: whoever has counted its post is found.
  std::uint64_t seen = word.load(std::memory_order_acquire);
  if (is_read && posts.posted_bytes.load(std::memory_order_acquire) != client.settled_bytes) return read_post(row);
  pause_here();  // found empty, its bit not cleared
  // Fails where somebody has posted meanwhile: that one has us look again. A bit that was cleared and set again would not be seen
  // for a moment by who looks for what was posted.
  word.compare_exchange_strong(seen, seen & ~posting_bit(row), std::memory_order_seq_cst);
  return std::nullopt;
}

Post Arena::read_post(std::uint32_t row) {
  const Posts& posts = view_.row(row).posts;
  ClientRow& client = rows_[row];
  const std::uint64_t bytes = posts.posted_bytes.load(std::memory_order_acquire) - client.settled_bytes;
  const std::uint64_t pages = posts.posted_pages.load(std::memory_order_acquire) - client.settled_pages;
  Post post;
  bool holds = bytes >= sizeof(PostHead) && bytes <= kPostRingBytes;
  if (holds) {
    ring_read(posts, client.settled_bytes, &post.head, sizeof(PostHead));
    const PostHead& head = post.head;
    holds = head.pages >= 1 && head.pages <= kGrantsPerRow && head.pages <= pages && pages <= kGrantsPerRow &&
            head.terms_bytes <= kPostTermsMax && head.has_parent <= 1 && head.ttl_s >= -1 && head.bytes() <= bytes;
  }
  if (!holds) {
    client.garbled = true;
    throw std::invalid_argument("row " + std::to_string(row) + " posted what no client of this layout writes");
  }
  post.keys.resize(post.head.pages * kKeyBytes);
  post.ids.resize(post.head.pages);
  post.terms.resize(post.head.terms_bytes);
  std::uint64_t at = client.settled_bytes + sizeof(PostHead);
  ring_read(posts, at, post.keys.data(), post.keys.size());
  ring_read(posts, at += post.keys.size(), post.ids.data(), post.ids.size() * sizeof(std::uint64_t));
  ring_read(posts, at += post.ids.size() * sizeof(std::uint64_t), post.terms.data(), post.terms.size());
  client.post_bytes = post.head.bytes();
  client.post_pages = post.head.pages;
  return post;
}

// What was posted is published, or never will be: whoever waits for it may look again.
void Arena::settle_post(std::uint32_t row) {
  check_row(row, true);
  ClientRow& client = rows_[row];
  client.settled_bytes += std::exchange(client.post_bytes, 0);
  client.settled_pages += std::exchange(client.post_pages, 0);
  Posts& posts = view_.row(row).posts;
  posts.settled_bytes.store(client.settled_bytes, std::memory_order_release);
  posts.settled_pages.store(client.settled_pages, std::memory_order_release);
}

}  // namespace stratakv
