// Posters of the stress test: writers that fill slots which they were granted in advance, and die with some in their hands.
#pragma once

#include <sys/eventfd.h>

#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "clock.hpp"
#include "pauses.hpp"
#include "reader.hpp"
#include "stress_shared.hpp"

namespace stratakv::stress {

// What a post tells of its pages, for the writer to judge them by.
struct PostTerms {
  std::uint64_t prompt = 0;
  std::uint64_t depth = 0;
  std::uint64_t origin = 0;
};

class PosterThread {
 public:
  PosterThread(Shared& shared, const std::vector<Prompt>& prompts, int number, std::uint64_t seed)
      : shared_(shared), prompts_(prompts), number_(number), random_(seed) {}

  void run() {
    while (!shared_.stop.load()) {
      shared_.wanted_row[number_].store(-1);
      int row = -1;
      while ((row = shared_.wanted_row[number_].load()) == -1) {
        if (shared_.stop.load()) return;
        std::this_thread::yield();
      }
      Reader reader(shared_.view, static_cast<std::uint32_t>(row), true, Descriptor(eventfd(0, EFD_NONBLOCK)));
      const std::size_t puts = 20 + random_() % 200;
      for (std::size_t i = 0; i < puts && !shared_.stop.load(); ++i) put(reader);
      // As killed: with whatever it has taken, filled, or posted.
      shared_.given_up[number_].store(row);
      while (shared_.given_up[number_].load() != -1 && !shared_.stop.load()) std::this_thread::yield();
    }
  }

 private:
  void put(Reader& reader) {
    const std::uint64_t epoch = shared_.epoch.load(std::memory_order_acquire);
    const auto [slot, stamp] = reader.begin_request();
    const Prompt& prompt = prompts_[random_() % prompts_.size()];
    const Origin origin{epoch, random_() % kProvenances, true, 0};
    const std::size_t resident = reader.match(prompt.chain(0, kDepth)).pages;
    const std::size_t start = resident < kDepth && random_() % 8 == 0 ? resident + random_() % (kDepth - resident) : resident;
    const std::size_t pages = std::min<std::size_t>(kDepth - start, 1 + random_() % 6);
    std::vector<std::byte> filled(pages * prompt.page_bytes());
    PageRun runs[kDepth];
    PageRuns sources[kDepth];
    for (std::size_t i = 0; i < pages; ++i) {
      std::byte* at = filled.data() + i * prompt.page_bytes();
      fill_page(at, prompt.page_bytes(), prompt.keys[start + i], random_(), origin);
      runs[i] = {at, prompt.page_bytes()};
      sources[i] = {&runs[i], 1};
    }
    const PostTerms terms{prompt.number, start, origin.packed()};
    PostRequest request{prompt.chain(start, start + pages), resident, sources, prompt.page_bytes(), 2, {}, stamp.revision, -1,
                        random_() % 32 == 0 ? 1 : ~0ULL, reinterpret_cast<const char*>(&terms), sizeof(terms), {}};
    std::memcpy(request.incarnation, stamp.incarnation, sizeof(request.incarnation));
    const PostResult result = reader.post(request);
    if (result.kind == PostKind::kPosted && result.ids.size() != pages) fail("post: a page without a slot");
    shared_.posts.fetch_add(result.kind == PostKind::kPosted, std::memory_order_relaxed);
    if (result.kind == PostKind::kPosted) check_said(shared_.wanted_row[number_].load());
    if (slot >= 0) reader.end_request(static_cast<std::uint32_t>(slot));
  }

  // Whoever looks from here on finds what was posted, or sees that it was: for as long as it takes.
  void check_said(int row) const {
    const Posts& posts = shared_.view.row(static_cast<std::uint32_t>(row)).posts;
    const std::uint64_t posted = posts.posted_pages.load(std::memory_order_relaxed);
    for (int look = 0; look < 100; ++look) {
      pause_here();  // while the sidecar is at it
      const Word& word = posting_word(shared_.view, static_cast<std::uint32_t>(row));
      const bool is_said = (word.load(std::memory_order_acquire) & posting_bit(static_cast<std::uint32_t>(row))) != 0;
      if (!is_said && posts.settled_pages.load(std::memory_order_acquire) < posted) fail("post: nobody sees that it is not settled");
    }
  }

  Shared& shared_;
  const std::vector<Prompt>& prompts_;
  int number_;
  std::mt19937_64 random_;
};

}  // namespace stratakv::stress
