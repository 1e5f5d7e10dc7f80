// Reader for Python: arguments, conversions and the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>

#include "bindings.hpp"
#include "bindings_lease.hpp"
#include "bindings_runs.hpp"
#include "buffers.hpp"
#include "copy_kernels.hpp"
#include "look_up_counts.hpp"
#include "outcomes.hpp"

namespace nb = nanobind;

namespace stratakv {
namespace {

constexpr std::size_t kKeysUnderGil = 1024;      // a longer walk lets other threads run
constexpr std::size_t kBytesUnderGil = 16 << 10;  // so does a larger copy
constexpr std::size_t kFewPages = 16;            // found on the stack
constexpr std::uint64_t kLeaseNsMax = 1ULL << 62;

template <typename Work>
auto unlocked_if(bool unlock, Work work) {
  if (!unlock) return work();
  const nb::gil_scoped_release unlocked;
  return work();
}

std::shared_ptr<Reader> checked(const std::shared_ptr<Reader>& reader) {
  if (reader == nullptr) throw nb::value_error("this reader is closed");
  if (!reader->present()) throw nb::value_error("this reader was attached before a fork; a forked child must attach again");
  return reader;
}

// Room for what one look-up finds: on the stack as long as it is little.
struct Room {
  explicit Room(std::size_t wanted) : many(wanted > kFewPages ? new FoundPage[wanted] : nullptr) {
    pages = many != nullptr ? many.get() : few;
  }
  Room(const Room&) = delete;
  FoundPage few[kFewPages];
  std::unique_ptr<FoundPage[]> many;
  FoundPage* pages;
};

class PyReader {
 public:
  PyReader(int control_fd, int clients_fd, int data_fd, std::uint32_t row, const nb::bytes& life, bool writable, bool prefault,
           int doorbell_fd, bool first_use) {
    Descriptor control(control_fd), clients(clients_fd), data(data_fd), doorbell(doorbell_fd);
    take_bytes(life, life_, sizeof(life_), "life");
    const nb::gil_scoped_release unlocked;
    reader_ = Reader::attach(std::move(control), std::move(clients), std::move(data), std::move(doorbell), row, life_,
                             writable, prefault, first_use);
    set_default_copy_choice(choice_of(reader_->arena().geometry));
  }

  std::shared_ptr<Reader> core() const { return checked(reader_); }

  // Asked after a look-up was counted, so that a close in between must be no error.
  bool recording() const {
    const std::shared_ptr<Reader> reader = reader_;
    return reader != nullptr && reader->recording();
  }
  nb::bytes life() const { return give_bytes(life_, sizeof(life_)); }
  // Every call takes its reference and lets go of it under the GIL, as this does: no reference, no call, lease or view.
  bool close() {
    if (reader_ != nullptr) closed_ = reader_;
    reader_.reset();
    return closed_.expired();
  }

  // The maps are not there in a forked child; this descriptor is.
  void abandon_in_child() const {
    if (reader_ != nullptr && !reader_->present()) reader_->forget_doorbell();
  }

  nb::tuple stamp() const {
    const std::optional<StampedView> s = read_stamp(core()->arena());
    if (!s) throw std::runtime_error("events overwrite the ring faster than it can be read; make ring_records larger");
    return nb::make_tuple(s->view, give_bytes(s->incarnation, sizeof(s->incarnation)), s->revision);
  }

  nb::object events_since(std::uint64_t view) const {
    const std::optional<std::vector<Event>> events = read_events_since(core()->arena(), view);
    if (!events) return nb::none();
    nb::list out;
    for (const Event& e : *events) {
      out.append(nb::make_tuple(e.view, give_bytes(e.incarnation, sizeof(e.incarnation)), e.revision, e.kind,
                                give_bytes(e.payload.data(), e.payload.size())));
    }
    return out;
  }

  nb::tuple begin_request(std::optional<std::uint64_t> view) const {
    const auto [slot, s] = core()->begin_request(view);
    return nb::make_tuple(slot, s.view, give_bytes(s.incarnation, sizeof(s.incarnation)), s.revision);
  }

  void advance_request(std::int64_t slot, std::uint64_t view) const {
    const std::shared_ptr<Reader> reader = core();
    if (slot >= 0) reader->advance_request(checked_slot(slot), view);  // −1: begin_request had none to give
  }

