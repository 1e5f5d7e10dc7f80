// Puts without a round trip: a client fills slots that it was granted in advance, and posts what it has filled.
//
// Only where nothing that the sidecar alone knows can decide otherwise: the stamp is the present one, the parent is there, and
// nobody has the keys. What happens between the post and its being carried out, an invalidation or an eviction, might have
// happened right after it as well. Everything else goes by reserve and commit, which are answered.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <mutex>

#include "clock.hpp"
#include "fences.hpp"
#include "pauses.hpp"
#include "posts.hpp"
#include "reader.hpp"
#include "size_classes.hpp"

namespace stratakv {
namespace {

constexpr std::uint64_t kPostedWaitNs = 20'000'000;  // a look-up waits no longer for what others have posted
constexpr std::uint64_t kUsedJustNowNs = 1'000'000'000;
constexpr long kPostedPauseNs = 20'000;

}  // namespace

PostResult Reader::post(const PostRequest& request) {
  PostResult result;
  const Chain& chain = request.chain;
  if (!writable_ || doorbell_.get() < 0 || closed()) return result;
  const std::uint64_t freshness = freshness_ns();
  const std::optional<StampedView> stamp = read_stamp(view_);
  const bool is_present = stamp && stamp->revision == request.revision && stamp->incarnation[0] == request.incarnation[0] &&
                          stamp->incarnation[1] == request.incarnation[1];
  const std::uint64_t now_ns = boottime_ns();
  if (!is_present || now_ns >= freshness) return result;

  const std::size_t pages = chain.wanted();
  if (pages == 0 || pages > kGrantsPerRow || !may_be_posted(chain, request.resident)) return result;
  if (chain.start != 0) keep_parent(chain, now_ns);
  Taken taken[kGrantsPerRow];
  if (!take_grants(request.page_bytes, pages, taken)) return result;
  for (std::size_t i = 0; i < pages; ++i) {
    gather(view_.data + taken[i].offset, request.sources[i], 0, request.page_bytes, request.copier);
  }
  pause_here();  // filled, not posted
  const bool is_late = boottime_ns() > request.deadline_ns;
  // A sidecar that ends carries out what was posted before it closed its header, and nothing that comes later.
  if (is_late || closed() || !write_post(request, taken)) {
    give_back(taken, pages);
    result.kind = is_late ? PostKind::kLate : PostKind::kAsk;
    return result;
  }
  result.kind = PostKind::kPosted;
  for (std::size_t i = 0; i < pages; ++i) result.ids.push_back(taken[i].id);
  CountsDelta delta;
  delta.bytes_written = pages * request.page_bytes;
  account(request.counter, delta);
  return result;
}

// Whether the pages are nobody's, and stand on a page that is there, or that this client has posted before.
bool Reader::may_be_posted(const Chain& chain, std::size_t resident) const {
  const Posts& posts = row().posts;
  if (chain.start > resident && !has_posted(posts, PageKey::load(chain.keys + (chain.start - 1) * kKeyBytes))) return false;
  const Index index(view_);
  for (std::size_t page = 0; page < chain.wanted(); ++page) {
    const PageKey key = PageKey::load(chain.key(page));
    // A reserved page is in the index, too: whoever fills it comes first.
    if (index.find(key) != kNoEntry || has_posted(posts, key)) return false;
  }
  return true;
}

// What is about to be built on must not be the next to be evicted. Its request has looked it up; that isn't a second use.
void Reader::keep_parent(const Chain& chain, std::uint64_t now_ns) noexcept {
  FoundPage parent{};
  parent.entry = Index(view_).find(PageKey::load(chain.keys + (chain.start - 1) * kKeyBytes));
  if (parent.entry == kNoEntry) return;
  const std::uint64_t last_ns = view_.access[parent.entry].last.load(std::memory_order_relaxed);
  if (last_ns > now_ns || now_ns - last_ns > kUsedJustNowNs) touch(&parent, 1, now_ns);
}

// Takes so many slots of the size that a page needs, or none.
bool Reader::take_grants(std::size_t page_bytes, std::size_t pages, Taken* out) {
  const std::uint64_t units = slot_bytes_of(page_bytes) / kSlotAlign;
  Grant* grants = row().posts.grants;
  const std::lock_guard<SpinLock> guard(post_lock_);
  std::size_t taken = 0;
  for (std::uint32_t at = 0; at < kGrantsPerRow && taken < pages; ++at) {
    std::uint64_t id = grants[at].offer.load(std::memory_order_acquire);
    if (id == 0) continue;
    const std::uint64_t place = grants[at].place.load(std::memory_order_relaxed);
    const std::uint64_t offset = (place >> 32) * kSlotAlign;
    if ((place & 0xFFFFFFFFu) != units || offset + units * kSlotAlign > view_.geometry.data_bytes) continue;
    // Fails where the sidecar has taken it back.
    if (!grants[at].offer.compare_exchange_strong(id, 0, std::memory_order_acq_rel)) continue;
    out[taken++] = {id, offset, at};
  }
  if (taken == pages) return true;
  give_back(out, taken);
  return false;
}

// Release: what was written into the slot is written before anybody else has it.
void Reader::give_back(const Taken* taken, std::size_t pages) noexcept {
  for (std::size_t i = 0; i < pages; ++i) {
    row().posts.grants[taken[i].at].offer.store(taken[i].id, std::memory_order_release);
  }
}

// False when the ring has no room: the sidecar is behind.
bool Reader::write_post(const PostRequest& request, const Taken* taken) {
  const Chain& chain = request.chain;
  PostHead head{};
  head.namespace_slot = chain.namespace_slot;
  head.payload_bytes = static_cast<std::uint32_t>(request.page_bytes);
  head.pages = static_cast<std::uint32_t>(chain.wanted());
  head.terms_bytes = static_cast<std::uint32_t>(request.terms_bytes);
  head.ttl_s = request.ttl_s;
  head.has_parent = chain.start != 0;
  if (chain.start != 0) std::memcpy(head.parent, chain.keys + (chain.start - 1) * kKeyBytes, kKeyBytes);
  std::uint64_t ids[kGrantsPerRow];
  for (std::uint32_t i = 0; i < head.pages; ++i) ids[i] = taken[i].id;

  Posts& posts = row().posts;
  {
    const std::lock_guard<SpinLock> guard(post_lock_);
    const std::uint64_t begin = posts.posted_bytes.load(std::memory_order_relaxed);
    const std::uint64_t page = posts.posted_pages.load(std::memory_order_relaxed);
    // Acquire: the sidecar has read what stood there before.
    const std::uint64_t settled = posts.settled_bytes.load(std::memory_order_acquire);
    const std::uint64_t unsettled = page - posts.settled_pages.load(std::memory_order_relaxed);
    if (begin - settled + head.bytes() > kPostRingBytes || unsettled + head.pages > kGrantsPerRow) return false;
    std::uint64_t at = begin;
    ring_write(posts, at, &head, sizeof(head));
    ring_write(posts, at += sizeof(head), chain.key(0), head.pages * kKeyBytes);
    ring_write(posts, at += head.pages * kKeyBytes, ids, head.pages * sizeof(std::uint64_t));
    ring_write(posts, at += head.pages * sizeof(std::uint64_t), request.terms, request.terms_bytes);
    for (std::uint32_t i = 0; i < head.pages; ++i) {
      const PageKey key = PageKey::load(chain.key(i));
      posts.key[(page + i) % kGrantsPerRow].store(key.word[0], std::memory_order_relaxed);
    }
    posts.posted_pages.store(page + head.pages, std::memory_order_release);
    posts.posted_bytes.store(begin + head.bytes(), std::memory_order_release);
  }
  pause_here();  // posted, not said
  // Whoever is told of this put from here on sees the bit, and so what was posted.
  say_posted(view_, row_);
  ring_doorbell();
  return true;
}

// A doorbell that is full has been rung.
void Reader::ring_doorbell() const noexcept {
  const std::uint64_t one = 1;
  while (::write(doorbell_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

// Waits until a page that somebody has posted is settled, for a bounded time; false when nobody has, or it took longer.
bool Reader::await_posted(const std::uint8_t* key_bytes, std::uint64_t& until_ns) const {
  const PageKey key = PageKey::load(key_bytes);
  const Posts* poster = nullptr;
  each_posting_row(view_, [&](std::uint32_t number) {
    const Posts& posts = view_.row(number).posts;
    if (has_posted(posts, key)) poster = &posts;
    return poster == nullptr;
  });
  if (poster == nullptr) return false;
  if (until_ns == 0) until_ns = boottime_ns() + kPostedWaitNs;
  // Not until a number is settled: the row may be another client's by then, which counts from 0 on.
  while (has_posted(*poster, key)) {
    if (boottime_ns() >= until_ns || closed()) return false;
    const timespec pause{0, kPostedPauseNs};
    nanosleep(&pause, nullptr);
  }
  return true;
}

}  // namespace stratakv
