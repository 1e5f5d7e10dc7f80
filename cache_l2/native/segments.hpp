// Segments of the data file and the slots cut from them: which size class owns what, and which slots are free.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace stratakv {

constexpr std::uint32_t kNoClass = 0xFFFFFFFFu;
constexpr std::uint32_t kNoSegment = 0xFFFFFFFFu;
// What a slot's owner is while the slot is free: this bit, and the next free slot of its segment.
constexpr std::uint32_t kFreeSlot = 0x80000000u;
constexpr std::uint32_t kNoFreeSlot = 0xFFFFFFFFu;
constexpr bool is_free_slot(std::uint32_t owner) { return (owner & kFreeSlot) != 0; }

class Segments {
 public:
  Segments(std::uint32_t segments, std::uint32_t segment_bytes);

  // The size class of a payload, made when first asked for; nothing when no segment could hold the payload.
  std::optional<std::uint32_t> class_of(std::uint64_t payload_bytes);
  std::uint32_t classes() const { return static_cast<std::uint32_t>(classes_.size()); }

  // A free slot of the class, taken for `owner` (an entry number); takes a free segment when it needs one.
  std::optional<std::uint64_t> allocate(std::uint32_t size_class, std::uint32_t owner);
  // Gives a slot back; a segment whose last slot comes back is free for every class.
  void release(std::uint64_t offset);
  // Slots that could be allocated for the class without evicting anything.
  std::uint64_t available(std::uint32_t size_class) const;

  // Stops handing out slots of a segment: once its last slot comes back it is free for every class.
  void drain(std::uint32_t segment);
  // Hands out the slots of a draining segment again.
  void reopen(std::uint32_t segment);
  bool draining(std::uint32_t segment) const { return segments_[segment].draining; }
  std::uint32_t class_of_segment(std::uint32_t segment) const { return segments_[segment].size_class; }
  std::uint32_t slots_per_segment(std::uint32_t size_class) const { return segment_bytes_ / classes_[size_class].slot_bytes; }
  // Entry numbers of the slots in use; the others are free slots.
  const std::vector<std::uint32_t>& owners(std::uint32_t segment) const { return segments_[segment].owner; }

  std::uint32_t segment_bytes() const { return segment_bytes_; }
  std::uint32_t total() const { return static_cast<std::uint32_t>(segments_.size()); }
  std::uint32_t unassigned() const { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t segment_of(std::uint64_t offset) const { return static_cast<std::uint32_t>(offset / segment_bytes_); }
  // The segments that a class has, in no order.
  const std::vector<std::uint32_t>& of_class(std::uint32_t size_class) const { return classes_[size_class].segments; }
  std::uint32_t segments_of_class(std::uint32_t size_class) const {
    return static_cast<std::uint32_t>(classes_[size_class].segments.size());
  }
  // Free slots of the class's open segments.
  std::uint64_t free_slots(std::uint32_t size_class) const { return classes_[size_class].free_slots; }
  std::uint32_t slot_bytes(std::uint32_t size_class) const { return classes_[size_class].slot_bytes; }

  // Throws runtime_error naming the first contradiction.
  void check() const;

 private:
  struct Segment {
    std::uint32_t size_class = kNoClass;
    std::uint32_t used = 0;
    std::uint32_t open_at = kNoSegment;  // place in its class's list of segments with free slots
    std::uint32_t listed_at = 0;         // place in its class's list of segments
    bool draining = false;
    std::uint32_t first_free = kNoFreeSlot;
    std::vector<std::uint32_t> owner;
    std::uint32_t free_slots() const { return static_cast<std::uint32_t>(owner.size()) - used; }
  };
  struct SizeClass {
    std::uint32_t slot_bytes = 0;
    std::vector<std::uint32_t> segments;
    std::uint64_t free_slots = 0;      // in open segments
    std::vector<std::uint32_t> open;
  };

  void assign(std::uint32_t segment, std::uint32_t size_class);
  void open(std::uint32_t segment);
  void shut(std::uint32_t segment);
  void retire(std::uint32_t segment);

  std::uint32_t segment_bytes_;
  std::vector<Segment> segments_;
  std::vector<SizeClass> classes_;
  std::vector<std::uint32_t> free_;
};

}  // namespace stratakv
