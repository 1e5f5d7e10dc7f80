// Linux system calls behind memory files and mappings.
#include "mapping.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <limits>
#include <mutex>
#include <system_error>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_HUGETLB
#define MFD_HUGETLB 0x0004U
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace stratakv {
namespace {

constexpr std::uint64_t kHugePageBytes = 2 << 20;

// About a quarter of a millisecond with small pages at their first use; a multiple of every huge page but the gigantic ones.
constexpr std::uint64_t kPrefaultStep = 4 << 20;

std::atomic<std::uint64_t> forks{0};

void count_fork() { forks.fetch_add(1, std::memory_order_relaxed); }

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

void touch_pages(const std::byte* data, std::uint64_t bytes) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  for (std::uint64_t at = 0; at < bytes; at += page) {
    reinterpret_cast<const std::atomic<std::uint64_t>*>(data + at)->load(std::memory_order_relaxed);
  }
}

// A read maps a page of a shared file in to be written as well, and its neighbours along with it, which takes half the time of
// write faults. But neighbours only once they have been zeroed, which committing them leaves to their first use.
void populate(std::byte* data, std::uint64_t bytes, bool first_use) {
  while (madvise(data, bytes, first_use ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) fail("cannot pre-fault a memory file of " + std::to_string(bytes) + " bytes");
    touch_pages(data, bytes);  // a kernel before 5.14
    return;
  }
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Descriptor Descriptor::duplicate() const {
  const int fd = fcntl(fd_, F_DUPFD_CLOEXEC, 3);
  if (fd < 0) fail("cannot duplicate a memory file's descriptor");
  return Descriptor(fd);
}

Descriptor Descriptor::reopen_read_only() const {
  const std::string path = "/proc/self/fd/" + std::to_string(fd_);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail("cannot reopen a memory file read-only through " + path);
  return Descriptor(fd);
}

void Descriptor::forbid_reopening_for_writing() const {
  if (fchmod(fd_, S_IRUSR) != 0) fail("cannot make a memory file read-only for those who reopen it");
}

void require_memory(std::uint64_t bytes) {
  std::ifstream meminfo("/proc/meminfo");
  std::string name;
  std::uint64_t available_kib = 0;
  while (meminfo >> name >> available_kib) {
    if (name == "MemAvailable:") break;
    meminfo.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  if (!meminfo || bytes / 1024 <= available_kib) return;
  throw MemoryShortage("an arena of " + std::to_string(bytes) + " bytes does not fit into the " +
                       std::to_string(available_kib * 1024) + " bytes that this machine has available; make it smaller");
}

Descriptor create_memory_file(const char* name, std::uint64_t bytes, HugePages huge_pages, bool through_mapping) {
  const bool is_explicit = huge_pages == HugePages::kExplicit;
  if (is_explicit) bytes = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  Descriptor file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | (is_explicit ? MFD_HUGETLB | MFD_HUGE_2MB : 0)));
  if (file.get() < 0) {
    fail(std::string("cannot create the memory file ") + name + (is_explicit ? " of huge pages of 2 MiB" : ""));
  }
  if (huge_pages == HugePages::kTransparent && through_mapping && ftruncate(file.get(), static_cast<off_t>(bytes)) == 0) {
    Mapping(file.get(), bytes, true).prepare(true, Prefault::kFirstUse);
  }
  // Sizing fails at once where the kernel would never give so much; committing fails where it is not to be had now.
  int done = ftruncate(file.get(), static_cast<off_t>(bytes));
  while (done == 0 && (done = fallocate(file.get(), 0, 0, static_cast<off_t>(bytes))) != 0 && errno == EINTR) done = 0;
  if (done == 0) return file;
  if (errno == ENOMEM || errno == ENOSPC) {
    throw MemoryShortage("the memory file " + std::string(name) + " of " + std::to_string(bytes) + " bytes does not fit into the " +
                         (is_explicit ? "huge pages" : "memory") + " that this process may have");
  }
  fail(std::string("cannot commit memory for the memory file ") + name);
}

void seal_memory_file(const Descriptor& file, bool forbid_new_writers) {
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | (forbid_new_writers ? F_SEAL_FUTURE_WRITE : 0) | F_SEAL_SEAL;
  if (fcntl(file.get(), F_ADD_SEALS, seals) != 0) fail("cannot seal a memory file");
  if (!forbid_new_writers) return;
  // Before 5.13, kernels took this seal for files of huge pages, and let them be mapped to be written all the same.
  const std::uint64_t bytes = file_size(file.get(), "sealed");
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) return;
  munmap(at, bytes);
  errno = EOPNOTSUPP;
  fail("this kernel does not keep clients from writing to the index in a memory file of this kind");
}

