// The ring of events in the header: the sidecar appends, workers read what they have not applied yet (rules R14, R16).
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "fences.hpp"
#include "geometry.hpp"
#include "pauses.hpp"

namespace stratakv {

struct Event {
  std::uint64_t view = 0;
  std::uint64_t incarnation[2] = {};
  std::uint64_t revision = 0;
  std::uint32_t kind = 0;
  std::string payload;
};

// A view with the log position that belongs to it.
struct StampedView {
  std::uint64_t view = 0;
  std::uint64_t incarnation[2] = {};
  std::uint64_t revision = 0;
};

inline RingRecord& ring_record(const ArenaView& arena, std::uint64_t view) {
  return arena.ring[view & (arena.geometry.ring_records - 1)];
}

// Writes the record of `event.view`. The header's view is published afterwards, by the caller.
inline void write_event(const ArenaView& arena, const Event& event) {
  RingRecord& record = ring_record(arena, event.view);
  record.tag.store(0, std::memory_order_relaxed);
  fence_release();
  record.incarnation[0].store(event.incarnation[0], std::memory_order_relaxed);
  record.incarnation[1].store(event.incarnation[1], std::memory_order_relaxed);
  record.revision.store(event.revision, std::memory_order_relaxed);
  record.kind_and_bytes.store(static_cast<std::uint64_t>(event.kind) << 32 | event.payload.size(),
                              std::memory_order_relaxed);
  std::uint64_t words[kRingPayloadBytes / 8 + 2] = {};
  std::memcpy(words, event.payload.data(), event.payload.size());
  for (std::size_t i = 0; i * 8 < event.payload.size(); ++i) record.payload[i].store(words[i], std::memory_order_relaxed);
  record.tag.store(event.view, std::memory_order_release);
}

// The record of one view, or nothing when it is overwritten or being rewritten.
inline std::optional<Event> read_event(const ArenaView& arena, std::uint64_t view) {
  RingRecord& record = ring_record(arena, view);
  if (record.tag.load(std::memory_order_acquire) != view) return std::nullopt;
  pause_here();  // found, not read
  Event event;
  event.view = view;
  event.incarnation[0] = record.incarnation[0].load(std::memory_order_relaxed);
  event.incarnation[1] = record.incarnation[1].load(std::memory_order_relaxed);
  event.revision = record.revision.load(std::memory_order_relaxed);
  const std::uint64_t head = record.kind_and_bytes.load(std::memory_order_relaxed);
  event.kind = static_cast<std::uint32_t>(head >> 32);
  const std::uint64_t bytes = head & 0xFFFFFFFFu;
  std::uint64_t words[kRingPayloadBytes / 8 + 2] = {};
  if (bytes <= kRingPayloadBytes) {
    for (std::size_t i = 0; i * 8 < bytes; ++i) words[i] = record.payload[i].load(std::memory_order_relaxed);
  }
  pause_here();  // read, not checked
  fence_acquire();
  if (record.tag.load(std::memory_order_relaxed) != view || bytes > kRingPayloadBytes) return std::nullopt;
  event.payload.assign(reinterpret_cast<const char*>(words), bytes);
  return event;
}

// The present view and its stamp; nothing when events kept overwriting the record (a ring far too small).
inline std::optional<StampedView> read_stamp(const ArenaView& arena) {
  for (int attempt = 0; attempt < 1000; ++attempt) {
    StampedView stamp;
    stamp.view = arena.header->view.load(std::memory_order_acquire);
    RingRecord& record = ring_record(arena, stamp.view);
    if (record.tag.load(std::memory_order_acquire) != stamp.view) continue;
    pause_here();  // found, not read
    stamp.incarnation[0] = record.incarnation[0].load(std::memory_order_relaxed);
    stamp.incarnation[1] = record.incarnation[1].load(std::memory_order_relaxed);
    stamp.revision = record.revision.load(std::memory_order_relaxed);
    fence_acquire();
    if (record.tag.load(std::memory_order_relaxed) == stamp.view) return stamp;
  }
  return std::nullopt;
}

// Every event after `view` up to the present one; nothing when the ring was overrun or `view` is of another life.
inline std::optional<std::vector<Event>> read_events_since(const ArenaView& arena, std::uint64_t view) {
  const std::uint64_t now = arena.header->view.load(std::memory_order_acquire);
  if (view > now || now - view > arena.geometry.ring_records) return std::nullopt;
  std::vector<Event> events;
  events.reserve(now - view);
  for (std::uint64_t at = view + 1; at <= now; ++at) {
    std::optional<Event> event = read_event(arena, at);
    if (!event) return std::nullopt;
    events.push_back(std::move(*event));
  }
  return events;
}

}  // namespace stratakv
