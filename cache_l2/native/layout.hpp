// The shared-memory contract: every struct that the sidecar and its workers read in common memory.
//
// Three anonymous memory files, little-endian, 64-bit only:
//   control  Header | Ring[ring_records] | Bucket[buckets] | Entry[entries]     read-only to clients (sealed)
//   clients  posting words | Row[rows] with leases | AccessTimes[entries]         writable by clients
//   data     segments of slots                                                   read-only unless attached as writer
//
// Words that two processes touch are std::atomic; everything else is written before the generation or tag that
// publishes it. docs/shared-memory.md says in words who writes, who frees, and which fence pairs with which.
#pragma once

#include <atomic>
#include <cstdint>

namespace stratakv {

constexpr std::uint64_t kMagic = 0x31564B4154415254ULL;  // "TRATAKV1", read as little-endian
constexpr std::uint32_t kLayoutVersion = 4;
constexpr std::uint32_t kCacheLine = 64;
constexpr std::uint32_t kSlotAlign = 4096;
constexpr std::uint32_t kKeyWords = 4;
constexpr std::uint32_t kRingPayloadBytes = 432;
constexpr std::uint32_t kRequestViews = 256;
constexpr std::uint32_t kNamespacesPerRow = 32;
constexpr std::uint32_t kMissReasons = 32;  // that a row has room for; those of kv_types.outcomes are fewer
constexpr std::uint32_t kBucketWays = 8;
constexpr std::uint32_t kGrantsPerRow = 64;             // slots that a client may have in advance
constexpr std::uint32_t kPostRingBytes = 32 << 10;      // full of posts of one page each it holds more than that
constexpr std::uint32_t kPostTermsMax = 1024;
constexpr std::uint32_t kNotesPerRow = 1024;            // of look-ups; those that the sidecar is so far behind with are lost
constexpr std::uint64_t kLineageUnknown = 1ULL << 32;      // bit of an entry's producer word
constexpr std::uint64_t kProvenanceOverflow = 0xFFFFFFFF;  // a producer number that may stand for anybody (rule R3)

using Word = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free, "the contract needs lock-free 64-bit words");
static_assert(sizeof(Word) == 8);

// Written once before any client attaches, except the words of the third line on.
struct alignas(kCacheLine) Header {
  std::uint64_t magic;
  std::uint32_t layout_version;
  std::uint32_t header_bytes;
  std::uint8_t life[16];
  std::uint64_t created_boottime_ns;
  std::uint64_t hash_seed;
  std::uint64_t hash_mask;  // all ones but in tests that force index collisions
  std::uint64_t huge_pages;  // 0 off, 1 transparent: whoever maps asks for them, 2 explicit

  std::uint64_t control_bytes, clients_bytes, data_bytes;
  std::uint64_t ring_offset, bucket_offset, entry_offset;   // in control
  std::uint64_t row_offset, access_offset;                  // in clients
  std::uint64_t row_bytes;
  std::uint32_t ring_records, buckets, entries, rows, leases_per_row, segment_bytes;
  std::uint32_t copy_kernel, warm_copy_kernel;  // into destinations out of the caches, and in them

  alignas(kCacheLine) Word view;           // count of all events of this life; 1 at start
  Word closed;                             // 1: draining or ended, no look-up may hit
  alignas(kCacheLine) Word freshness_ns;   // F: hits are served while CLOCK_BOOTTIME < F
  Word keep_granted;                       // 1: the log knows of this node's clients that serve on past F (rule R18)
  Word recording;                          // 1: look-ups are being recorded: clients tell of theirs over the attach connection
  Word reserved1[5];
};
static_assert(sizeof(Header) % kCacheLine == 0);

// One event. `tag` is the view that published it; 0 while it is being rewritten.
struct alignas(kCacheLine) RingRecord {
  Word tag;
  Word incarnation[2];
  Word revision;
  Word kind_and_bytes;  // kind in the high 32 bits, payload bytes in the low
  std::uint64_t reserved[3];
  Word payload[kRingPayloadBytes / 8 + 2];  // 448 bytes, so that a record is 512
};
static_assert(sizeof(RingRecord) == 512);

// Eight ways of (fingerprint in the high 32 bits | entry number + 1 in the low); 0 is an empty way.
// A key lives in one of two buckets; ways never move while an entry is visible.
struct alignas(kCacheLine) Bucket {
  Word way[kBucketWays];
};
static_assert(sizeof(Bucket) == 64);

// What a reader needs is the first line; the second is for the writer, `inspect` and validity.
struct alignas(kCacheLine) Entry {
  Word generation;              // even and non-zero: visible; odd: hidden, free or being filled
  Word key[kKeyWords];
  Word place;                   // slot number in units of kSlotAlign (high 32 bits) | payload bytes (low 32)
  Word parent_generation;       // 0 for a root page
  Word parent_and_expiry;       // parent entry + 1 (high 32; 0 root) | expiry in boot-time seconds, rounded up (low 32; 0 never)

