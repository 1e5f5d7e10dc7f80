// The writer's half of the arena: the one place where pages are reserved, published, hidden and freed.
//
// Single-threaded by contract. Shared memory holds what readers need; everything else about a page (its place in the
// tree, its reservation, who waits for what) is private to this class.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "births.hpp"
#include "counts.hpp"
#include "evicted_keys.hpp"
#include "eviction.hpp"
#include "geometry.hpp"
#include "index.hpp"
#include "limits.hpp"
#include "mapping.hpp"
#include "notes.hpp"
#include "outcomes.hpp"
#include "pins.hpp"
#include "posts.hpp"
#include "prefix_policy.hpp"
#include "ring.hpp"
#include "segment_policy.hpp"
#include "segments.hpp"
#include "selection.hpp"
#include "shares.hpp"
#include "timed_queue.hpp"
#include "tree_walk.hpp"

namespace stratakv {

enum class PageState : std::uint8_t { kFree, kReserved, kVisible, kHidden, kQuarantined, kGranted };
constexpr std::size_t kPageStates = 6;
enum class HideCause : std::uint8_t { kCapacity, kTtl, kInvalidated, kSegment };

struct Reserved {
  std::uint32_t status = kPutRefused;
  std::uint32_t reason = kRefuseNone;
  std::uint64_t reservation = 0;
  std::uint64_t offset = 0;
};

struct Committed {
  std::uint32_t status = kPutRefused;
  std::uint32_t reason = kRefuseNone;
};

struct ReserveRequest {
  std::uint32_t row = 0;
  std::uint64_t namespace_slot = 0;
  const std::uint8_t* parent = nullptr;  // null: keys[0] is a root page
  const std::uint8_t* keys = nullptr;
  std::size_t pages = 0;
  std::uint64_t payload_bytes = 0;
  std::uint32_t expiry_s = 0;
  std::uint64_t deadline_ns = 0;
  std::uint64_t now_ns = 0;
  bool gives_way = false;  // for a load: whoever stores the page itself gets the key
  const std::uint64_t* granted = nullptr;  // a granted slot a page, which holds its bytes already; null: slots are looked for
};

struct GrantTerms {
  std::uint32_t wanted = 0;     // slots
  std::uint64_t bytes_max = 0;  // of what is granted to all rows together
  std::uint64_t now_ns = 0;
  std::uint64_t spared = kNoInstance;  // the chain up to this page is not evicted for it
  std::uint64_t namespace_slot = 0;    // whose tenant the slots count for
};

struct CommitStamp {
  std::uint64_t incarnation[2] = {};
  std::uint64_t revision = 0;
  std::uint64_t producer = 0;
  std::uint64_t computed_from_ms = 0;
  std::uint64_t computed_until_ms = 0;
  std::uint64_t rests_on = kNoInstance;  // the deepest page that the request reused; of a loaded page its line
  std::uint32_t expiry_s = 0;            // of a loaded page: boot-time second of its end, should that come before its place's
};

// The lesser of two views, of which 0 is none.
inline std::uint64_t older(std::uint64_t a, std::uint64_t b) { return a == 0 || (b != 0 && b < a) ? b : a; }

struct RowStatistics {
  std::uint64_t state = 0, pid = 0, engine = 0, leases = 0, leased_bytes = 0, reservations = 0, grants = 0;
  std::uint64_t applied_view = 0, own_freshness_ns = 0, oldest_view = 0, oldest_hidden_view = 0;
};

struct ArenaStatistics {
  std::uint64_t entries_total = 0, entries_visible = 0, entries_reserved = 0, entries_hidden_leased = 0;
  std::uint64_t entries_quarantined = 0, entries_granted = 0;
  std::uint64_t resident_bytes = 0, reserved_bytes = 0, granted_bytes = 0, leased_bytes = 0;
  std::uint64_t segments_total = 0, segments_free = 0, segments_moved = 0;
  std::uint64_t evictions_capacity = 0, evictions_ttl = 0, evictions_invalidated = 0, evictions_segment = 0;
  std::uint64_t stored = 0, known = 0, refused = 0, index_full = 0;
  std::uint64_t posted = 0, loaded = 0, gave_way = 0;
  std::uint64_t oldest_hidden_view = 0;
  std::uint64_t notes_read = 0, notes_lost = 0;
  std::uint64_t policy_learned = 0;  // 1: victims are chosen by what look-ups have shown, 0: the least recently used
  PolicyCounts policy;
};

struct Tally {
  std::uint64_t pages = 0, bytes = 0;
};

struct HideStep {
  std::uint64_t cursor = 0;  // of the next step; 0: done
  std::uint64_t pages = 0;
};

struct CountStep {
  std::uint64_t cursor = 0;
  std::uint64_t pages = 0, bytes = 0;
};

class Arena {
 public:
  explicit Arena(const ArenaSettings& settings);
  ~Arena();

