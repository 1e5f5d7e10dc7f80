// Pages that lie in several runs of memory, as an engine keeps them: gathered into one place, and scattered from one.
#pragma once

#include <algorithm>
#include <cstddef>

#include "copy_kernels.hpp"

namespace stratakv {

struct PageRun {
  std::byte* data;  // null: nothing is to be written there
  std::size_t bytes;
};

struct PageRuns {
  const PageRun* runs;
  std::size_t count;
};

// Calls copy(run's place, offset in the page, bytes) for all of a page's runs that [begin, end) of it touches.
template <typename Copy>
void each_run(const PageRuns& page, std::size_t begin, std::size_t end, Copy copy) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < page.count && at < end; at += page.runs[i++].bytes) {
    const std::size_t from = std::max(begin, at), until = std::min(end, at + page.runs[i].bytes);
    if (from < until && page.runs[i].data != nullptr) copy(page.runs[i].data + (from - at), from, until - from);
  }
}

inline void gather(std::byte* destination, const PageRuns& page, std::size_t begin, std::size_t end, CopyChoice copier) {
  copier = copier.decided(destination + begin, end - begin);
  each_run(page, begin, end,
           [&](const std::byte* run, std::size_t at, std::size_t bytes) { copier.copy(destination + at, run, bytes); });
}

// What a few of a page's runs are to the caches is taken for all of them: an engine's blocks are used as wholes, however short
// the runs are that they consist of.
inline void scatter(const PageRuns& page, const std::byte* source, std::size_t begin, std::size_t end, CopyChoice copier) {
  ProbedPlaces places{};
  std::size_t found = 0;
  for (std::size_t i = 0; i < page.count && found < kProbes; ++i) {
    const PageRun& run = page.runs[(i * (page.count / kProbes + 1)) % page.count];
    if (run.data != nullptr) places[found++] = run.data + run.bytes / 2;
  }
  if (found > 0) {  // else each run is probed by itself
    while (found < kProbes) places[found++] = places[0];
    copier = copier.decided(places, end - begin);
  }
  each_run(page, begin, end, [&](std::byte* run, std::size_t at, std::size_t bytes) { copier.copy(run, source + at, bytes); });
}

}  // namespace stratakv
