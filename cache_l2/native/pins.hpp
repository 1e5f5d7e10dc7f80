// Keys that an operator has pinned, and which entries are held for them: plain bookkeeping that sees no arena.
//
// A key is charged the slot of its page from the pin on, resident or not, as soon as its size is known: what is promised
// stays within the quota, and what is held was promised.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "index.hpp"
#include "limits.hpp"

namespace stratakv {

struct PinStatistics {
  std::uint64_t keys = 0, held_pages = 0, held_bytes = 0, charged_bytes = 0, quota_bytes = 0, beyond_quota = 0;
};

class Pins {
 public:
  struct Pinned {
    std::uint32_t pins = 0;          // that name it
    std::uint32_t held = kNoEntry;   // the entry of its page, while that is resident and within the quota
    std::uint64_t charged_bytes = 0;
  };

  bool empty() const { return keys_.empty(); }
  // Whether an entry is no victim of anything but its own end.
  bool holds(std::uint32_t entry) const { return !held_.empty() && held_[entry]; }
  bool holds_any_of(std::uint64_t namespace_slot) const { return !in_namespace_.empty() && in_namespace_[namespace_slot] != 0; }

  void set_quota(std::uint64_t bytes) { statistics_.quota_bytes = bytes; }
  // Bytes that pinning a key would charge, of a page that takes such a slot; 0: unknown.
  std::uint64_t cost(const PageKey& key, std::uint64_t slot_bytes) const {
    const Pinned* pinned = find(key);
    const std::uint64_t charged = pinned == nullptr ? 0 : pinned->charged_bytes;
    return slot_bytes > charged ? slot_bytes - charged : 0;
  }
  bool has_room(std::uint64_t bytes) const { return bytes <= statistics_.quota_bytes && statistics_.charged_bytes <= statistics_.quota_bytes - bytes; }

  // One pin more names the key. The caller has looked for room.
  void add(const PageKey& key, std::uint64_t slot_bytes) {
    const std::uint64_t more = cost(key, slot_bytes);
    Pinned& pinned = keys_[key];
    ++pinned.pins;
    charge(pinned, more);
  }

  // One fewer; returns the entry that is held no more, kNoEntry where there is none.
  std::uint32_t remove(const PageKey& key, std::uint64_t namespace_slot_of_held) {
    const auto at = keys_.find(key);
    if (at == keys_.end() || --at->second.pins != 0) return kNoEntry;
    const std::uint32_t held = at->second.held;
    if (held != kNoEntry) let_go(at->second, namespace_slot_of_held);
    statistics_.charged_bytes -= at->second.charged_bytes;
    keys_.erase(at);
    return held;
  }

  // A visible page is held from now on if its key is pinned and the quota allows; true if it is.
  bool hold(const PageKey& key, std::uint32_t entry, std::uint64_t namespace_slot, std::uint64_t slot_bytes, std::size_t entries) {
    const auto at = keys_.find(key);
    if (at == keys_.end()) return false;
    Pinned& pinned = at->second;
    const std::uint64_t more = slot_bytes > pinned.charged_bytes ? slot_bytes - pinned.charged_bytes : 0;
    if (more != 0 && !has_room(more)) {
      ++statistics_.beyond_quota;
      return false;
    }
    charge(pinned, more);
    if (held_.empty()) {
      held_.assign(entries, false);
      in_namespace_.assign(kNamespacesMax, 0);
    }
    pinned.held = entry;
    held_[entry] = true;
    ++in_namespace_[namespace_slot];
    ++statistics_.held_pages;
    statistics_.held_bytes += pinned.charged_bytes;
    return true;
  }

  // The page is not visible any more; its key stays pinned.
  void forget(const PageKey& key, std::uint32_t entry, std::uint64_t namespace_slot) {
    if (!holds(entry)) return;
    let_go(keys_.find(key)->second, namespace_slot);
  }

  const Pinned* find(const PageKey& key) const {
    const auto at = keys_.find(key);
    return at == keys_.end() ? nullptr : &at->second;
  }
  template <typename Each>
  void each(Each visit) const {
    for (const auto& [key, pinned] : keys_) visit(key, pinned);
  }

  PinStatistics statistics() const {
    PinStatistics out = statistics_;
    out.keys = keys_.size();
    return out;
  }

 private:
  struct Hash {
    // Words of a digest; whose keys they are, an operator has said.
    std::size_t operator()(const PageKey& key) const { return key.word[0] ^ key.word[3]; }
  };
  struct Equal {
    bool operator()(const PageKey& a, const PageKey& b) const { return std::memcmp(a.word, b.word, sizeof(a.word)) == 0; }
  };

  void charge(Pinned& pinned, std::uint64_t more) {
    pinned.charged_bytes += more;
    statistics_.charged_bytes += more;
    if (pinned.held != kNoEntry) statistics_.held_bytes += more;  // an operator may name a larger namespace than the page's
  }

  void let_go(Pinned& pinned, std::uint64_t namespace_slot) {
    held_[pinned.held] = false;
    pinned.held = kNoEntry;
    --in_namespace_[namespace_slot];
    --statistics_.held_pages;
    statistics_.held_bytes -= pinned.charged_bytes;
  }

  std::unordered_map<PageKey, Pinned, Hash, Equal> keys_;
  std::vector<bool> held_;                    // by entry; empty until something is held
  std::vector<std::uint32_t> in_namespace_;   // entries held, by namespace number
  PinStatistics statistics_;
};

}  // namespace stratakv