  const ArenaView& view() const { return view_; }
  bool present() const { return control_->present(); }
  // Control, clients, data; the caller owns them.
  std::vector<Descriptor> duplicate_descriptors(bool writable) const;

  std::uint64_t publish_event(Event event);
  void publish_freshness(std::uint64_t freshness_ns);
  // Whether clients whose engines keep their pages may claim them without limit (rule R18).
  void grant_keep(bool granted);
  void record(bool on) { view_.header->recording.store(on ? 1 : 0, std::memory_order_relaxed); }
  void close_header();
  std::uint64_t view_number() const { return view_.header->view.load(std::memory_order_relaxed); }

  std::optional<std::uint32_t> open_row(std::uint64_t pid, EngineMode engine);
  void orphan_row(std::uint32_t row);
  void end_row(std::uint32_t row);
  RowStatistics row_statistics(std::uint32_t row) const;
  NamespaceCounts& counts(std::uint32_t row, std::uint32_t counter) const;

  std::vector<Reserved> reserve(const ReserveRequest& request);
  std::vector<Committed> commit(std::uint32_t row, const std::vector<std::uint64_t>& reservations, const CommitStamp& stamp,
                                std::uint64_t now_ns);
  // One page that was computed elsewhere; what it rests on is told by its line.
  Committed publish_loaded(std::uint32_t row, std::uint64_t reservation, const CommitStamp& stamp, std::uint64_t birth,
                           std::uint64_t now_ns);
  void abort(std::uint32_t row, const std::vector<std::uint64_t>& reservations);
  // Brings the slots on offer to a row up to what is wanted; returns how many there are.
  std::uint32_t grant(std::uint32_t row, std::uint64_t payload_bytes, const GrantTerms& terms);
  // Of posted pages that won't be published: their client has finished with the slots.
  void drop_grant(std::uint32_t row, std::uint64_t id);
  // Takes back what a row has on offer; what is in its client's hands stays there.
  void recall_all_grants(std::uint32_t row);
  // Rows that have posts, or may have.
  std::vector<std::uint32_t> posting_rows() const;
  std::optional<Post> next_post(std::uint32_t row);
  void settle_post(std::uint32_t row);
  std::uint64_t expire(std::uint64_t now_ns);
  // Tells the eviction policy of look-ups that clients have noted, bounded work a call; returns how many.
  std::uint64_t read_notes(std::uint64_t notes_max, std::uint64_t now_ns);
  // Whether each reservation, once committed, has the instance `rests_on` among its ancestors; false where it is not held.
  std::vector<bool> lineage_known(std::uint32_t row, const std::vector<std::uint64_t>& reservations, std::uint64_t rests_on) const;
  // The same of a page to be published by publish_loaded.
  bool loaded_lineage_known(std::uint32_t row, std::uint64_t reservation, std::uint64_t rests_on) const;
  // Cursor 0 begins; `work_max` bounds the entries looked at and hidden.
  HideStep hide_step(const Selection& selection, std::uint64_t cursor, std::uint64_t work_max);
  // Each page once, over all counts of one census; invalid_argument when the count was ended by others.
  CountStep count_step(const Selection& selection, std::uint64_t cursor, std::uint64_t work_max, std::uint64_t census);
  // Keys from the root to the visible or reserved page under a key; nothing when they are more than `pages_max`.
  std::optional<std::vector<PageKey>> chain(const PageKey& key, std::size_t pages_max) const;

