// Memory files and their mappings: creation, sealing, pre-faulting, and what a fork does to them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace stratakv {

// Memory that could not be had. Becomes MemoryError in Python.
struct MemoryShortage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Owns one file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const noexcept { return fd_; }
  int release() noexcept { return std::exchange(fd_, -1); }
  Descriptor duplicate() const;
  Descriptor reopen_read_only() const;
  // So that a read-only descriptor stays one: /proc/self/fd would give its holder another. Existing ones keep writing.
  void forbid_reopening_for_writing() const;

 private:
  int fd_ = -1;
};

// Throws MemoryShortage when the machine does not have so many bytes to give now. Memory files are not subject to the
// kernel's overcommit check: without this the first sign of a shortage would be the kernel killing somebody.
void require_memory(std::uint64_t bytes);

// What a memory file's pages are. Transparent: small ones, of which the kernel may make huge ones where it is set to.
// Explicit: huge ones of 2 MiB out of the pool that somebody reserved for them.
enum class HugePages : std::uint32_t { kOff = 0, kTransparent = 1, kExplicit = 2 };

// Creates an anonymous memory file of this size, or the next multiple of its pages, with its memory committed; throws
// MemoryShortage or system_error. `through_mapping`: kernels that give huge pages only to mappings that ask for them are asked.
Descriptor create_memory_file(const char* name, std::uint64_t bytes, HugePages huge_pages = HugePages::kOff,
                              bool through_mapping = false);

// Forbids shrinking and growing, and, where asked, writable mappings and writes other than those that exist already; throws
// system_error where the kernel takes the seal and doesn't keep it.
void seal_memory_file(const Descriptor& file, bool forbid_new_writers);

// Size in bytes of a memory file.
std::uint64_t file_size(int fd, const char* what);

// Size in bytes of a memory file that can't shrink any more; throws invalid_argument when it still could.
std::uint64_t sealed_size(int fd, const char* what);

// How many forks lie between the start of the first process and this one.
std::uint64_t fork_generation() noexcept;

// Says by which policy the kernel places the memory that this thread asks for from now on (a mode of set_mempolicy(2), and
// nodes by bit of words); throws system_error. And what it is now.
struct PlacementPolicy {
  static constexpr std::size_t kWords = 16;  // 1,024 nodes, as many as kernels have
  int mode = 0;
  std::uint64_t nodes[kWords] = {};
};
PlacementPolicy placement_policy();
void set_placement_policy(const PlacementPolicy& policy);

// Whether a mapping's pages are mapped in at once, and whether anybody has used them before, in any process.
enum class Prefault { kNo, kFirstUse, kUsed };

// One mapping of a whole memory file. Not inherited by a forked child, and never unmapped there.
class Mapping {
 public:
  Mapping(int fd, std::uint64_t bytes, bool writable);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
  std::byte* data() const noexcept { return data_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  bool present() const noexcept { return born_ == fork_generation(); }
  // Asks for huge pages where that is wished, then maps all pages in where that is.
  void prepare(bool wish_huge_pages, Prefault prefault);

 private:
  std::byte* data_;
  std::uint64_t bytes_;
  std::uint64_t born_;
};

// Pre-faults a mapping on a thread of its own, in steps so short that nobody waits for the lock on this process's memory:
// page tables of a large arena take seconds, and what is not done yet is faulted in at its first use. Ends before its mapping.
class BackgroundPrefault {
 public:
  BackgroundPrefault(const Mapping& mapping, bool first_use);
  BackgroundPrefault(const BackgroundPrefault&) = delete;
  BackgroundPrefault& operator=(const BackgroundPrefault&) = delete;
  ~BackgroundPrefault();
  bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }

 private:
  void run() noexcept;

  const Mapping& mapping_;
  const bool first_use_;
  std::atomic<bool> stopping_{false}, ended_{false};
  std::unique_ptr<std::thread> thread_;
};

}  // namespace stratakv
