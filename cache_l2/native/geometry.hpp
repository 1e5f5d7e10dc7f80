// Where everything lies in the three memory files: computed and written by the sidecar, checked by clients.
#pragma once

#include <cstddef>
#include <cstdint>

#include "layout.hpp"
#include "mapping.hpp"

namespace stratakv {

struct ArenaSettings {
  std::uint64_t arena_bytes = 0;
  std::uint64_t segment_bytes = 0;
  std::uint64_t entries = 0;
  std::uint64_t rows = 0;
  std::uint64_t leases_per_row = 0;
  std::uint64_t ring_records = 0;
  std::uint8_t life[16] = {};
  std::uint32_t index_hash_bits = 64;
  std::uint32_t copy_kernel = 0;
  std::uint32_t warm_copy_kernel = 0;
  bool prefault = true;
  HugePages huge_pages = HugePages::kTransparent;
  bool commit_through_mapping = false;
  bool learns = true;  // what is evicted, from look-ups
};

// A private copy of the header's numbers: nobody reads them twice out of shared memory.
struct Geometry {
  std::uint64_t control_bytes, clients_bytes, data_bytes;
  std::uint64_t ring_offset, bucket_offset, entry_offset, row_offset, access_offset, row_bytes;
  std::uint64_t hash_seed, hash_mask;
  std::uint32_t ring_records, buckets, entries, rows, leases_per_row, segment_bytes;
  std::uint32_t copy_kernel, warm_copy_kernel;
  HugePages huge_pages;
  bool wish_huge_pages() const { return huge_pages == HugePages::kTransparent; }
  std::uint32_t segments() const { return static_cast<std::uint32_t>(data_bytes / segment_bytes); }
};

// Typed pointers into the mapped files. `data` is null where a process has no need of the slots.
struct ArenaView {
  Geometry geometry{};
  Header* header = nullptr;
  RingRecord* ring = nullptr;
  Word* posting = nullptr;  // which rows have posts that are not settled
  Bucket* buckets = nullptr;
  Entry* entries = nullptr;
  std::byte* rows = nullptr;
  AccessTimes* access = nullptr;
  std::byte* data = nullptr;

  std::uint32_t posting_words() const { return (geometry.rows + kRowsPerPostingWord - 1) / kRowsPerPostingWord; }
  Row& row(std::uint32_t number) const { return *reinterpret_cast<Row*>(rows + number * geometry.row_bytes); }
  Lease* leases(std::uint32_t number) const {
    return reinterpret_cast<Lease*>(rows + number * geometry.row_bytes + sizeof(Row));
  }
};

// Checks the settings (invalid_argument names the first bad one) and lays the files out.
Geometry plan_geometry(const ArenaSettings& settings, std::uint64_t hash_seed);

// Points a view at mapped files.
ArenaView view_of(const Geometry& geometry, std::byte* control, std::byte* clients, std::byte* data);

// Writes everything of the header that never changes.
void write_header(const ArenaView& view, const ArenaSettings& settings, std::uint64_t now_ns);

// Reads and checks the header of a mapped control file; throws invalid_argument when anything does not fit.
Geometry read_header(const std::byte* control, std::uint64_t control_bytes, const std::uint8_t life[16]);

}  // namespace stratakv
