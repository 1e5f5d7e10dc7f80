// One request from its submission to its end: what goes out, where the reply goes, what came of it.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "crc32.hpp"
#include "xxh3.hpp"

namespace stratakv::l3 {

// Numbers that Python knows too.
enum class Status : int {
  Done = 0, Absent = 1, Late = 2, Lost = 3, Refused = 4, Malformed = 5, TooLarge = 6, Cancelled = 7, ConnectionEnded = 8,
};

// In the order in which a connection that has room takes them.
enum class Verb : std::size_t { Get = 0, Ask = 1, Set = 2 };
constexpr std::size_t kVerbs = 3;

// Where a record says how long its header is and what its payload's checksum is. Bytes from its start.
struct HeaderShape {
  std::size_t size_at = 0;
  std::size_t checksum_at = 0;
  std::size_t bytes_min = 0;
  std::size_t bytes_max = 0;
};

struct Answer {
  enum class Kind { Text, Integer, Nil, Error };
  Kind kind = Kind::Nil;
  std::string text;
  std::int64_t integer = 0;
};

class Connection;

struct Request {
  std::int64_t number = 0;
  Verb verb = Verb::Ask;
  std::uint32_t shard = 0;
  std::uint64_t deadline_ns = 0;

  // What goes out, in this order. The payload is lent until the request has ended.
  std::string before;
  std::string header;
  const std::byte* payload = nullptr;
  std::size_t payload_bytes = 0;
  std::string after;
  bool unsealed = false;  // the header lacks its checksums
  RunningXxh3 sealing;

  // What comes back.
  bool asking = false;  // a reply to ASKING comes first
  std::size_t replies = 1;
  std::byte* place = nullptr;  // lent until the request has ended
  std::size_t place_bytes = 0;

  // What came of it.
  std::string record_header;
  std::unique_ptr<std::byte[]> stored;
  std::size_t stored_bytes = 0;
  bool in_place = false;
  std::uint64_t checksum = 0;
  std::vector<Answer> answers;

  // The engine's own.
  bool is_queued = false;
  bool was_sent = false;  // the kernel has bytes of it
  Connection* connection = nullptr;    // nullptr: it waits in its shard
  std::list<Request*>::iterator spot;  // in its shard's queue, or in its connection's window

  std::size_t bytes_out() const { return before.size() + header.size() + payload_bytes + after.size(); }
  // Parts from `offset` on; returns how many there are, 4 at most.
  std::size_t parts(std::size_t offset, iovec* out) const {
    const iovec all[] = {{const_cast<char*>(before.data()), before.size()},
                         {const_cast<char*>(header.data()), header.size()},
                         {const_cast<std::byte*>(payload), payload_bytes},
                         {const_cast<char*>(after.data()), after.size()}};
    std::size_t count = 0;
    for (const iovec& part : all) {
      if (offset >= part.iov_len) {
        offset -= part.iov_len;
        continue;
      }
      out[count++] = {static_cast<char*>(part.iov_base) + offset, part.iov_len - offset};
      offset = 0;
    }
    return count;
  }

  // Hashes up to `bytes_max` more of the payload; the last step writes both checksums into the header.
  void seal_step(const HeaderShape& shape, std::size_t bytes_max) {
    if (sealing.taken() + bytes_max < payload_bytes) {
      sealing.advance(sealing.taken() + bytes_max);
      return;
    }
    const std::uint64_t hash = sealing.finish();
    std::memcpy(header.data() + shape.checksum_at, &hash, sizeof(hash));
    const std::uint32_t crc = crc32(header.data(), header.size() - sizeof(std::uint32_t));
    std::memcpy(header.data() + header.size() - sizeof(crc), &crc, sizeof(crc));
    unsealed = false;
  }
};

}  // namespace stratakv::l3