std::uint64_t file_size(int fd, const char* what) {
  struct stat status {};
  if (fstat(fd, &status) != 0) fail(std::string("cannot read the size of the ") + what + " file");
  return static_cast<std::uint64_t>(status.st_size);
}

std::uint64_t sealed_size(int fd, const char* what) {
  const std::uint64_t bytes = file_size(fd, what);
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw std::invalid_argument(std::string("the ") + what + " descriptor is not a memory file sealed against shrinking");
  }
  return bytes;
}

PlacementPolicy placement_policy() {
  PlacementPolicy policy;
  // The kernel counts one node less than it is told bits.
  if (syscall(SYS_get_mempolicy, &policy.mode, policy.nodes, PlacementPolicy::kWords * 64, nullptr, 0UL) != 0) {
    fail("cannot ask where memory is placed");
  }
  return policy;
}

void set_placement_policy(const PlacementPolicy& policy) {
  std::uint64_t any = 0;
  for (const std::uint64_t word : policy.nodes) any |= word;
  const std::uint64_t* nodes = any == 0 ? nullptr : policy.nodes;
  if (syscall(SYS_set_mempolicy, policy.mode, nodes, nodes == nullptr ? 0UL : PlacementPolicy::kWords * 64 + 1) != 0) {
    fail("cannot say where memory is to be placed");
  }
}

std::uint64_t fork_generation() noexcept { return forks.load(std::memory_order_relaxed); }

Mapping::Mapping(int fd, std::uint64_t bytes, bool writable) : bytes_(bytes) {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, count_fork); });
  born_ = fork_generation();
  void* at = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) fail("cannot map a memory file of " + std::to_string(bytes) + " bytes");
  data_ = static_cast<std::byte*>(at);
  if (madvise(at, bytes, MADV_DONTFORK) == 0) return;
  const int error = errno;
  munmap(at, bytes);
  errno = error;
  fail("cannot keep a memory file out of forked children");
}

void Mapping::prepare(bool wish_huge_pages, Prefault prefault) {
  if (wish_huge_pages) madvise(data_, bytes_, MADV_HUGEPAGE);  // kernels that don't offer it for memory files say EINVAL
  if (prefault != Prefault::kNo) populate(data_, bytes_, prefault == Prefault::kFirstUse);
}

Mapping::~Mapping() {
  if (present()) munmap(data_, bytes_);
}

BackgroundPrefault::BackgroundPrefault(const Mapping& mapping, bool first_use)
    : mapping_(mapping), first_use_(first_use) {
  // Signals are for the process's own threads, whose waits they are to interrupt.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::make_unique<std::thread>([this] { run(); });
  } catch (const std::system_error&) {  // no thread to be had: done here
    run();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

BackgroundPrefault::~BackgroundPrefault() {
  if (!thread_) return;
  if (!mapping_.present()) {  // a forked child has the object and not the thread
    static_cast<void>(thread_.release());
    return;
  }
  stopping_.store(true, std::memory_order_relaxed);
  thread_->join();
}

void BackgroundPrefault::run() noexcept {
  for (std::uint64_t at = 0; at < mapping_.bytes() && !stopping_.load(std::memory_order_relaxed); at += kPrefaultStep) {
    try {
      populate(mapping_.data() + at, std::min(kPrefaultStep, mapping_.bytes() - at), first_use_);
    } catch (const std::system_error&) {
      break;  // no memory for page tables now: first uses will ask again
    }
  }
  ended_.store(true, std::memory_order_release);
}

}  // namespace stratakv