  void end_request(std::int64_t slot) const {
    const std::shared_ptr<Reader> reader = core();
    if (slot >= 0) reader->end_request(checked_slot(slot));
  }

  std::pair<std::size_t, std::uint32_t> match(nb::handle keys, std::uint64_t namespace_slot, std::int64_t start,
                                            bool may_await) const {
    const std::shared_ptr<Reader> reader = core();
    const BorrowedKeys packed(keys);
    Chain chain = chain_of(*reader, packed, namespace_slot, start);
    chain.may_await = chain.may_await && may_await;
    const LookUpResult result = unlocked_if(is_long(chain), [&] { return reader->match(chain); });
    return {result.pages, result.reason};
  }

  PyLease lease(std::uint32_t counter, nb::handle keys, std::uint64_t namespace_slot, std::int64_t start,
                bool may_load) const {
    std::shared_ptr<Reader> reader = core();
    check_counter(counter);
    const BorrowedKeys packed(keys);
    Chain chain = chain_of(*reader, packed, namespace_slot, start);
    chain.is_noted = true;  // whether it is counted now or completed later
    const Room room(chain.wanted());
    reader->begin_counting(counter, chain.count);
    const LookUpResult result = pin(*reader, chain, room.pages);
    settle(*reader, counter, counts_of(result, chain, bytes_of(room.pages, result.pages)), may_load);
    return PyLease(HeldPages::create(std::move(reader), room.pages, result.pages, result.lease), result);
  }

  // Of what another process has counted. Apart from `lease`, so that nothing there asks who counts.
  PyLease lease_uncounted(nb::handle keys, std::uint64_t namespace_slot, std::int64_t start) const {
    std::shared_ptr<Reader> reader = core();
    const BorrowedKeys packed(keys);
    const Chain chain = chain_of(*reader, packed, namespace_slot, start);
    const Room room(chain.wanted());
    const LookUpResult result = pin(*reader, chain, room.pages);
    return PyLease(HeldPages::create(std::move(reader), room.pages, result.pages, result.lease), result);
  }

  PyLease complete_lease(std::uint32_t counter, nb::handle keys, std::uint64_t namespace_slot, std::int64_t start,
                         std::optional<std::uint64_t> l3_from, std::uint32_t reason, bool may_await) const {
    std::shared_ptr<Reader> reader = core();
    check_counter(counter);
    check_reason(reason);
    const BorrowedKeys packed(keys);
    Chain chain = chain_of(*reader, packed, namespace_slot, start);
    chain.may_await = chain.may_await && may_await;
    const Room room(chain.wanted());
    LookUpResult result = pin(*reader, chain, room.pages);
    CountsDelta delta = counts_of(result, chain, bytes_of(room.pages, result.pages));
    tell_loaded(result, delta, chain.start, l3_from, reason);
    if (!reader->complete(counter, delta)) {
      if (result.pages != 0) reader->unpin(result.lease);
      throw nb::value_error(kNotBegun);
    }
    return PyLease(HeldPages::create(std::move(reader), room.pages, result.pages, result.lease), result);
  }

  std::optional<PyLease> pin_instance(std::uint64_t instance) const {
    std::shared_ptr<Reader> reader = core();
    FoundPage page{};
    const LookUpResult result = reader->pin_instance(instance, &page);
    if (result.pages == 0) return std::nullopt;
    return PyLease(HeldPages::create(std::move(reader), &page, 1, result.lease), result);
  }

  using Got = std::tuple<std::size_t, std::uint32_t, std::uint64_t>;

  Got get(std::uint32_t counter, nb::handle keys, nb::handle destinations, std::uint64_t namespace_slot,
          std::uint64_t page_bytes, std::int64_t start, std::uint64_t lease_ns, std::int64_t kernel, nb::handle instances,
          bool may_load) const {
    const std::shared_ptr<Reader> reader = core();
    CopyOut copy(*reader, counter, keys, destinations, namespace_slot, page_bytes, start, lease_ns, kernel, instances);
    copy.chain.is_noted = true;
    reader->begin_counting(counter, copy.chain.count);
    const LookUpResult result = copy.run();
    settle(*reader, counter, counts_of(result, copy.chain, result.pages * page_bytes), may_load);
    return {result.pages, result.reason, result.instance};
  }