  std::optional<std::uint32_t> find(const PageKey& key) const;
  // The entry of the visible page that is this instance.
  std::optional<std::uint32_t> entry_of(std::uint64_t instance) const;
  // Of a visible page: its birth, its line, and the line of the page it rests on.
  std::array<std::uint64_t, 3> births_of(std::uint32_t entry) const {
    return {pages_[entry].birth, pages_[entry].line, pages_[entry].rests_on};
  }
  std::uint64_t leases_on(std::uint32_t entry) const;
  // Instances of at most `most` pages that readers have looked up and that are likely to be evicted soon, by a bounded look at
  // what is coldest: another one with each `turn`. What is leased or pinned is left out where the policy knows of it.
  std::vector<std::uint64_t> cold_used(std::uint32_t turn, std::uint32_t most) const;
  ArenaStatistics statistics();
  // Resident pages by namespace number.
  const Tally& resident(std::uint32_t namespace_slot) const { return namespaces_[namespace_slot].resident; }
  // Entries that still go by a namespace's number: visible, reserved, quarantined, or hidden and leased.
  std::uint64_t namespace_entries(std::uint32_t namespace_slot) const { return namespaces_[namespace_slot].entries; }
  // What the eviction policy has learned, for another arena's: one checked block, at most kPolicyStateBytesMax.
  std::string export_policy() const;
  // Whether L3 holds the page that is an instance, so that to lose it costs a load and no computation; false where it is gone.
  bool set_elsewhere(std::uint64_t instance, bool is_elsewhere);
  // What a load costs against computing, in (0, 1], and the depth at which a page takes twice as long to compute as the first
  // one; 0: all alike. Throws invalid_argument.
  void set_losing_costs(double elsewhere, std::uint32_t attention_pages);
  // Throws invalid_argument, with the policy as it was, when the block is damaged.
  void import_policy(std::string_view state, std::uint64_t now_ns);
  // Evicts all pages of a namespace that nothing is reserved in; returns the entries that are left.
  std::uint64_t evict_namespace(std::uint32_t namespace_slot);
  // arena_pins.cpp. A pin charges every key what its page takes, of which 0 payload bytes say that nobody knows it yet; false,
  // and nothing has changed, where that is more than the quota leaves.
  void set_pin_quota(std::uint64_t bytes) { pins_.set_quota(bytes); }
  std::uint64_t pin_cost(const std::uint8_t* keys, std::size_t pages, std::uint64_t payload_bytes);
  bool pin(const std::uint8_t* keys, std::size_t pages, std::uint64_t payload_bytes);
  void unpin(const std::uint8_t* keys, std::size_t pages);
  Tally held_among(const std::uint8_t* keys, std::size_t pages) const;
  PinStatistics pin_statistics() const { return pins_.statistics(); }
  // arena_shares.cpp. Tenants are numbered from 1 on, in the order of their shares.
  void set_tenant_shares(const std::vector<std::uint64_t>& share_bytes);
  void set_tenant(std::uint64_t namespace_slot, std::uint32_t tenant);
  std::uint32_t tenants() const { return shares_.tenants(); }
  const TenantStatistics& tenant_statistics(std::uint32_t tenant) const { return shares_.of(tenant); }
  // Throws runtime_error naming the first broken invariant.
  void check_invariants();

