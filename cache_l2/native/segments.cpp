// Slot allocation within segments that move between size classes.
#include "segments.hpp"

#include <stdexcept>
#include <string>
#include <utility>

#include "size_classes.hpp"

namespace stratakv {

Segments::Segments(std::uint32_t segments, std::uint32_t segment_bytes) : segment_bytes_(segment_bytes), segments_(segments) {
  for (std::uint32_t i = segments; i-- > 0;) free_.push_back(i);
}

std::optional<std::uint32_t> Segments::class_of(std::uint64_t payload_bytes) {
  const std::uint64_t bytes = slot_bytes_of(payload_bytes);
  if (bytes > segment_bytes_) return std::nullopt;
  for (std::uint32_t i = 0; i < classes(); ++i) {
    if (classes_[i].slot_bytes == bytes) return i;
  }
  classes_.emplace_back().slot_bytes = static_cast<std::uint32_t>(bytes);
  return classes() - 1;
}

std::optional<std::uint64_t> Segments::allocate(std::uint32_t size_class, std::uint32_t owner) {
  if (classes_[size_class].open.empty()) {
    if (free_.empty()) return std::nullopt;
    const std::uint32_t fresh = free_.back();
    free_.pop_back();
    assign(fresh, size_class);
  }
  const std::uint32_t number = classes_[size_class].open.back();
  Segment& segment = segments_[number];
  const std::uint32_t slot = segment.first_free & ~kFreeSlot;
  segment.first_free = std::exchange(segment.owner[slot], owner);
  ++segment.used;
  --classes_[size_class].free_slots;
  if (segment.free_slots() == 0) shut(number);
  return static_cast<std::uint64_t>(number) * segment_bytes_ +
         static_cast<std::uint64_t>(slot) * classes_[size_class].slot_bytes;
}

void Segments::release(std::uint64_t offset) {
  const std::uint32_t number = segment_of(offset);
  Segment& segment = segments_[number];
  SizeClass& owner = classes_[segment.size_class];
  const auto slot = static_cast<std::uint32_t>(offset % segment_bytes_) / owner.slot_bytes;
  segment.owner[slot] = std::exchange(segment.first_free, kFreeSlot | slot);
  --segment.used;
  if (!segment.draining) {
    ++owner.free_slots;
    if (segment.open_at == kNoSegment) open(number);
  }
  if (segment.used == 0) retire(number);
}

std::uint64_t Segments::available(std::uint32_t size_class) const {
  return classes_[size_class].free_slots + static_cast<std::uint64_t>(free_.size()) * slots_per_segment(size_class);
}

void Segments::drain(std::uint32_t number) {
  Segment& segment = segments_[number];
  if (segment.draining) return;
  segment.draining = true;
  if (segment.open_at != kNoSegment) {
    classes_[segment.size_class].free_slots -= segment.free_slots();
    shut(number);
  }
  if (segment.used == 0) retire(number);
}

void Segments::reopen(std::uint32_t number) {
  Segment& segment = segments_[number];
  if (!segment.draining) return;
  segment.draining = false;
  if (segment.free_slots() == 0) return;
  classes_[segment.size_class].free_slots += segment.free_slots();
  open(number);
}

void Segments::assign(std::uint32_t number, std::uint32_t size_class) {
  Segment& segment = segments_[number];
  const std::uint32_t slots = slots_per_segment(size_class);
  segment.size_class = size_class;
  segment.owner.resize(slots);
  segment.first_free = kNoFreeSlot;
  for (std::uint32_t slot = slots; slot-- > 0;) segment.owner[slot] = std::exchange(segment.first_free, kFreeSlot | slot);
  segment.listed_at = static_cast<std::uint32_t>(classes_[size_class].segments.size());
  classes_[size_class].segments.push_back(number);
  classes_[size_class].free_slots += slots;
  open(number);
}

void Segments::open(std::uint32_t number) {
  auto& list = classes_[segments_[number].size_class].open;
  segments_[number].open_at = static_cast<std::uint32_t>(list.size());
  list.push_back(number);
}

void Segments::shut(std::uint32_t number) {
  auto& list = classes_[segments_[number].size_class].open;
  const std::uint32_t at = segments_[number].open_at;
  list[at] = list.back();
  segments_[list[at]].open_at = at;
  list.pop_back();
  segments_[number].open_at = kNoSegment;
}

void Segments::retire(std::uint32_t number) {
  Segment& segment = segments_[number];
  SizeClass& owner = classes_[segment.size_class];
  if (segment.open_at != kNoSegment) {
    owner.free_slots -= segment.free_slots();
    shut(number);
  }
  segments_[owner.segments.back()].listed_at = segment.listed_at;
  owner.segments[segment.listed_at] = owner.segments.back();
  owner.segments.pop_back();
  segment = Segment{};
  free_.push_back(number);
}

void Segments::check() const {
  const auto require = [](bool holds, const std::string& what) {
    if (!holds) throw std::runtime_error("segments: " + what);
  };
  std::vector<std::uint64_t> free_slots(classes_.size()), owned(classes_.size());
  std::uint32_t unassigned_seen = 0;
  for (std::uint32_t i = 0; i < total(); ++i) {
    const Segment& s = segments_[i];
    const std::string name = "segment " + std::to_string(i);
    if (s.size_class == kNoClass) {
      ++unassigned_seen;
      require(s.used == 0, name + " is free but in use");
      continue;
    }
    ++owned[s.size_class];
    const auto& listed = classes_[s.size_class].segments;
    require(s.listed_at < listed.size() && listed[s.listed_at] == i, name + " is not where its class lists it");
    std::uint32_t used = 0;
    for (const std::uint32_t entry : s.owner) used += !is_free_slot(entry);
    require(used == s.used, name + " miscounts its slots in use");
    std::uint32_t linked = 0;
    for (std::uint32_t at = s.first_free; at != kNoFreeSlot && linked <= s.owner.size(); at = s.owner[at & ~kFreeSlot]) ++linked;
    require(linked == s.free_slots(), name + " has lost slots");
    require((s.open_at != kNoSegment) == (!s.draining && s.free_slots() != 0), name + " is wrongly open or shut");
    if (s.open_at != kNoSegment) {
      require(classes_[s.size_class].open[s.open_at] == i, name + " is not where its class lists it as open");
      free_slots[s.size_class] += s.free_slots();
    }
  }
  require(unassigned_seen == free_.size(), "the list of free segments is wrong");
  for (std::uint32_t c = 0; c < classes(); ++c) {
    require(free_slots[c] == classes_[c].free_slots, "class " + std::to_string(c) + " miscounts its free slots");
    require(owned[c] == classes_[c].segments.size(), "class " + std::to_string(c) + " miscounts its segments");
  }
}

}  // namespace stratakv
