// Pins of an operator: pages under named keys are no victims of want of room while they last, within a quota.
#include <stdexcept>
#include <string>

#include "arena.hpp"
#include "arena_leases.hpp"

namespace stratakv {

// What a page of so many bytes takes; 0: nobody knows yet, or no segment holds it.
std::uint64_t Arena::charge_of(std::uint64_t payload_bytes) {
  const std::optional<std::uint32_t> size_class = payload_bytes == 0 ? std::nullopt : segments_.class_of(payload_bytes);
  return size_class ? segments_.slot_bytes(*size_class) : 0;
}

// What comes twice is counted twice, though it is charged once: no chain has a key twice.
std::uint64_t Arena::pin_cost(const std::uint8_t* keys, std::size_t pages, std::uint64_t payload_bytes) {
  const std::uint64_t slot_bytes = charge_of(payload_bytes);
  std::uint64_t cost = 0;
  for (std::size_t i = 0; i < pages; ++i) cost += pins_.cost(PageKey::load(keys + i * kKeyBytes), slot_bytes);
  return cost;
}

bool Arena::pin(const std::uint8_t* keys, std::size_t pages, std::uint64_t payload_bytes) {
  if (!pins_.has_room(pin_cost(keys, pages, payload_bytes))) return false;
  const std::uint64_t slot_bytes = charge_of(payload_bytes);
  for (std::size_t i = 0; i < pages; ++i) {
    const PageKey key = PageKey::load(keys + i * kKeyBytes);
    pins_.add(key, slot_bytes);
    const std::optional<std::uint32_t> entry = find(key);
    if (entry && !pins_.holds(*entry)) hold_if_pinned(*entry);
  }
  return true;
}

void Arena::unpin(const std::uint8_t* keys, std::size_t pages) {
  for (std::size_t i = 0; i < pages; ++i) {
    const PageKey key = PageKey::load(keys + i * kKeyBytes);
    const std::optional<std::uint32_t> entry = find(key);
    const std::uint32_t let_go = pins_.remove(key, entry ? namespace_slot_of(*entry) : 0);
    if (let_go != kNoEntry) refresh_leaf(let_go);
  }
}

// Of these keys, what is held now.
Tally Arena::held_among(const std::uint8_t* keys, std::size_t pages) const {
  Tally held;
  for (std::size_t i = 0; i < pages; ++i) {
    const Pins::Pinned* pinned = pins_.find(PageKey::load(keys + i * kKeyBytes));
    if (pinned == nullptr || pinned->held == kNoEntry) continue;
    ++held.pages;
    held.bytes += payload_bytes_of(view_, pinned->held);
  }
  return held;
}

void Arena::hold_if_pinned(std::uint32_t entry) {
  const std::uint64_t slot_bytes = segments_.slot_bytes(pages_[entry].size_class);
  if (pins_.hold(key_of(view_.entries[entry]), entry, namespace_slot_of(entry), slot_bytes, pages_.size())) refresh_leaf(entry);
}

void Arena::check_pins() const {
  const auto require = [](bool holds, const std::string& what) {
    if (!holds) throw std::runtime_error(what);
  };
  PinStatistics seen;
  pins_.each([&](const PageKey& key, const Pins::Pinned& pinned) {
    ++seen.keys;
    seen.charged_bytes += pinned.charged_bytes;
    require(pinned.pins > 0, "a key is pinned by nobody");
    if (pinned.held == kNoEntry) return;
    ++seen.held_pages;
    seen.held_bytes += pinned.charged_bytes;
    require(find(key) == pinned.held, "a pin holds an entry that is not its page");
    require(pins_.holds(pinned.held), "an entry does not know that it is held");
    require(pinned.charged_bytes >= segments_.slot_bytes(pages_[pinned.held].size_class), "a held page is not charged in full");
  });
  const PinStatistics told = pins_.statistics();
  require(seen.charged_bytes == told.charged_bytes && seen.held_pages == told.held_pages && seen.held_bytes == told.held_bytes,
          "what is pinned is miscounted");
  require(told.charged_bytes <= told.quota_bytes, "more is pinned than the quota allows");
  std::uint64_t held = 0;
  for (std::uint32_t entry = 0; entry < pages_.size(); ++entry) held += pins_.holds(entry);
  require(held == told.held_pages, "an entry is held for no pin");
}

}  // namespace stratakv
