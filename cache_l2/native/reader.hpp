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
#include "page_runs.hpp"
#include "posts.hpp"
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
  std::uint32_t lease = kNoSlot;          // the word that pins the pages; none where there are none
};

// Pages to store without asking: keys[start …] of a chain, one source each.
struct PostRequest {
  Chain chain;
  std::size_t resident;  // pages of the chain that a look-up has found just now
  const PageRuns* sources;
  std::size_t page_bytes;
  std::uint32_t counter;
  std::uint64_t incarnation[2];  // of their stamp
  std::uint64_t revision;
  std::int64_t ttl_s;         // −1: the sidecar's default
  std::uint64_t deadline_ns;  // CLOCK_BOOTTIME; filled later, nothing is posted
  const char* terms;          // what the sidecar is told of all of them
  std::size_t terms_bytes;    // up to kPostTermsMax
  CopyChoice copier;
};

// kAsk: it can't be done without asking, and nothing has changed. kLate: the deadline passed, likewise.
enum class PostKind : std::uint32_t { kAsk = 0, kPosted = 1, kLate = 2 };

struct PostResult {
  PostKind kind = PostKind::kAsk;
  std::vector<std::uint64_t> ids;  // of the pages, once posted
};

// A claim of freshness that doesn't end.
inline constexpr std::uint64_t kNoLimit = ~0ULL;

class Reader {
 public:
  // Maps the three files; takes over the descriptors. `first_use`: nobody has mapped the pages' bytes in before. Without a
  // doorbell (none) nothing can be posted, nor is what others have posted waited for: so the sidecar reads its own arena.
  // invalid_argument when header, life or sizes do not fit.
  static std::shared_ptr<Reader> attach(
      Descriptor control, Descriptor clients, Descriptor data, Descriptor doorbell, std::uint32_t row,
      const std::uint8_t life[16], bool writable, bool prefault, bool first_use);
  // Over memory that is mapped already (stress tests under sanitizers, which follow addresses).
  Reader(const ArenaView& view, std::uint32_t row, bool writable, Descriptor doorbell);

  const ArenaView& arena() const { return view_; }
  bool writable() const { return writable_; }
  // False in a forked child: the maps are not there.
  bool present() const { return born_ == fork_generation(); }

  bool closed() const { return view_.header->closed.load(std::memory_order_acquire) != 0; }
  std::uint64_t view_number() const { return view_.header->view.load(std::memory_order_acquire); }
  std::uint64_t freshness_ns() const { return view_.header->freshness_ns.load(std::memory_order_acquire); }
  bool recording() const { return view_.header->recording.load(std::memory_order_relaxed) != 0; }
  bool keep_granted() const { return view_.header->keep_granted.load(std::memory_order_acquire) != 0; }
  void set_applied_view(std::uint64_t view) { row().applied_view.store(view, std::memory_order_release); }
  // Says until when an index of this client's own may serve without asking, then loads the view: (what was said, view)
  // (rule R18). The header's F if nothing is given, or if no limit is wanted and that isn't granted. (0, 0), and nothing is
  // claimed, once the header is closed.
  std::pair<std::uint64_t, std::uint64_t> claim_freshness(std::optional<std::uint64_t> freshness_ns);

  // Takes a request slot and publishes a view at or below the one returned; slot −1: none free. `view`: publishes that
  // one, which work begun elsewhere rests on; invalid_argument when it is 0 or not published yet.
  std::pair<int, StampedView> begin_request(std::optional<std::uint64_t> view = std::nullopt);
  // Raises the view that a request works on; invalid_argument for a view not published or a slot not taken.
  void advance_request(std::uint32_t slot, std::uint64_t view);
  void end_request(std::uint32_t slot);

