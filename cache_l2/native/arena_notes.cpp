// Notes of look-ups: read out of the clients' rings in bounded steps, checked, and told to the eviction policy.
//
// Rings are written by clients. Whatever stands there, a call reads no more notes than it may, a number out of its bounds is
// no note, and the worst that a right one can do is to have pages evicted in another order.
#include <algorithm>

#include "arena.hpp"
#include "limits.hpp"
#include "notes.hpp"
#include "policy_state.hpp"

namespace stratakv {

static_assert(PolicyState::kBytesMost <= kPolicyStateBytesMax);

namespace {

// Pages that the policy passes for the notes of one call; about 3 ms. Of a long chain that is looked up by turns to its end and
// to its beginning each note takes all its pages, and a client writes as many as it likes.
constexpr std::uint64_t kNoteStepsPerCall = 1 << 20;

}  // namespace

// Reads up to `notes_max` notes, all rows by turns, and tells the policy of them in the order of their times. Returns how many.
std::uint64_t Arena::read_notes(std::uint64_t notes_max, std::uint64_t now_ns) {
  notes_.clear();
  const auto rows = static_cast<std::uint32_t>(rows_.size());
  for (std::uint32_t i = 0; i < rows && notes_.size() < notes_max; ++i) {
    const std::uint32_t row = notes_row_;
    if (rows_[row].state != kRowFree) collect_notes(row, notes_max);
    if (notes_.size() < notes_max) notes_row_ = row + 1 == rows ? 0 : row + 1;
  }
  return tell_notes(now_ns);
}

// All that a row has left: it ends.
void Arena::read_last_notes(std::uint32_t row, std::uint64_t now_ns) {
  notes_.clear();
  collect_notes(row, kNotesPerRow);
  tell_notes(now_ns);
}

void Arena::collect_notes(std::uint32_t row, std::uint64_t notes_max) {
  const Notes& notes = view_.row(row).notes;
  std::uint64_t& read = rows_[row].notes_read;
  const std::uint64_t behind = notes.written.load(std::memory_order_acquire) - read;
  if (behind > kNotesPerRow) {  // overwritten; or the client writes what it likes
    counters_.notes_lost += std::min<std::uint64_t>(behind - kNotesPerRow, kNotesLostAtOnce);
    read += behind - kNotesPerRow;
  }
  for (std::uint64_t left = std::min<std::uint64_t>(behind, kNotesPerRow); left > 0 && notes_.size() < notes_max; --left) {
    const std::optional<ReadNote> note = read_note(notes, read++);
    if (note) {
      notes_.push_back(*note);
    } else {
      ++counters_.notes_lost;
    }
  }
}

std::uint64_t Arena::tell_notes(std::uint64_t now_ns) {
  // Of one row they are in order, but for threads that overtake each other; of several they aren't.
  const auto earlier = [](const ReadNote& a, const ReadNote& b) { return a.time_ns < b.time_ns; };
  if (!std::is_sorted(notes_.begin(), notes_.end(), earlier)) std::stable_sort(notes_.begin(), notes_.end(), earlier);
  const std::uint64_t steps_most = policy_.counts().steps + kNoteStepsPerCall;
  for (const ReadNote& note : notes_) {
    if (policy_.counts().steps < steps_most) {
      tell_note(note, now_ns);
    } else {
      ++counters_.notes_lost;
    }
  }
  return notes_.size();
}

// How deep the deepest page lies the sidecar knows by itself. A page that went since tells nothing any more.
void Arena::tell_note(const ReadNote& note, std::uint64_t now_ns) {
  const bool is_there = note.entry < pages_.size() && pages_[note.entry].state == PageState::kVisible &&
                        noted_generation(instance_of(generation_of(note.entry), note.entry)) == note.generation;
  if (!is_there && note.entry != kNoEntry) {
    ++counters_.notes_lost;
    return;
  }
  ++counters_.notes_read;
  const std::uint32_t pages = is_there ? pages_[note.entry].depth + 1 : 0;
  policy_.looked(note.entry, pages, note.missing, std::min(note.time_ns, now_ns), note.digest);
}

bool Arena::set_elsewhere(std::uint64_t instance, bool is_elsewhere) {
  const std::optional<std::uint32_t> entry = entry_of(instance);
  if (entry) policy_.set_elsewhere(*entry, is_elsewhere);
  return entry.has_value();
}

void Arena::set_losing_costs(double elsewhere, std::uint32_t attention_pages) {
  policy_.set_elsewhere_cost(elsewhere);
  policy_.set_attention_pages(attention_pages);
}

std::string Arena::export_policy() const { return PolicyState::exported(policy_); }

void Arena::import_policy(std::string_view state, std::uint64_t now_ns) { PolicyState::restore(policy_, state, now_ns); }

}  // namespace stratakv
