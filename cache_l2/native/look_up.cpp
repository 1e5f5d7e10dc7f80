// Chain walk in a software pipeline of three stages: buckets, candidates, entries.
#include "look_up.hpp"

#include <algorithm>

#include "fences.hpp"

namespace stratakv {
namespace {

constexpr std::size_t kGroup = 16;  // keys a stage; three groups are under way at once

struct Probe {
  PageKey key;
  KeyHash hash;
  std::uint32_t candidate;
};

struct PageFields {
  std::uint64_t generation;
  std::uint64_t place;
  std::uint64_t parent_generation;
  std::uint64_t parent_and_expiry;
};

bool visible(std::uint64_t generation) { return generation != 0 && (generation & 1) == 0; }

// Copies an entry's fields if it is visible and carries the key; `collided` tells that it carries another one.
bool read_entry(const Entry& entry, const PageKey& key, PageFields& out, bool& collided) {
  out.generation = entry.generation.load(std::memory_order_acquire);
  if (!visible(out.generation)) return false;
  const bool equal = key_equals(entry, key);
  out.place = entry.place.load(std::memory_order_relaxed);
  out.parent_generation = entry.parent_generation.load(std::memory_order_relaxed);
  out.parent_and_expiry = entry.parent_and_expiry.load(std::memory_order_relaxed);
  fence_acquire();
  if (entry.generation.load(std::memory_order_relaxed) != out.generation) return false;
  collided = !equal;
  return equal;
}

class ChainWalk {
 public:
  ChainWalk(const ArenaView& arena, const std::uint8_t* keys, std::size_t start, std::size_t count, FoundPage* found)
      : arena_(arena), keys_(keys + start * kKeyBytes), start_(start), left_(count - start), found_(found) {}

  Walk run() {
    if (left_ == 0) return walk_;
    const std::size_t groups = (left_ + kGroup - 1) / kGroup;
    for (std::size_t step = 0; step < groups + 2; ++step) {
      if (step < groups) fetch_buckets(step);
      if (step >= 1 && step - 1 < groups) fetch_entries(step - 1);
      if (step >= 2 && !check_group(step - 2)) break;
    }
    return walk_;
  }

 private:
  std::size_t group_end(std::size_t group) const { return std::min(left_, (group + 1) * kGroup); }
  Probe& probe(std::size_t at) { return probes_[at % (3 * kGroup)]; }

  void fetch_buckets(std::size_t group) {
    for (std::size_t at = group * kGroup; at < group_end(group); ++at) {
      Probe& p = probe(at);
      p.key = PageKey::load(keys_ + at * kKeyBytes);
      p.hash = hash_key(p.key, arena_.geometry);
      __builtin_prefetch(&arena_.buckets[p.hash.first]);
      __builtin_prefetch(&arena_.buckets[p.hash.second]);
    }
  }

  void fetch_entries(std::size_t group) {
    for (std::size_t at = group * kGroup; at < group_end(group); ++at) {
      Probe& p = probe(at);
      p.candidate = candidate_in(p.hash.first, p.hash.fingerprint);
      if (p.candidate == kNoEntry) p.candidate = candidate_in(p.hash.second, p.hash.fingerprint);
      if (p.candidate != kNoEntry) __builtin_prefetch(&arena_.entries[p.candidate]);
    }
  }

  std::uint32_t candidate_in(std::uint32_t bucket, std::uint32_t fingerprint) const {
    for (const Word& way : arena_.buckets[bucket].way) {
      const std::uint64_t value = way.load(std::memory_order_acquire);
      if (value >> 32 != fingerprint) continue;
      const auto entry = static_cast<std::uint32_t>(value) - 1;
      if (entry < arena_.geometry.entries) return entry;
    }
    return kNoEntry;
  }

  bool check_group(std::size_t group) {
    for (std::size_t at = group * kGroup; at < group_end(group); ++at) {
      const Probe& p = probe(at);
      PageFields fields{};
      const std::uint32_t entry = find(p, fields);
      if (entry == kNoEntry || !accept(at, entry, fields)) return false;
    }
    return true;
  }

  // The entry under a probe's key, its candidate first.
  std::uint32_t find(const Probe& p, PageFields& fields) {
    if (p.candidate == kNoEntry) return kNoEntry;
    bool collided = false;
    if (read_entry(arena_.entries[p.candidate], p.key, fields, collided)) return p.candidate;
    walk_.collisions += collided;
    return find_elsewhere(p, p.candidate, fields);
  }

  std::uint32_t find_elsewhere(const Probe& p, std::uint32_t seen, PageFields& fields) {
    for (const std::uint32_t bucket : {p.hash.first, p.hash.second}) {
      for (const Word& way : arena_.buckets[bucket].way) {
        const std::uint64_t value = way.load(std::memory_order_acquire);
        const auto entry = static_cast<std::uint32_t>(value) - 1;
        if (value >> 32 != p.hash.fingerprint || entry >= arena_.geometry.entries || entry == seen) continue;
        bool collided = false;
        if (read_entry(arena_.entries[entry], p.key, fields, collided)) return entry;
        walk_.collisions += collided;
      }
    }
    return kNoEntry;
  }

  bool accept(std::size_t at, std::uint32_t entry, const PageFields& fields) {
    FoundPage page{};
    page.generation = fields.generation;
    page.entry = entry;
    page.offset = (fields.place >> 32) * kSlotAlign;
    page.payload_bytes = static_cast<std::uint32_t>(fields.place);
    page.expiry_s = static_cast<std::uint32_t>(fields.parent_and_expiry);
    if (page.offset + page.payload_bytes > arena_.geometry.data_bytes) return false;
    if (!parent_holds(at, static_cast<std::uint32_t>(fields.parent_and_expiry >> 32), fields.parent_generation)) {
      return false;
    }
    note_expiry(page.expiry_s);
    found_[walk_.pages++] = page;
    return true;
  }

  void note_expiry(std::uint32_t expiry_s) {
    if (expiry_s != 0) walk_.expiry_s_min = std::min(walk_.expiry_s_min, expiry_s);
  }

  bool parent_holds(std::size_t at, std::uint32_t parent_plus_one, std::uint64_t parent_generation) {
    if (at > 0) {
      const FoundPage& before = found_[at - 1];
      return parent_plus_one == before.entry + 1 && parent_generation == before.generation;
    }
    if (start_ == 0) return parent_plus_one == 0;
    return first_parent_holds(parent_plus_one - 1, parent_generation);
  }

  // keys[start - 1] was served before, by another tier; here it must still be the page that ours stands on.
  bool first_parent_holds(std::uint32_t parent, std::uint64_t parent_generation) {
    if (parent >= arena_.geometry.entries) return false;
    PageFields fields{};
    bool collided = false;
    const PageKey key = PageKey::load(keys_ - kKeyBytes);
    if (!read_entry(arena_.entries[parent], key, fields, collided)) return false;
    if (fields.generation != parent_generation) return false;
    walk_.parent.entry = parent;
    walk_.parent.generation = parent_generation;
    walk_.parent.expiry_s = static_cast<std::uint32_t>(fields.parent_and_expiry);
    note_expiry(walk_.parent.expiry_s);
    return true;
  }

  const ArenaView& arena_;
  const std::uint8_t* keys_;
  std::size_t start_;
  std::size_t left_;
  FoundPage* found_;
  Walk walk_;
  Probe probes_[3 * kGroup];
};

}  // namespace

Walk walk_chain(const ArenaView& arena, const std::uint8_t* keys, std::size_t start, std::size_t count, FoundPage* found) {
  return ChainWalk(arena, keys, start, count, found).run();
}

}  // namespace stratakv
