// Layout arithmetic of the three memory files and the checks on both ends.
#include "geometry.hpp"

#include <cstring>
#include <stdexcept>
#include <string>

#include "limits.hpp"
#include "size_classes.hpp"

namespace stratakv {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

void check_range(const char* name, std::uint64_t value, std::uint64_t low, std::uint64_t high) {
  if (value < low || value > high) {
    throw std::invalid_argument(std::string(name) + " must be " + std::to_string(low) + " to " + std::to_string(high) +
                                "; got " + std::to_string(value));
  }
}

std::uint64_t power_of_two_at_least(std::uint64_t value) {
  std::uint64_t power = 1;
  while (power < value) power *= 2;
  return power;
}

void check_settings(const ArenaSettings& s) {
  check_range("segment_bytes", s.segment_bytes, kSegmentBytesMin, kSegmentBytesMax);
  if (s.segment_bytes % kSlotAlign != 0) throw std::invalid_argument("segment_bytes must be a multiple of 4096");
  check_range("arena_bytes", s.arena_bytes, kArenaBytesMin, 1ULL << 43);
  if (s.arena_bytes < s.segment_bytes) throw std::invalid_argument("arena_bytes must hold at least one segment");
  check_range("entries", s.entries, 1, kEntriesMax);
  check_range("rows", s.rows, 1, kRowsMax);
  check_range("leases_per_row", s.leases_per_row, 1, kLeasesPerRowMax);
  check_range("ring_records", s.ring_records, 2, kRingRecordsMax);
  check_range("index_hash_bits", s.index_hash_bits, 1, 64);
}

void fill_offsets(Geometry& g) {
  g.ring_offset = round_up(sizeof(Header), kPageBytes);
  g.bucket_offset = round_up(g.ring_offset + g.ring_records * sizeof(RingRecord), kPageBytes);
  g.entry_offset = round_up(g.bucket_offset + g.buckets * sizeof(Bucket), kPageBytes);
  g.control_bytes = round_up(g.entry_offset + g.entries * sizeof(Entry), kPageBytes);
  g.row_bytes = round_up(sizeof(Row) + g.leases_per_row * sizeof(Lease), kPageBytes);
  g.row_offset = kPageBytes;
  static_assert(kRowsMax / kRowsPerPostingWord * sizeof(Word) <= kPageBytes, "the posting words lie before the first row");
  g.access_offset = g.row_offset + g.rows * g.row_bytes;
  g.clients_bytes = round_up(g.access_offset + g.entries * sizeof(AccessTimes), kPageBytes);
}

}  // namespace

Geometry plan_geometry(const ArenaSettings& s, std::uint64_t hash_seed) {
  check_settings(s);
  Geometry g{};
  g.segment_bytes = static_cast<std::uint32_t>(s.segment_bytes);
  g.data_bytes = s.arena_bytes / s.segment_bytes * s.segment_bytes;
  g.entries = static_cast<std::uint32_t>(s.entries);
  g.rows = static_cast<std::uint32_t>(s.rows);
  g.leases_per_row = static_cast<std::uint32_t>(s.leases_per_row);
  g.ring_records = static_cast<std::uint32_t>(power_of_two_at_least(s.ring_records));
  // At most half of the ways are taken, so that an insertion practically always finds one in its two buckets.
  g.buckets = static_cast<std::uint32_t>(power_of_two_at_least((s.entries * 2 + kBucketWays - 1) / kBucketWays));
  if (g.buckets < 2) g.buckets = 2;
  g.copy_kernel = s.copy_kernel;
  g.warm_copy_kernel = s.warm_copy_kernel;
  g.huge_pages = s.huge_pages;
  g.hash_seed = hash_seed;
  g.hash_mask = s.index_hash_bits == 64 ? ~0ULL : (1ULL << s.index_hash_bits) - 1;
  fill_offsets(g);
  return g;
}

ArenaView view_of(const Geometry& g, std::byte* control, std::byte* clients, std::byte* data) {
  ArenaView view;
  view.geometry = g;
  view.header = reinterpret_cast<Header*>(control);
  view.ring = reinterpret_cast<RingRecord*>(control + g.ring_offset);
  view.buckets = reinterpret_cast<Bucket*>(control + g.bucket_offset);
  view.entries = reinterpret_cast<Entry*>(control + g.entry_offset);
  view.posting = reinterpret_cast<Word*>(clients);
  view.rows = clients + g.row_offset;
  view.access = reinterpret_cast<AccessTimes*>(clients + g.access_offset);
  view.data = data;
  return view;
}