  Got complete_get(std::uint32_t counter, nb::handle keys, nb::handle destinations, std::uint64_t namespace_slot,
                   std::uint64_t page_bytes, std::int64_t start, std::uint64_t lease_ns, std::int64_t kernel, nb::handle instances,
                   std::optional<std::uint64_t> l1, std::optional<std::uint64_t> l3_from, std::uint32_t reason,
                   bool may_await) const {
    const std::shared_ptr<Reader> reader = core();
    check_reason(reason);
    CopyOut copy(*reader, counter, keys, destinations, namespace_slot, page_bytes, start, lease_ns, kernel, instances);
    copy.chain.may_await = copy.chain.may_await && may_await;
    const std::size_t first = copy.chain.start;
    const std::size_t served = l1.value_or(first);  // before the first call, which copied up to `start`
    if (served > first) throw nb::value_error("l1 can't be above start");
    LookUpResult result = copy.run();
    CountsDelta delta = counts_of(result, copy.chain, (first - served + result.pages) * page_bytes);
    tell_loaded(result, delta, first, l3_from, reason);
    delta.l1 = served;
    delta.l2 += first - served;
    if (!reader->complete(counter, delta)) throw nb::value_error(kNotBegun);
    return {result.pages, result.reason, result.instance};
  }

  void complete(std::uint32_t counter, std::uint64_t requested, std::uint64_t l1, std::uint64_t l2, std::uint64_t l3,
                std::uint32_t reason, std::uint64_t bytes_read) const {
    const std::shared_ptr<Reader> reader = core();
    check_counter(counter);
    check_reason(reason);
    if (l1 > requested || l2 > requested - l1 || l3 > requested - l1 - l2) {
      throw nb::value_error("more pages were served than requested");
    }
    CountsDelta delta;
    delta.requested = requested;
    delta.l1 = l1;
    delta.l2 = l2;
    delta.l3 = l3;
    delta.missed = requested - l1 - l2 - l3;
    delta.reason = reason;
    delta.bytes_read = bytes_read;
    delta.look_ups = 1;
    if (reason == kMissNone && delta.missed != 0) throw nb::value_error("reason must name why pages were missed");
    if (!reader->complete(counter, delta)) throw nb::value_error(kNotBegun);
  }

  nb::dict counts(std::uint32_t counter) const {
    const std::shared_ptr<Reader> reader = core();
    check_counter(counter);
    const std::optional<CountsSnapshot> snapshot = reader->counts(counter);
    if (!snapshot) throw std::runtime_error("the counters were rewritten at each of the bounded attempts to read them");
    return give_counts(*snapshot);
  }

  void count_outcome(std::uint32_t counter, std::uint64_t requested, std::uint64_t l1, std::uint32_t reason) const {
    const std::shared_ptr<Reader> reader = core();
    check_counter(counter);
    if (l1 > requested) throw nb::value_error("l1 can't be above requested");
    check_reason(reason);
    if (reason == kMissNone && l1 != requested) throw nb::value_error("reason must name why pages were missed");
    reader->begin_counting(counter, requested);
    CountsDelta delta;
    delta.requested = requested;
    delta.l1 = l1;
    delta.missed = requested - l1;
    delta.reason = reason;
    delta.look_ups = 1;
    reader->account(counter, delta);
  }

  void fill(const std::vector<std::uint64_t>& offsets, nb::handle sources, std::uint64_t page_bytes, std::uint32_t counter,
            std::int64_t kernel) const {
    const std::shared_ptr<Reader> reader = core();
    check_counter(counter);
    check_page_bytes(page_bytes);
    for (const std::uint64_t offset : offsets) check_place(*reader, offset, page_bytes);
    const BorrowedSources from(sources, offsets.size(), page_bytes);
    const CopyChoice copier = checked_choice(*reader, kernel);
    unlocked_if(offsets.size() * page_bytes > kBytesUnderGil, [&] {
      reader->fill(offsets.data(), from.pages(), offsets.size(), page_bytes, copier, counter);
      return 0;
    });
  }