 private:
  // The writer's own knowledge of an entry: one cache line each, as there are many. Where its slot lies the entry tells.
  struct alignas(kCacheLine) Page {
    PageState state = PageState::kFree;
    bool gives_way = false;  // reserved for a load
    bool cut_off = false;  // reserved, but hidden with its ancestors: its commit will be refused with `reason`
    std::uint8_t reason = kRefuseNone;
    std::uint8_t size_class = 0;
    std::uint8_t tenant = 0;
    std::uint16_t row = 0;
    std::uint32_t parent = kNoEntry, first_child = kNoEntry, next_sibling = kNoEntry, previous_sibling = kNoEntry;
    std::uint32_t next_in_row = kNoEntry;  // reservations of one client
    union {
      std::uint32_t previous_in_row = kNoEntry;
      std::uint32_t depth;  // pages below it in its chain, once it is visible: see depth_of
    };
    std::uint32_t parked_at = kNoEntry;
    std::uint32_t leased_epoch = 0;
    union {
      std::uint64_t deadline_ns = 0;  // while it is reserved
      std::uint64_t birth;            // while it is visible
      std::uint64_t hidden_view;      // that was published when it was hidden
    };
    std::uint64_t line = 0;
    std::uint64_t rests_on = 0;  // a line; kNoInstance: it was computed from nothing else, kUnknownInstance
  };
  static_assert(sizeof(Page) == kCacheLine);
  static_assert(kSizeClassesMax <= 256 && kRowsMax <= 65'536);
  // Entries that are free: a stack that goes through their pages.
  class FreeEntries {
   public:
    explicit FreeEntries(std::vector<Page>& pages) : pages_(pages) {}
    bool empty() const { return top_ == kNoEntry; }
    std::uint32_t size() const { return size_; }
    std::uint32_t back() const { return top_; }
    void push_back(std::uint32_t entry) {
      pages_[entry].next_sibling = std::exchange(top_, entry);
      ++size_;
    }
    void pop_back() {
      top_ = std::exchange(pages_[top_].next_sibling, kNoEntry);
      --size_;
    }

   private:
    std::vector<Page>& pages_;
    std::uint32_t top_ = kNoEntry, size_ = 0;
  };
  struct NamespacePages {
    Tally resident;
    std::uint64_t entries = 0;  // that are not free, whatever their state
    std::uint32_t first_root = kNoEntry;  // visible or reserved; its siblings are the other roots
  };
  struct ClientRow {
    std::uint32_t state = kRowFree;
    EngineMode engine = kEngineNone;
    std::uint64_t pid = 0;
    std::uint32_t first_reservation = kNoEntry;
    std::uint32_t reservations = 0;
    std::vector<std::uint32_t> grants;  // entries, as in the shared row; empty until the first one
    std::uint64_t settled_bytes = 0, settled_pages = 0;
    std::uint64_t post_bytes = 0, post_pages = 0;  // of the post that was read last, until it is settled
    std::uint64_t notes_read = 0;  // of its notes, or passed over
    bool garbled = false;  // its ring held what no client writes
  };
  struct Vacating {
    std::uint32_t segment;
    std::uint32_t next_slot;  // to be looked at, modulo its slots
    std::uint64_t since_ns;
    std::uint32_t taker;  // the tenant that it is for
  };
  enum : std::uint32_t { kRowFree = 0, kRowAttached = 1, kRowOrphaned = 2 };

  // arena.cpp
  void check_row(std::uint32_t row, bool in_use) const;
  void set_state(std::uint32_t entry, PageState state);
  std::uint64_t offset_of(std::uint32_t entry) const {
    return (view_.entries[entry].place.load(std::memory_order_relaxed) >> 32) * kSlotAlign;
  }
  std::uint64_t namespace_slot_of(std::uint32_t entry) const {
    return view_.entries[entry].namespace_slot.load(std::memory_order_relaxed);
  }
  std::uint64_t generation_of(std::uint32_t entry) const {
    return view_.entries[entry].generation.load(std::memory_order_relaxed);
  }
  bool is_due_still(const TimedItem& item) const { return static_cast<std::uint32_t>(generation_of(item.entry)) == item.generation; }
  Tally& tally(PageState state) { return tallies_[static_cast<std::size_t>(state)]; }
  // arena_tree.cpp: parent and child links, leaves
  void link_child(std::uint32_t parent, std::uint32_t child);
  void unlink_child(std::uint32_t child);
  std::uint32_t& first_among(std::uint32_t parent, std::uint32_t child);
  NamespacePages& namespace_of(std::uint32_t entry);
  void refresh_leaf(std::uint32_t entry);
  void park(std::uint32_t entry);
  void unpark(std::uint32_t entry);
  // arena_reserve.cpp
  struct ReserveWalk;
  std::uint32_t admit_parent(const ReserveRequest& request, bool& absent);
  void count_missing(const ReserveRequest& request, ReserveWalk& walk) const;
  Reserved reserve_one(const ReserveRequest& request, ReserveWalk& walk, const PageKey& key);
  bool has_lost(std::uint32_t entry, const ReserveRequest& request);
  Reserved take_reservation(const ReserveRequest& request, ReserveWalk& walk, const PageKey& key);
  std::optional<std::uint32_t> take_entry(const ReserveRequest& request, const ReserveWalk& walk);
  bool find_room(const ReserveRequest& request, const ReserveWalk& walk);
  bool expired(std::uint32_t entry, std::uint64_t now_ns) const;
  bool may_be_stood_on(std::uint32_t entry) const;
  bool is_of_namespace(std::uint32_t entry, std::uint64_t namespace_slot) const;
  // arena_commit.cpp
  std::optional<std::uint32_t> reservation_entry(std::uint32_t row, std::uint64_t reservation) const;
  struct Lineage;
  bool is_lineage_known(std::uint32_t entry, Lineage& lineage) const;
  Committed commit_one(std::uint32_t entry, const CommitStamp& stamp, std::uint64_t now_ns, Lineage& lineage);
  std::uint64_t line_among_ancestors(std::uint32_t entry, Lineage& lineage) const;
  bool has_line_above(std::uint32_t entry, std::uint64_t line) const;
  bool refuse(std::uint32_t entry, std::uint64_t now_ns, Committed& out);
  void publish(std::uint32_t entry, const CommitStamp& stamp, bool lineage_known, std::uint64_t now_ns);
  void end_reservation(std::uint32_t entry);
  void quarantine(std::uint32_t entry);
  void take_out(std::uint32_t entry);
  void cut_off(std::uint32_t entry, std::uint32_t reason);
  void unlink_reservation(std::uint32_t entry);
  // arena_grants.cpp
  std::uint32_t take_slot(std::uint32_t row, std::uint32_t size_class);
  void offer_slot(std::uint32_t row, std::uint32_t at, std::uint32_t size_class);
  std::uint64_t reservation_of(std::uint32_t entry) const;
  bool is_on_offer(std::uint32_t row, std::uint32_t at) const;
  template <typename Chosen>
  void recall_grants(std::uint32_t row, Chosen chosen);
  void recall_grants_of_class(std::uint32_t row, std::uint32_t size_class);
  void recall_grants_but(std::uint32_t size_class);
  void recall_every_grant();
  void end_grants(std::uint32_t row);
  void end_grant(std::uint32_t entry);
  std::optional<std::uint32_t> adopt_grant(std::uint32_t row, std::uint64_t id, std::uint32_t size_class);
  std::optional<std::uint32_t> grant_of(std::uint32_t row, std::uint64_t id) const;
  Post read_post(std::uint32_t row);
  // arena_hide.cpp
  std::uint64_t hide_subtree(std::uint32_t entry, HideCause cause);
  std::uint64_t oldest_hidden_view() const;
  std::uint64_t hide_from_leaves(std::uint32_t top, std::uint64_t pages);
  bool hide_expired(std::uint32_t entry);
  void schedule_expiry(const TimedItem& item);
  void hide_one(std::uint32_t entry, HideCause cause);
  void count_hidden(HideCause cause);
  void free_entry(std::uint32_t entry);
  void reclaim();
  // As of the last scan. Exact of hidden pages and of leaves, which is what is asked: a leased page that has children may go by none.
  bool leased(std::uint32_t entry) const { return pages_[entry].leased_epoch == epoch_; }
  // arena_scan.cpp
  struct Cover {
    std::uint32_t lowest;   // depth at which it ends
    std::uint32_t deepest;  // entry
  };
  void list_covers(bool visible_too);
  bool goes_on(const Cover& cover, std::uint32_t entry) const;
  void scan_leases();
  std::uint64_t leased_bytes();
  std::uint32_t depth_of(std::uint32_t entry) const {
    const bool has_depth = pages_[entry].state == PageState::kVisible || pages_[entry].state == PageState::kHidden;
    return has_depth ? pages_[entry].depth : 0;
  }
  std::uint32_t pages_of(std::uint32_t deepest, std::uint32_t pages) const;
  std::uint32_t page_below(std::uint32_t entry) const;
  // arena_walk.cpp
  TreeWalk& begin_walk(TreeWalks& walks, const Selection& selection);
  TreeWalk& begin_count(const Selection& selection, std::uint64_t census);
  bool mark_counted(std::uint32_t entry, std::uint64_t census);
  bool may_hide(std::uint32_t entry, const Selection& selection) const;
  std::uint64_t hide_onwards(TreeWalk& walk);
  void go_below(TreeWalk& walk);
  void move_on(TreeWalk& walk, const Selection& selection);
  void leave(TreeWalk& walk, const TreePlace& place);
  void move_walks(std::uint32_t entry, const TreePlace& place);
  // arena_room.cpp
  bool make_room(std::uint32_t size_class, std::uint64_t pages, bool may_rebalance, std::uint64_t now_ns, bool spares_own = false);
  void survey_leases(std::uint64_t now_ns);
  std::uint64_t last_access(std::uint32_t entry);
  std::optional<ColdPage> coldest_of(std::uint16_t queue);
  std::uint64_t evict(std::uint32_t size_class, std::uint64_t pages, bool spares_owed = true);
  std::uint64_t evict_for_entries(std::uint64_t pages);
  void note_evicted(std::uint32_t entry);
  void note_taken(std::uint32_t size_class, const PageKey& key, std::uint64_t now_ns);
  // arena_notes.cpp
  void read_last_notes(std::uint32_t row, std::uint64_t now_ns);
  void collect_notes(std::uint32_t row, std::uint64_t notes_max);
  std::uint64_t tell_notes(std::uint64_t now_ns);
  void tell_note(const ReadNote& note, std::uint64_t now_ns);
  // arena_segments.cpp
  void follow_demand(std::uint32_t size_class, std::uint64_t now_ns);
  bool take_in_need(std::uint32_t size_class, std::uint64_t now_ns);
  std::uint32_t survey_donors(std::uint32_t size_class, std::uint64_t now_ns);
  void survey_donor(Donor& donor, std::uint64_t now_ns, std::uint64_t& work);
  SegmentOffer look_at_segment(Donor& donor, std::uint32_t segment, std::uint64_t now_ns);
  void examine_offer(SegmentOffer& offer, std::uint64_t& work) const;
  bool may_all_lose(const std::array<std::uint64_t, kTenantsMax>& lost_bytes) const;
  void prefetch_page(const std::vector<std::uint32_t>& owners, std::size_t slot) const;
  void begin_vacating(std::uint32_t segment, std::uint64_t now_ns);
  void go_on_vacating(std::uint64_t now_ns);
  void vacate(Vacating& vacating);
  std::uint64_t hide_from_leaves_but_needed(std::uint32_t top, const Vacating& vacating, std::uint64_t pages, std::uint64_t& looks);
  // arena_pins.cpp
  std::uint64_t charge_of(std::uint64_t payload_bytes);
  void hold_if_pinned(std::uint32_t entry);
  void check_pins() const;
  // arena_shares.cpp
  std::uint16_t queue_of(std::uint32_t size_class, std::uint32_t tenant) const {
    return static_cast<std::uint16_t>(size_class * shares_.tenants() + tenant);
  }
  std::uint16_t queue_of(std::uint32_t entry) const { return queue_of(pages_[entry].size_class, pages_[entry].tenant); }
  std::optional<ColdPage> coldest_victim(std::uint32_t size_class, bool is_owed);
  bool may_lose_namespace(std::uint64_t namespace_slot) const;
  bool is_kept(std::uint32_t entry, std::uint32_t taker) const;
  void check_shares() const;
  // arena_check.cpp
  void check_index() const;
  void check_entry(std::uint32_t entry) const;
  void check_links(std::uint32_t entry) const;
  void check_roots() const;

  Descriptor control_file_, clients_file_, data_file_;
  std::unique_ptr<Mapping> control_, clients_;
  ArenaView view_;
  Index index_;
  Segments segments_;
  SegmentPolicy segment_policy_;
  EvictedKeys evicted_keys_;
  PrefixPolicy policy_;                  // knows the visible pages
  Births births_;
  std::vector<Page> pages_;
  std::vector<ClientRow> rows_;
  FreeEntries free_entries_{pages_};
  std::vector<std::uint32_t> waiting_;   // hidden, still leased when last looked at
  std::vector<std::uint32_t> parked_;    // leaves that were leased when last offered as victims
  std::vector<std::uint32_t> walk_, gone_;  // scratch of hide_subtree
  std::vector<std::uint64_t> evicted_;        // by size class
  std::vector<std::uint32_t> donor_cursors_;  // by size class: which of its segments are looked at next
  std::uint32_t donor_classes_cursor_ = 0;
  std::array<Donor, kDonorsMax> donors_;      // scratch of survey_donors
  std::vector<Vacating> vacating_;            // segments on their way to another class
  TimedQueue page_expiries_;             // due in boot-time seconds
  TimedQueue reservation_deadlines_;     // due in nanoseconds
  std::vector<NamespacePages> namespaces_;  // by number
  TreeWalks hides_, counts_;
  std::uint64_t walks_begun_ = 0;
  std::uint64_t walk_steps_ = 0;
  std::uint64_t census_ = 0;             // the last one begun
  std::vector<bool> counted_;            // by entry, in that census
  ArenaStatistics counters_;
  Tally tallies_[kPageStates];           // of all states but free
  std::vector<Cover> covers_;            // scratch of scan_leases
  std::vector<ReadNote> notes_;          // scratch of read_notes
  std::uint32_t notes_row_ = 0;          // whose notes are read next
  std::uint32_t epoch_ = 0;
  std::uint64_t round_began_ns_ = 0;     // when room was last looked for
  std::uint32_t looks_left_ = 0;         // at access times of victims, in this round
  Pins pins_;
  Shares shares_;
  std::uint32_t taker_ = kNobody;           // the tenant for which room is made
  std::uint32_t pinned_parent_ = kNoEntry;  // of the pages being reserved: never a victim
};

}  // namespace stratakv
