// ScatteredPage for Python, and copies of many pages in one call.
#include "bindings_runs.hpp"

#include <nanobind/stl/vector.h>

#include <string>

#include "bindings.hpp"
#include "copy_kernels.hpp"

namespace nb = nanobind;

namespace stratakv {
namespace {

constexpr const char* kGaps = "a page with runs that have no address can only be scattered to";
constexpr std::size_t kBytesUnderGil = 16 << 10;  // other threads run during a larger copy

[[noreturn]] void reject(const std::string& text) { throw nb::value_error(text.c_str()); }

void require_bytes(std::size_t got, std::size_t wanted) {
  if (got < wanted) reject("sources: " + std::to_string(wanted) + " bytes are needed, the buffer has " + std::to_string(got));
}

// Words of a contiguous buffer.
struct Words {
  Words(nb::handle object, const char* what) : memory(object, false, what) {
    if (memory.bytes() % 8 != 0 || reinterpret_cast<std::uintptr_t>(memory.data()) % 8 != 0) {
      reject(std::string(what) + " are aligned words of 64 bits");
    }
    data = reinterpret_cast<const std::uint64_t*>(memory.data());
    count = memory.bytes() / 8;
  }
  Borrowed memory;
  const std::uint64_t* data;
  std::size_t count;
};

nb::list scattered_pages(nb::handle addresses, nb::handle run_bytes, const nb::object& owner) {
  const Words places(addresses, "addresses"), sizes(run_bytes, "run_bytes");
  if (sizes.count == 0 || places.count % sizes.count != 0) reject("addresses has one word a page and run");
  nb::list pages;
  for (std::size_t at = 0; at < places.count; at += sizes.count) {
    pages.append(nb::cast(ScatteredPage(owner, places.data + at, sizes.data, sizes.count)));
  }
  return pages;
}

struct PageAndPlace {
  PageRuns page;
  std::byte* place;
};

// Both lists, checked; `others` lend their memory for as long as `lent` lives.
std::vector<PageAndPlace> paired(const nb::list& pages, const nb::list& others, bool writable, const char* what,
                                 std::size_t begin, std::size_t end, std::vector<Borrowed>& lent, Reading& reading) {
  if (pages.size() != others.size()) reject(std::string(what) + ": one buffer a page is needed");
  std::vector<PageAndPlace> pairs;
  lent.reserve(pages.size());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (!nb::isinstance<ScatteredPage>(pages[i])) reject("pages are ScatteredPage");
    ScatteredPage& page = *nb::inst_ptr<ScatteredPage>(pages[i]);
    const Borrowed& other = lent.emplace_back(others[i], writable, what);
    if (other.bytes() != page.bytes()) {
      reject(std::string(what) + ": a page has " + std::to_string(page.bytes()) + " bytes, the buffer " + std::to_string(other.bytes()));
    }
    if (begin > end || end > page.bytes()) reject("begin and end lie within the page, in this order");
    if (page.has_gaps() && writable) reject(kGaps);
    if (writable) reading.add(pages[i], page);
    pairs.push_back({page.runs(), other.data()});
  }
  return pairs;
}

template <typename Copy>
void copy_all(const std::vector<PageAndPlace>& pairs, std::size_t bytes, Copy copy) {
  if (pairs.size() * bytes <= kBytesUnderGil) {
    for (const PageAndPlace& one : pairs) copy(one);
    return;
  }
  const nb::gil_scoped_release unlocked;
  for (const PageAndPlace& one : pairs) copy(one);
}

void scatter_pages(const nb::list& pages, const nb::list& sources, std::size_t begin, std::size_t end) {
  std::vector<Borrowed> lent;
  Reading reading;
  const auto pairs = paired(pages, sources, false, "sources", begin, end, lent, reading);
  const CopyChoice copier = default_copy_choice();
  copy_all(pairs, end - begin, [&](const PageAndPlace& one) { scatter(one.page, one.place, begin, end, copier); });
}

void gather_pages(const nb::list& pages, const nb::list& destinations, std::size_t begin, std::size_t end) {
  std::vector<Borrowed> lent;
  Reading reading;
  const auto pairs = paired(pages, destinations, true, "destinations", begin, end, lent, reading);
  const CopyChoice copier = default_copy_choice();
  copy_all(pairs, end - begin, [&](const PageAndPlace& one) { gather(one.place, one.page, begin, end, copier); });
}

}  // namespace