  nb::tuple post(std::uint32_t counter, nb::handle keys, nb::handle sources, std::uint64_t namespace_slot, std::int64_t start,
                 std::size_t resident, std::uint64_t page_bytes, const nb::bytes& incarnation, std::uint64_t revision,
                 std::int64_t ttl_s, std::uint64_t deadline_ns, const nb::bytes& terms) const {
    const std::shared_ptr<Reader> reader = core();
    check_counter(counter);
    check_page_bytes(page_bytes);
    if (ttl_s < -1) throw nb::value_error("ttl_s must be -1 (the sidecar's default), 0 (never) or more");
    if (terms.size() > kPostTermsMax) throw nb::value_error("terms have at most 1024 bytes");
    const BorrowedKeys packed(keys);
    const Chain chain{namespace_slot, packed.data(), packed.start(start), packed.count()};
    const BorrowedSources from(sources, chain.wanted(), page_bytes);
    PostRequest request{chain, resident, from.pages(), page_bytes, counter, {}, revision, ttl_s, deadline_ns,
                        terms.c_str(), terms.size(), choice_of(reader->arena().geometry)};
    take_bytes(incarnation, request.incarnation, sizeof(request.incarnation), "incarnation");
    const PostResult result =
        unlocked_if(chain.wanted() * page_bytes > kBytesUnderGil, [&] { return reader->post(request); });
    return nb::make_tuple(static_cast<std::uint32_t>(result.kind), result.ids);
  }

  nb::object slot(std::uint64_t offset, std::uint64_t size) const {
    std::shared_ptr<Reader> reader = core();
    check_page_bytes(size);
    check_place(*reader, offset, size);
    std::byte* data = reader->arena().data + offset;
    return view_over(nb::cast(SlotView(std::move(reader), data, size)));
  }

 private:
  static constexpr const char* kNotBegun = "no look-up of so many pages is under way: begin it with may_load=True";

  // A get's arguments, checked and borrowed.
  struct CopyOut {
    CopyOut(Reader& from, std::uint32_t counter, nb::handle keys, nb::handle destinations, std::uint64_t namespace_slot,
            std::uint64_t bytes, std::int64_t start, std::uint64_t ns, std::int64_t kernel, nb::handle instances)
        : reader(from),
          packed((check_counter(counter), check_page_bytes(bytes), keys)),
          chain(chain_of(from, packed, namespace_slot, start)),
          places(destinations, chain.wanted(), bytes, true, "destinations"),
          copier(checked_choice(from, kernel)),
          told(borrowed_words(instances, chain.count, "instances")),
          page_bytes(bytes),
          lease_ns(ns) {
      if (ns == 0 || ns > kLeaseNsMax) throw nb::value_error("lease_ns must be positive");
    }
    LookUpResult run() const {
      auto* words = told ? reinterpret_cast<std::uint64_t*>(told->data()) : nullptr;
      const std::size_t wanted = chain.wanted();
      return unlocked_if(wanted * page_bytes > kBytesUnderGil || is_long(chain), [&] {
        return reader.copy_out(chain, places.places(), page_bytes, lease_ns, copier, words);
      });
    }
    Reader& reader;
    BorrowedKeys packed;
    Chain chain;
    BorrowedPages places;
    CopyChoice copier;
    std::optional<Borrowed> told;
    std::size_t page_bytes;
    std::uint64_t lease_ns;
  };

  static Chain chain_of(const Reader& reader, const BorrowedKeys& packed, std::uint64_t namespace_slot, std::int64_t start) {
    return {namespace_slot, packed.data(), packed.start(start), packed.count(), false, reader.may_await()};
  }

  // Other threads run meanwhile.
  static bool is_long(const Chain& chain) { return chain.may_await || chain.wanted() > kKeysUnderGil; }

  static LookUpResult pin(Reader& reader, const Chain& chain, FoundPage* pages) {
    return unlocked_if(is_long(chain), [&] { return reader.pin(chain, kLeaseView, 0, pages); });
  }

  static std::uint64_t bytes_of(const FoundPage* pages, std::size_t count) {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i) bytes += pages[i].payload_bytes;
    return bytes;
  }

  static void check_reason(std::uint32_t reason) {
    if (reason >= kMissReasons) throw nb::value_error("reason must be a number of MissReason");
  }

  static std::uint32_t checked_slot(std::int64_t slot) {
    return static_cast<std::uint32_t>(std::min<std::int64_t>(slot, kRequestViews));
  }

  // Aligned room for `count` words of 64 bits, or nothing for None.
  static std::optional<Borrowed> borrowed_words(nb::handle object, std::size_t count, const char* what) {
    if (object.is_none()) return std::nullopt;
    std::optional<Borrowed> words(std::in_place, object, true, what);
    if (words->bytes() < count * sizeof(std::uint64_t) || reinterpret_cast<std::uintptr_t>(words->data()) % 8 != 0) {
      throw nb::value_error((std::string(what) + " must have 8 aligned bytes for each key").c_str());
    }
    return words;
  }

