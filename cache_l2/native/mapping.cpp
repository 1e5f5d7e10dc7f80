// Linux system calls behind memory files and mappings.
#include "mapping.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
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
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace stratakv {
namespace {

// About a quarter of a millisecond with small pages; a multiple of every huge page but the gigantic ones.
constexpr std::uint64_t kPrefaultStep = 4 << 20;

std::atomic<std::uint64_t> forks{0};

void count_fork() { forks.fetch_add(1, std::memory_order_relaxed); }

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

// Touch every page: readers take a read fault, writers a write fault that keeps the bytes.
void touch_pages(std::byte* data, std::uint64_t bytes, bool writable) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  for (std::uint64_t at = 0; at < bytes; at += page) {
    auto* word = reinterpret_cast<std::atomic<std::uint64_t>*>(data + at);
    if (writable) {
      word->fetch_add(0, std::memory_order_relaxed);
    } else {
      word->load(std::memory_order_relaxed);
    }
  }
}

void populate(std::byte* data, std::uint64_t bytes, bool writable) {
  while (madvise(data, bytes, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) fail("cannot pre-fault a memory file of " + std::to_string(bytes) + " bytes");
    touch_pages(data, bytes, writable);  // a kernel before 5.14
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

Descriptor create_memory_file(const char* name, std::uint64_t bytes) {
  Descriptor file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) fail(std::string("cannot create the memory file ") + name);
  // Sizing fails at once where the kernel would never give so much; committing fails where it is not to be had now.
  int done = ftruncate(file.get(), static_cast<off_t>(bytes));
  while (done == 0 && (done = fallocate(file.get(), 0, 0, static_cast<off_t>(bytes))) != 0 && errno == EINTR) done = 0;
  if (done == 0) return file;
  if (errno == ENOMEM || errno == ENOSPC) {
    throw MemoryShortage("the memory file " + std::string(name) + " of " + std::to_string(bytes) +
                         " bytes does not fit into the memory that this process may have");
  }
  fail(std::string("cannot commit memory for the memory file ") + name);
}

void seal_memory_file(const Descriptor& file, bool forbid_new_writers) {
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | (forbid_new_writers ? F_SEAL_FUTURE_WRITE : 0) | F_SEAL_SEAL;
  if (fcntl(file.get(), F_ADD_SEALS, seals) != 0) fail("cannot seal a memory file");
}

std::uint64_t sealed_size(int fd, const char* what) {
  struct stat status {};
  if (fstat(fd, &status) != 0) fail(std::string("cannot read the size of the ") + what + " file");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw std::invalid_argument(std::string("the ") + what + " descriptor is not a memory file sealed against shrinking");
  }
  return static_cast<std::uint64_t>(status.st_size);
}

std::uint64_t fork_generation() noexcept { return forks.load(std::memory_order_relaxed); }

Mapping::Mapping(int fd, std::uint64_t bytes, bool writable, bool prefault) : bytes_(bytes) {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, count_fork); });
  born_ = fork_generation();
  void* at = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) fail("cannot map a memory file of " + std::to_string(bytes) + " bytes");
  data_ = static_cast<std::byte*>(at);
  try {
    if (madvise(at, bytes, MADV_DONTFORK) != 0) fail("cannot keep a memory file out of forked children");
    madvise(at, bytes, MADV_HUGEPAGE);  // a wish: kernels that don't offer it for memory files say EINVAL
    if (prefault) populate(data_, bytes, writable);
  } catch (...) {
    munmap(at, bytes);
    throw;
  }
}

Mapping::~Mapping() {
  if (present()) munmap(data_, bytes_);
}

BackgroundPrefault::BackgroundPrefault(const Mapping& mapping, bool writable) : mapping_(mapping), writable_(writable) {
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
      populate(mapping_.data() + at, std::min(kPrefaultStep, mapping_.bytes() - at), writable_);
    } catch (const std::system_error&) {
      break;  // no memory for page tables now: first uses will ask again
    }
  }
  ended_.store(true, std::memory_order_release);
}

}  // namespace stratakv