  Word namespace_slot;          // sidecar's namespace number
  Word incarnation[2];          // stamp
  Word revision;
  Word producer;                // sidecar's provenance number (low 32) | kLineageUnknown
  Word computed_from_ms, computed_until_ms;  // producer's wall clock
  Word committed_ns;            // CLOCK_BOOTTIME
};
static_assert(sizeof(Entry) == 128);

// Last two access times, CLOCK_BOOTTIME ns, relaxed, written by readers.
struct AccessTimes {
  Word last;
  Word previous;
};
static_assert(sizeof(AccessTimes) == 16);

// A hazard: one word that pins a page and those below it, towards the root of its chain. Published before the generations
// of all of them are re-checked; 0 when free.
struct Lease {
  Word cover;        // kind (2 bits) | pages (30) | entry of the deepest page + 1 (32)
  Word deadline_ns;  // copy leases only: CLOCK_BOOTTIME after which the sidecar may reuse the slots
};
static_assert(sizeof(Lease) == 16);
enum LeaseKind : std::uint32_t { kLeaseView = 1, kLeaseCopy = 2 };
constexpr std::uint32_t kCoverKindShift = 62;
constexpr std::uint32_t kCoverPagesShift = 32;
constexpr std::uint64_t kCoverPagesMask = (1ULL << 30) - 1;

constexpr std::uint64_t cover_of(LeaseKind kind, std::uint64_t pages, std::uint32_t deepest) {
  return static_cast<std::uint64_t>(kind) << kCoverKindShift | pages << kCoverPagesShift | (deepest + 1);
}
constexpr LeaseKind kind_of(std::uint64_t cover) { return static_cast<LeaseKind>(cover >> kCoverKindShift); }

// Pages of finished look-ups. The spare copy is written, then the selector flips (rule R20).
struct alignas(kCacheLine) PageCounts {
  Word requested, l1, l2, l3;
  Word miss[kMissReasons];
  Word bytes_read, bytes_written, collisions, look_ups;
};

struct alignas(kCacheLine) NamespaceCounts {
  Word begun;     // pages of look-ups that began, counted apart
  Word selector;  // which copy is valid
  PageCounts copy[2];
};

enum EngineMode : std::uint32_t { kEngineNone = 0, kEngineKeep = 1, kEngineDrop = 2 };

// A slot that its client may fill without asking. Whoever swaps `offer` from the reservation's id to 0 has it: the client to
// fill it, the sidecar to take it back. The client may swap it back.
struct Grant {
  Word offer;  // 0: none, or in somebody's hands
  Word place;  // slot number (high 32 bits) and slot size (low), in units of kSlotAlign
};

// Puts that the sidecar hears of later: pages filled in granted slots, published in the order of the posts (posts.hpp).
// Bytes and pages are counted from the row's beginning on; neither counter comes round.
struct alignas(kCacheLine) Posts {
  Word posted_bytes, posted_pages;  // by the client, behind what it has written
  alignas(kCacheLine) Word settled_bytes, settled_pages;  // by the sidecar: carried out up to here
  alignas(kCacheLine) Word key[kGrantsPerRow];  // first word of the key of page n, at n mod kGrantsPerRow
  Grant grants[kGrantsPerRow];
  Word ring[kPostRingBytes / 8];
};

// What one look-up found, for the choice of what is evicted: notes.hpp. Overwritten whether it was read or not.
struct Note {
  Word page;
  Word time;
};

struct alignas(kCacheLine) Notes {
  Word written;  // notes of this row; note n stands at n mod kNotesPerRow
  alignas(kCacheLine) Note ring[kNotesPerRow];
};

// Of 32 rows in one word: a bit a row that has posts which are not settled (low half), and how often any of them has posted.
constexpr std::uint32_t kRowsPerPostingWord = 32;
constexpr std::uint64_t kPostingBits = (1ULL << kRowsPerPostingWord) - 1;

// One client. `Lease[leases_per_row]` follows each row at sizeof(Row); header.row_bytes is the stride.
struct alignas(kCacheLine) Row {
  Word state;               // 0 free, 1 attached, 2 orphaned (connection gone, process alive)
  Word pid;                 // as the sidecar sees it
  Word applied_view;        // L1 has applied every event up to here
  Word own_freshness_ns;    // until then an index of its own may serve without having applied (rule R18); 0: none, or it asks
  Word lease_high_water;    // leases at and above this index were never used
  Word engine;              // what the client said of an index of its own: 0 none, 1 keep, 2 drop
  Word reserved[2];
  alignas(kCacheLine) Word request_view[kRequestViews];  // 0: idle; else a view at or below what the request loaded
  NamespaceCounts counts[kNamespacesPerRow];
  Posts posts;
  Notes notes;
};

}  // namespace stratakv