ScatteredPage::ScatteredPage(nb::object owner, const std::uint64_t* addresses, const std::uint64_t* run_bytes, std::size_t runs)
    : owner_(std::move(owner)) {
  for (std::size_t i = 0; i < runs; ++i) {
    auto* data = reinterpret_cast<std::byte*>(addresses[i]);
    const std::size_t bytes = run_bytes[i];
    if (bytes == 0) reject("a run has at least one byte");
    bytes_ += bytes;
    has_gaps_ = has_gaps_ || data == nullptr;
    if (!runs_.empty() && data != nullptr && runs_.back().data != nullptr && runs_.back().data + runs_.back().bytes == data) {
      runs_.back().bytes += bytes;
    } else {
      runs_.push_back({data, bytes});
    }
  }
}

void ScatteredPage::begin_reading() {
  if (is_revoked_) reject("this page was revoked: its memory is another's by now");
  ++readers_;
}

BorrowedSources::BorrowedSources(nb::handle object, std::size_t pages, std::size_t page_bytes) {
  pages_.reserve(pages);
  whole_.reserve(pages);  // pages_ points into it
  const bool is_sequence = PyList_Check(object.ptr()) != 0 || PyTuple_Check(object.ptr()) != 0;
  if (!is_sequence) {
    const Borrowed& all = buffers_.emplace_back(object, false, "sources");
    require_bytes(all.bytes(), pages * page_bytes);
    for (std::size_t i = 0; i < pages; ++i) {
      whole_.push_back({all.data() + i * page_bytes, page_bytes});
      pages_.push_back({&whole_.back(), 1});
    }
    return;
  }
  const nb::object items = nb::steal(PySequence_Fast(object.ptr(), "cannot be read as a sequence"));
  if (!items.is_valid()) throw nb::python_error();
  const auto given = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  if (given != pages) {
    reject("sources: one buffer a page is needed; got " + std::to_string(given) + " for " + std::to_string(pages) + " pages");
  }
  buffers_.reserve(pages);
  for (std::size_t i = 0; i < pages; ++i) take(PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i)), page_bytes);
}

void BorrowedSources::take(nb::handle item, std::size_t page_bytes) {
  std::size_t bytes = 0;
  if (nb::isinstance<ScatteredPage>(item)) {
    ScatteredPage& page = *nb::inst_ptr<ScatteredPage>(item);
    if (page.has_gaps()) reject(kGaps);
    scattered_.add(item, page);
    pages_.push_back(page.runs());
    bytes = page.bytes();
  } else {
    const Borrowed& one = buffers_.emplace_back(item, false, "sources");
    whole_.push_back({one.data(), page_bytes});
    pages_.push_back({&whole_.back(), 1});
    bytes = one.bytes();
  }
  require_bytes(bytes, page_bytes);
}

void bind_runs(nb::module_& m) {
  nb::class_<ScatteredPage>(m, "ScatteredPage", nb::is_final())
      .def_prop_ro("nbytes", &ScatteredPage::bytes)
      .def("revoke", &ScatteredPage::revoke)
      .def_prop_ro("is_read", &ScatteredPage::is_read)
      .def_prop_ro("runs", [](const ScatteredPage& self) { return self.runs().count; });
  m.def("scattered_pages", scattered_pages, nb::arg("addresses"), nb::arg("run_bytes"), nb::kw_only(), nb::arg("owner"));
  m.def("scatter_pages", scatter_pages, nb::arg("pages"), nb::arg("sources"), nb::kw_only(), nb::arg("begin"), nb::arg("end"));
  m.def("gather_pages", gather_pages, nb::arg("pages"), nb::arg("destinations"), nb::kw_only(), nb::arg("begin"), nb::arg("end"));
}

}  // namespace stratakv