  static void check_counter(std::uint32_t counter) {
    if (counter >= kNamespacesPerRow) throw nb::value_error("counter must be 0 to 31");
  }

  static void check_page_bytes(std::uint64_t page_bytes) {
    if (page_bytes == 0 || page_bytes > 0xFFFFFFFFu) throw nb::value_error("page_bytes must be positive and below 4 GiB");
  }

  static void check_place(const Reader& reader, std::uint64_t offset, std::uint64_t bytes) {
    if (!reader.writable()) throw nb::value_error("this reader was attached without writable=True");
    const std::uint64_t data_bytes = reader.arena().geometry.data_bytes;
    if (offset % kSlotAlign != 0 || offset > data_bytes || bytes > data_bytes - offset) {
      throw nb::value_error("no reserved place begins at this offset or has this size");
    }
  }

  static CopyChoice choice_of(const Geometry& geometry) { return {geometry.copy_kernel, geometry.warm_copy_kernel}; }

  static CopyChoice checked_choice(const Reader& reader, std::int64_t kernel) {
    if (kernel < -1 || kernel >= static_cast<std::int64_t>(copy_kernels().size())) {
      throw nb::value_error("kernel must be -1 or the number of one of COPY_KERNELS");
    }
    const auto number = static_cast<std::uint32_t>(kernel);
    return kernel == -1 ? choice_of(reader.arena().geometry) : CopyChoice{number, number};
  }

  std::shared_ptr<Reader> reader_;
  std::weak_ptr<Reader> closed_;  // tells when the last of those that outlive the close is gone
  std::uint8_t life_[16];
};

template <typename Exporter>
void bind_exporter(nb::module_& m, const char* name) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&Exporter::fill)}, {0, nullptr}};
  nb::class_<Exporter>(m, name, nb::is_final(), nb::type_slots(slots));
}

void bind_lease(nb::module_& m) {
  bind_exporter<PageView>(m, "_PageView");
  bind_exporter<SlotView>(m, "_SlotView");
  nb::class_<PyLease>(m, "Lease", nb::is_final(), nb::pooled())
      .def_prop_ro("pages", &PyLease::pages)
      .def_prop_ro("reason", &PyLease::reason)
      .def_prop_ro("view", &PyLease::view)
      .def_prop_ro("instance", &PyLease::instance)
      .def("instances", &PyLease::instances)
      .def_prop_ro("stands_on", &PyLease::stands_on)
      .def("__len__", &PyLease::pages)
      .def("__getitem__", &PyLease::page, nb::arg("index"))
      .def("__iter__", [](nb::handle self) { return nb::steal(PySeqIter_New(self.ptr())); })
      .def("release", &PyLease::release)
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](PyLease& self, nb::handle, nb::handle, nb::handle) { self.release(); },
           nb::arg("kind").none(), nb::arg("error").none(), nb::arg("trace").none());
}

}  // namespace