void write_header(const ArenaView& view, const ArenaSettings& settings, std::uint64_t now_ns) {
  const Geometry& g = view.geometry;
  Header& h = *view.header;
  h.magic = kMagic;
  h.layout_version = kLayoutVersion;
  h.header_bytes = sizeof(Header);
  std::memcpy(h.life, settings.life, sizeof(h.life));
  h.created_boottime_ns = now_ns;
  h.hash_seed = g.hash_seed;
  h.hash_mask = g.hash_mask;
  h.control_bytes = g.control_bytes;
  h.clients_bytes = g.clients_bytes;
  h.data_bytes = g.data_bytes;
  h.ring_offset = g.ring_offset;
  h.bucket_offset = g.bucket_offset;
  h.entry_offset = g.entry_offset;
  h.row_offset = g.row_offset;
  h.access_offset = g.access_offset;
  h.row_bytes = g.row_bytes;
  h.ring_records = g.ring_records;
  h.buckets = g.buckets;
  h.entries = g.entries;
  h.rows = g.rows;
  h.leases_per_row = g.leases_per_row;
  h.segment_bytes = g.segment_bytes;
  h.copy_kernel = g.copy_kernel;
  h.warm_copy_kernel = g.warm_copy_kernel;
  h.huge_pages = static_cast<std::uint64_t>(g.huge_pages);
}

Geometry read_header(const std::byte* control, std::uint64_t control_bytes, const std::uint8_t life[16]) {
  if (control_bytes < sizeof(Header)) throw std::invalid_argument("the control file is shorter than its header");
  const Header& h = *reinterpret_cast<const Header*>(control);
  if (h.magic != kMagic) throw std::invalid_argument("the control file does not begin with stratakv's magic number");
  if (h.layout_version != kLayoutVersion || h.header_bytes != sizeof(Header)) {
    throw std::invalid_argument("the sidecar's memory layout is version " + std::to_string(h.layout_version) +
                                ", this client speaks version " + std::to_string(kLayoutVersion));
  }
  if (std::memcmp(h.life, life, sizeof(h.life)) != 0) {
    throw std::invalid_argument("the control file belongs to another life of the sidecar");
  }
  Geometry g{};
  g.ring_records = h.ring_records;
  g.buckets = h.buckets;
  g.entries = h.entries;
  g.rows = h.rows;
  g.leases_per_row = h.leases_per_row;
  g.segment_bytes = h.segment_bytes;
  g.copy_kernel = h.copy_kernel;
  g.warm_copy_kernel = h.warm_copy_kernel;
  g.huge_pages = static_cast<HugePages>(h.huge_pages);
  g.data_bytes = h.data_bytes;
  g.hash_seed = h.hash_seed;
  g.hash_mask = h.hash_mask;
  const bool powers = g.ring_records >= 2 && (g.ring_records & (g.ring_records - 1)) == 0 && g.buckets >= 2 &&
                      (g.buckets & (g.buckets - 1)) == 0;
  const bool bounded = g.entries >= 1 && g.entries <= kEntriesMax && g.rows >= 1 && g.rows <= kRowsMax &&
                       g.leases_per_row >= 1 && g.leases_per_row <= kLeasesPerRowMax &&
                       g.ring_records <= kRingRecordsMax && g.buckets <= kEntriesMax && g.segment_bytes >= kSlotAlign;
  if (!powers || !bounded) throw std::invalid_argument("the control file's header holds numbers out of range");
  fill_offsets(g);
  const bool equal = g.control_bytes == h.control_bytes && g.clients_bytes == h.clients_bytes &&
                     g.ring_offset == h.ring_offset && g.bucket_offset == h.bucket_offset &&
                     g.entry_offset == h.entry_offset && g.row_offset == h.row_offset &&
                     g.access_offset == h.access_offset && g.row_bytes == h.row_bytes;
  if (!equal || g.control_bytes > control_bytes) {
    throw std::invalid_argument("the control file's offsets do not fit its own counts");
  }
  return g;
}

}  // namespace stratakv
