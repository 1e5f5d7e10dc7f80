// A client's half of the arena: look-ups under hazards, leases, copies, counts. Free of Python; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "copy_kernels.hpp"
#include "counts.hpp"
#include "geometry.hpp"
#include "lease_slots.hpp"
#include "look_up.hpp"
#include "mapping.hpp"
#include "ring.hpp"

namespace stratakv {

struct LookUpResult {
  std::size_t pages = 0;
  std::uint32_t reason = 0;
  std::uint64_t view = 0;
  std::uint64_t now_ns = 0;
  std::uint64_t collisions = 0;
  std::uint64_t instance = kNoInstance;   // of the last page that `get` served
  std::uint64_t stands_on = kNoInstance;  // of keys[start − 1], on which the first page stands
};

// A claim of freshness that doesn't end.
inline constexpr std::uint64_t kNoLimit = ~0ULL;

class Reader {
 public:
  // Maps the three files; takes over the descriptors. `first_use`: nobody has mapped the pages' bytes in before. invalid_argument when header, life or sizes do not fit.
  static std::shared_ptr<Reader> attach(
      Descriptor control, Descriptor clients, Descriptor data, std::uint32_t row, const std::uint8_t life[16],
      bool writable, bool prefault, bool first_use);
  // Over memory that is mapped already (stress tests under sanitizers, which follow addresses).
  Reader(const ArenaView& view, std::uint32_t row, bool writable);

  const ArenaView& arena() const { return view_; }
  bool writable() const { return writable_; }
  // False in a forked child: the maps are not there.
  bool present() const { return born_ == fork_generation(); }

  bool closed() const { return view_.header->closed.load(std::memory_order_acquire) != 0; }
  std::uint64_t view_number() const { return view_.header->view.load(std::memory_order_acquire); }
  std::uint64_t freshness_ns() const { return view_.header->freshness_ns.load(std::memory_order_acquire); }
  void set_applied_view(std::uint64_t view) { row().applied_view.store(view, std::memory_order_release); }
  // Says until when an index of this client's own may serve without asking, then loads the view: (what was said, view)
  // (rule R18). The header's F if nothing is given, or if no limit is wanted and that isn't granted.
  std::pair<std::uint64_t, std::uint64_t> claim_freshness(std::optional<std::uint64_t> freshness_ns);

  // Takes a request slot and publishes a view at or below the one returned; slot −1: none free.
  std::pair<int, StampedView> begin_request();
  // Raises the view that a request works on; invalid_argument for a view not published or a slot not taken.
  void advance_request(std::uint32_t slot, std::uint64_t view);
  void end_request(std::uint32_t slot);

  LookUpResult match(const Chain& chain);
  // Pins what it finds; `out` has room for all pages that are wanted. Not counted: the caller calls `account`.
  LookUpResult pin(const Chain& chain, LeaseKind kind, std::uint64_t lease_ns, FoundPage* out);
  // Pins the one page that is this instance, whatever its freshness or expiry; false when it is gone or no lease is left.
  bool pin_instance(std::uint64_t instance, FoundPage* out);
  void unpin(const FoundPage* pages, std::size_t count) noexcept;
  // Look up under copy leases, copy, check generations and deadline again. `instances`, one a key where it is given, is
  // told those of the pages served and of the one that they stand on. Not counted.
  LookUpResult copy_out(const Chain& chain, std::byte* const* destinations, std::size_t page_bytes, std::uint64_t lease_ns,
                        CopyChoice copier, std::uint64_t* instances = nullptr);
  void fill(const std::uint64_t* offsets, const std::byte* const* sources, std::size_t pages, std::size_t page_bytes,
            CopyChoice copier, std::uint32_t counter);

  void begin_counting(std::uint32_t counter, std::uint64_t pages) noexcept;
  void account(std::uint32_t counter, const CountsDelta& delta) noexcept;
  // Accounts for what was begun before, in another call; false, and nothing is counted, when so much is not under way.
  bool complete(std::uint32_t counter, const CountsDelta& delta) noexcept;
  // What this row has counted under `counter` up to now; nothing when it is rewritten at each attempt to read it.
  std::optional<CountsSnapshot> counts(std::uint32_t counter) { return read_counts(row().counts[counter]); }
  std::uint32_t held() const { return slots_.held(); }
  // Whether the data file is not being pre-faulted any more.
  bool prefault_ended() const { return !prefault_ || prefault_->ended(); }

 private:
  Row& row() const { return view_.row(row_); }
  std::uint32_t publish_hazards(const Walk& walk, LeaseKind kind, FoundPage* out, LookUpResult& result);
  std::size_t confirm(const Walk& walk, const FoundPage* pages, std::size_t count) const;
  void touch(const FoundPage* pages, std::size_t count, std::uint64_t now_ns) noexcept;
  void raise_high_water(std::uint32_t hazard) noexcept;

  std::unique_ptr<Mapping> control_, clients_, data_;
  std::unique_ptr<BackgroundPrefault> prefault_;  // of data_, before which it ends
  ArenaView view_;
  std::uint32_t row_;
  bool writable_;
  std::uint64_t born_ = fork_generation();
  std::uint32_t high_water_ = 0;
  LeaseSlots slots_;
  LeaseSlots requests_{kRequestViews};
  SpinLock count_locks_[kNamespacesPerRow];
  CountsMemory count_memories_[kNamespacesPerRow];  // each under its lock
};

}  // namespace stratakv