  LookUpResult match(const Chain& chain);
  // Pins what it finds, all of it by one lease; `out` has room for all pages that are wanted. Not counted: the caller calls `account`.
  LookUpResult pin(const Chain& chain, LeaseKind kind, std::uint64_t lease_ns, FoundPage* out);
  // Pins the one page that is this instance, whatever its freshness or expiry; none when it is gone or no lease is left.
  LookUpResult pin_instance(std::uint64_t instance, FoundPage* out);
  // Keeps only the `pages` that end with `deepest`: some of those, next to each other, that the lease covers. Never more.
  void narrow(std::uint32_t lease, const FoundPage& deepest, std::size_t pages) noexcept;
  void unpin(std::uint32_t lease) noexcept;
  // Look up under copy leases, copy, check generations and deadline again. `instances`, one a key where it is given, is
  // told those of the pages served and of the one that they stand on. Not counted.
  LookUpResult copy_out(const Chain& chain, std::byte* const* destinations, std::size_t page_bytes, std::uint64_t lease_ns,
                        CopyChoice copier, std::uint64_t* instances = nullptr);
  // Fills granted slots and posts them, where that is as good as asking.
  PostResult post(const PostRequest& request);
  // Whether a page that is absent may have been posted: then its look-up should be allowed to wait.
  bool may_await() const { return doorbell_.get() >= 0 && any_posting(view_); }
  // In a forked child, where nothing else of this may be used.
  void forget_doorbell() { doorbell_ = Descriptor(); }
  void fill(const std::uint64_t* offsets, const PageRuns* sources, std::size_t pages, std::size_t page_bytes,
            CopyChoice copier, std::uint32_t counter);

  void begin_counting(std::uint32_t counter, std::uint64_t pages) noexcept;
  void account(std::uint32_t counter, const CountsDelta& delta) noexcept;
  // Accounts for what was begun before, in another call; false, and nothing is counted, when so much is not under way.
  bool complete(std::uint32_t counter, const CountsDelta& delta) noexcept;
  // What this row has counted under `counter` up to now; nothing when it is rewritten at each attempt to read it.
  std::optional<CountsSnapshot> counts(std::uint32_t counter) { return read_counts(row().counts[counter]); }
  // Pages that this row has posted and the sidecar has not carried out.
  std::uint64_t posted() const { return unsettled_pages(row().posts); }
  // Leases, each of however many pages.
  std::uint32_t held() const { return slots_.held(); }
  // Whether the data file is not being pre-faulted any more.
  bool prefault_ended() const { return !prefault_ || prefault_->ended(); }
  // The mapping that all pages lie in.
  const Mapping& pages_memory() const noexcept { return *data_; }

 private:
  struct Taken {
    std::uint64_t id;
    std::uint64_t offset;
    std::uint32_t at;  // among the row's grants
  };

  Row& row() const { return view_.row(row_); }
  LookUpResult match_once(const Chain& chain);
  LookUpResult pin_once(const Chain& chain, LeaseKind kind, std::uint64_t lease_ns, FoundPage* out);
  // reader_post.cpp
  bool may_be_posted(const Chain& chain, std::size_t resident) const;
  void keep_parent(const Chain& chain, std::uint64_t now_ns) noexcept;
  bool take_grants(std::size_t page_bytes, std::size_t pages, Taken* out);
  void give_back(const Taken* taken, std::size_t pages) noexcept;
  bool write_post(const PostRequest& request, const Taken* taken);
  void ring_doorbell() const noexcept;
  bool await_posted(const std::uint8_t* key, std::uint64_t& until_ns) const;
  void publish_hazard(const Walk& walk, LeaseKind kind, const FoundPage* pages, LookUpResult& result);
  std::size_t confirm(const Walk& walk, const FoundPage* pages, std::size_t count) const;
  void note(const Chain& chain, const LookUpResult& result, const FoundPage* pages) noexcept;
  void touch(const FoundPage* pages, std::size_t count, std::uint64_t now_ns) noexcept;
  void raise_high_water(std::uint32_t hazard) noexcept;

  std::unique_ptr<Mapping> control_, clients_, data_;
  std::unique_ptr<BackgroundPrefault> prefault_;  // of data_, before which it ends
  Descriptor doorbell_;  // an eventfd that wakes the sidecar
  SpinLock post_lock_;
  ArenaView view_;
  std::uint32_t row_;
  bool writable_;
  std::uint64_t born_ = fork_generation();
  LeaseSlots slots_;
  LeaseSlots requests_{kRequestViews};
  SpinLock count_locks_[kNamespacesPerRow];
  CountsMemory count_memories_[kNamespacesPerRow];  // each under its lock
};

}  // namespace stratakv