void bind_reader(nb::module_& m) {
  const auto start = nb::arg("start").noconvert() = 0;  // no bool is a number of pages
  bind_lease(m);
  nb::class_<PyReader>(m, "Reader", nb::is_final())
      .def(nb::init<int, int, int, std::uint32_t, const nb::bytes&, bool, bool, int, bool>(), nb::kw_only(),
           nb::arg("control_fd"), nb::arg("clients_fd"), nb::arg("data_fd"), nb::arg("row"), nb::arg("life"),
           nb::arg("writable"), nb::arg("prefault") = true, nb::arg("doorbell_fd") = -1, nb::arg("first_use") = false)
      .def_prop_ro("life", &PyReader::life)
      .def_prop_ro("prefault_ended", [](const PyReader& self) { return self.core()->prefault_ended(); })
      .def_prop_ro("pages_memory", [](const PyReader& self) {
             const auto reader = self.core();
             const Mapping& memory = reader->pages_memory();
             return nb::make_tuple(reinterpret_cast<std::uintptr_t>(memory.data()), memory.bytes());
           })
      .def_prop_ro("closed", [](const PyReader& self) { return self.core()->closed(); })
      .def_prop_ro("recording", &PyReader::recording)
      .def_prop_ro("keep_granted", [](const PyReader& self) { return self.core()->keep_granted(); })
      .def_prop_ro("view", [](const PyReader& self) { return self.core()->view_number(); })
      .def("stamp", &PyReader::stamp)
      .def("freshness_ns", [](const PyReader& self) { return self.core()->freshness_ns(); })
      .def("set_applied_view", [](const PyReader& self, std::uint64_t view) { self.core()->set_applied_view(view); },
           nb::arg("view"))
      .def("claim_freshness", [](const PyReader& self, std::optional<std::uint64_t> freshness_ns) {
             return self.core()->claim_freshness(freshness_ns);
           }, nb::arg("freshness_ns") = nb::none())
      .def("events_since", &PyReader::events_since, nb::arg("view"))
      .def("begin_request", &PyReader::begin_request, nb::kw_only(), nb::arg("view") = nb::none())
      .def("advance_request", &PyReader::advance_request, nb::arg("slot"), nb::arg("view"))
      .def("end_request", &PyReader::end_request, nb::arg("slot"))
      .def("match", &PyReader::match, nb::arg("keys"), nb::kw_only(), nb::arg("namespace"), start, nb::arg("may_await") = true)
      .def("lease", &PyReader::lease, nb::arg("counter"), nb::arg("keys"), nb::kw_only(), nb::arg("namespace"),
           start, nb::arg("may_load") = false)
      .def("lease_uncounted", &PyReader::lease_uncounted, nb::arg("keys"), nb::kw_only(), nb::arg("namespace"), start)
      .def("complete_lease", &PyReader::complete_lease, nb::arg("counter"), nb::arg("keys"), nb::kw_only(),
           nb::arg("namespace"), start, nb::arg("l3_from") = nb::none(), nb::arg("reason") = 0,
           nb::arg("may_await") = true)
      .def("pin", &PyReader::pin_instance, nb::arg("instance"))
      .def("complete", &PyReader::complete, nb::arg("counter"), nb::kw_only(), nb::arg("requested"), nb::arg("l1"),
           nb::arg("l2") = 0, nb::arg("l3") = 0, nb::arg("reason") = 0, nb::arg("bytes_read") = 0)
      .def("get", &PyReader::get, nb::arg("counter"), nb::arg("keys"), nb::arg("destinations"), nb::kw_only(),
           nb::arg("namespace"), nb::arg("page_bytes"), start, nb::arg("lease_ns") = 5'000'000'000ULL, nb::arg("kernel") = -1,
           nb::arg("instances") = nb::none(), nb::arg("may_load") = false)
      .def("complete_get", &PyReader::complete_get, nb::arg("counter"), nb::arg("keys"), nb::arg("destinations"),
           nb::kw_only(), nb::arg("namespace"), nb::arg("page_bytes"), start,
           nb::arg("lease_ns") = 5'000'000'000ULL, nb::arg("kernel") = -1, nb::arg("instances") = nb::none(),
           nb::arg("l1") = nb::none(), nb::arg("l3_from") = nb::none(), nb::arg("reason") = 0, nb::arg("may_await") = true)
      .def("counts", &PyReader::counts, nb::arg("counter"))
      .def("count_outcome", &PyReader::count_outcome, nb::arg("counter"), nb::kw_only(), nb::arg("requested"), nb::arg("l1"),
           nb::arg("reason"))
      .def("fill", &PyReader::fill, nb::arg("offsets"), nb::arg("sources"), nb::kw_only(), nb::arg("page_bytes"),
           nb::arg("counter") = 0, nb::arg("kernel") = -1)
      .def("post", &PyReader::post, nb::arg("counter"), nb::arg("keys"), nb::arg("sources"), nb::kw_only(),
           nb::arg("namespace"), start, nb::arg("resident"), nb::arg("page_bytes"), nb::arg("incarnation"),
           nb::arg("revision"), nb::arg("ttl_s") = -1, nb::arg("deadline_ns"), nb::arg("terms"))
      .def("slot", &PyReader::slot, nb::arg("offset"), nb::arg("size"))
      .def("held", [](const PyReader& self) { return self.core()->held(); })
      .def("posted", [](const PyReader& self) { return self.core()->posted(); })
      .def("abandon_in_child", &PyReader::abandon_in_child)
      .def("close", &PyReader::close);
}

}  // namespace stratakv
