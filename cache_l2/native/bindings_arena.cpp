// Arena for Python: argument checks and conversions around the writer's half.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "arena.hpp"
#include "arena_used.hpp"
#include "bindings_arena.hpp"
#include "buffers.hpp"
#include "copy_kernels.hpp"
#include "limits.hpp"

namespace nb = nanobind;

namespace stratakv {
namespace {

void construct(PyArena* at, std::uint64_t arena_bytes, std::uint64_t segment_bytes, std::uint64_t entries, std::uint64_t rows,
               std::uint64_t leases_per_row, std::uint64_t ring_records, const nb::bytes& life, std::uint32_t index_hash_bits,
               std::uint32_t copy_kernel_number, std::uint32_t warm_copy_kernel_number, bool prefault,
               std::uint32_t huge_pages, bool commit_through_mapping, bool learns) {
  ArenaSettings settings;
  settings.arena_bytes = arena_bytes;
  settings.segment_bytes = segment_bytes;
  settings.entries = entries;
  settings.rows = rows;
  settings.leases_per_row = leases_per_row;
  settings.ring_records = ring_records;
  take_bytes(life, settings.life, sizeof(settings.life), "life");
  settings.index_hash_bits = index_hash_bits;
  if (std::max(copy_kernel_number, warm_copy_kernel_number) >= copy_kernels().size()) {
    throw nb::value_error("copy_kernel or warm_copy_kernel is not the number of one of COPY_KERNELS");
  }
  settings.copy_kernel = copy_kernel_number;
  settings.warm_copy_kernel = warm_copy_kernel_number;
  settings.prefault = prefault;
  if (huge_pages > static_cast<std::uint32_t>(HugePages::kExplicit)) throw nb::value_error("huge_pages must be 0, 1 or 2");
  settings.huge_pages = static_cast<HugePages>(huge_pages);
  settings.commit_through_mapping = commit_through_mapping;
  settings.learns = learns;
  new (at) PyArena(settings);
}

nb::dict geometry(const PyArena& self) {
  const Geometry& g = self.core().view().geometry;
  nb::dict out;
  out["control_bytes"] = g.control_bytes;
  out["clients_bytes"] = g.clients_bytes;
  out["data_bytes"] = g.data_bytes;
  out["segment_bytes"] = g.segment_bytes;
  out["segments"] = g.segments();
  out["entries"] = g.entries;
  out["buckets"] = g.buckets;
  out["rows"] = g.rows;
  out["row_offset"] = g.row_offset;
  out["row_bytes"] = g.row_bytes;
  out["notes_offset"] = offsetof(Row, notes);
  out["leases_per_row"] = g.leases_per_row;
  out["ring_records"] = g.ring_records;
  out["copy_kernel"] = g.copy_kernel;
  out["warm_copy_kernel"] = g.warm_copy_kernel;
  out["layout_version"] = kLayoutVersion;
  return out;
}

nb::tuple duplicate_descriptors(const PyArena& self, bool writable) {
  std::vector<Descriptor> files = self.core().duplicate_descriptors(writable);
  return nb::make_tuple(files[0].release(), files[1].release(), files[2].release());
}

std::uint64_t publish_event(const PyArena& self, const nb::bytes& incarnation, std::uint64_t revision, std::uint32_t kind,
                            const nb::bytes& payload) {
  Event event;
  take_bytes(incarnation, event.incarnation, sizeof(event.incarnation), "incarnation");
  if (payload.size() > kRingPayloadBytes) throw nb::value_error("an event's payload has at most 432 bytes");
  event.revision = revision;
  event.kind = kind;
  event.payload.assign(payload.c_str(), payload.size());
  return self.core().publish_event(std::move(event));
}

std::uint32_t open_row(const PyArena& self, std::uint64_t pid, std::uint32_t engine) {
  if (engine > kEngineDrop) throw nb::value_error("engine must be 0 (none), 1 (keep) or 2 (drop)");
  const std::optional<std::uint32_t> row = self.core().open_row(pid, static_cast<EngineMode>(engine));
  if (!row) throw std::runtime_error("all client rows are taken; raise the number of client rows or detach a client");
  return *row;
}

nb::dict row_statistics(const PyArena& self, std::uint32_t row) {
  const RowStatistics s = self.core().row_statistics(row);
  nb::dict out;
  out["state"] = s.state;
  out["pid"] = s.pid;
  out["engine"] = s.engine;
  out["leases"] = s.leases;
  out["leased_bytes"] = s.leased_bytes;
  out["reservations"] = s.reservations;
  out["grants"] = s.grants;
  out["applied_view"] = s.applied_view;
  out["own_freshness_ns"] = s.own_freshness_ns;
  out["oldest_view"] = s.oldest_view;
  out["oldest_hidden_view"] = s.oldest_hidden_view;
  return out;
}

nb::dict row_counts(const PyArena& self, std::uint32_t row, std::uint32_t counter) {
  const std::optional<CountsSnapshot> c = read_counts(self.core().counts(row, counter));
  if (!c) throw std::runtime_error("row " + std::to_string(row) + " kept rewriting its counters while they were read");
  return give_counts(*c);
}

nb::list reserve(const PyArena& self, std::uint32_t row, std::uint64_t namespace_slot, const std::optional<nb::bytes>& parent,
                 nb::handle keys, std::uint64_t payload_bytes, std::uint32_t expiry_s, std::uint64_t deadline_ns,
                 std::uint64_t now_ns, bool gives_way, const std::vector<std::uint64_t>& granted) {
  const BorrowedKeys chain(keys);
  PageKey parent_key{};
  if (parent) take_bytes(*parent, &parent_key, sizeof(parent_key), "parent");
  ReserveRequest request;
  request.row = row;
  request.namespace_slot = namespace_slot;
  request.parent = parent ? reinterpret_cast<const std::uint8_t*>(&parent_key) : nullptr;
  request.keys = chain.data();
  request.pages = chain.count();
  request.payload_bytes = payload_bytes;
  request.expiry_s = expiry_s;
  request.deadline_ns = deadline_ns;
  request.now_ns = now_ns;
  request.gives_way = gives_way;
  if (!granted.empty()) {
    if (granted.size() != request.pages || gives_way) throw nb::value_error("granted names one slot a page of a put");
    request.granted = granted.data();
  }
  nb::list out;
  for (const Reserved& r : self.core().reserve(request)) {
    out.append(nb::make_tuple(r.status, r.reason, r.reservation, r.offset));
  }
  return out;
}

// (namespace_slot, payload_bytes, parent, keys, ids, ttl_s, terms), or None.
nb::object next_post(const PyArena& self, std::uint32_t row) {
  const std::optional<Post> post = self.core().next_post(row);
  if (!post) return nb::none();
  const PostHead& head = post->head;
  const nb::object parent = head.has_parent != 0 ? nb::object(give_bytes(head.parent, sizeof(head.parent))) : nb::none();
  return nb::make_tuple(head.namespace_slot, head.payload_bytes, parent, give_bytes(post->keys.data(), post->keys.size()),
                        post->ids, head.ttl_s, give_bytes(post->terms.data(), post->terms.size()));
}

CommitStamp commit_stamp(const nb::bytes& incarnation, std::uint64_t revision, std::uint64_t producer,
                         std::uint64_t computed_from_ms, std::uint64_t computed_until_ms, std::uint64_t rests_on) {
  CommitStamp stamp;
  if (producer > kProvenanceOverflow) throw nb::value_error("producer must be below 2**32");
  take_bytes(incarnation, stamp.incarnation, sizeof(stamp.incarnation), "incarnation");
  stamp.revision = revision;
  stamp.producer = producer;
  stamp.computed_from_ms = computed_from_ms;
  stamp.computed_until_ms = computed_until_ms;
  stamp.rests_on = rests_on;
  return stamp;
}

nb::list commit(const PyArena& self, std::uint32_t row, const std::vector<std::uint64_t>& reservations,
                const nb::bytes& incarnation, std::uint64_t revision, std::uint64_t producer, std::uint64_t computed_from_ms,
                std::uint64_t computed_until_ms, std::uint64_t rests_on, std::uint64_t now_ns) {
  const CommitStamp stamp = commit_stamp(incarnation, revision, producer, computed_from_ms, computed_until_ms, rests_on);
  nb::list out;
  for (const Committed& c : self.core().commit(row, reservations, stamp, now_ns)) {
    out.append(nb::make_tuple(c.status, c.reason));
  }
  return out;
}

nb::tuple publish_loaded(const PyArena& self, std::uint32_t row, std::uint64_t reservation, const nb::bytes& incarnation,
                         std::uint64_t revision, std::uint64_t producer, std::uint64_t computed_from_ms,
                         std::uint64_t computed_until_ms, std::uint64_t birth, std::uint64_t rests_on, std::uint32_t expiry_s,
                         std::uint64_t now_ns) {
  CommitStamp stamp = commit_stamp(incarnation, revision, producer, computed_from_ms, computed_until_ms, rests_on);
  stamp.expiry_s = expiry_s;
  const Committed c = self.core().publish_loaded(row, reservation, stamp, birth, now_ns);
  return nb::make_tuple(c.status, c.reason);
}

// What is known of a visible page without looking at anybody's leases.
nb::dict fields_of(const Arena& arena, std::uint32_t at) {
  const Entry& e = arena.view().entries[at];
  const auto get = [](const Word& word) { return word.load(std::memory_order_relaxed); };
  const std::uint64_t parent_and_expiry = get(e.parent_and_expiry);
  const PageKey own = key_of(e);
  const std::uint64_t incarnation[2] = {get(e.incarnation[0]), get(e.incarnation[1])};
  const auto [birth, line, rests_on] = arena.births_of(at);
  nb::dict out;
  out["entry"] = at;
  out["generation"] = get(e.generation);
  out["key"] = give_bytes(&own, sizeof(own));
  if (parent_and_expiry >> 32 != 0) {
    const PageKey parent = key_of(arena.view().entries[(parent_and_expiry >> 32) - 1]);
    out["parent"] = give_bytes(&parent, sizeof(parent));
  }
  out["data_offset"] = (get(e.place) >> 32) * kSlotAlign;
  out["payload_bytes"] = get(e.place) & 0xFFFFFFFFu;
  out["parent_generation"] = get(e.parent_generation);
  out["expiry_s"] = parent_and_expiry & 0xFFFFFFFFu;
  out["namespace_slot"] = get(e.namespace_slot);
  out["incarnation"] = give_bytes(incarnation, sizeof(incarnation));
  out["revision"] = get(e.revision);
  out["producer"] = get(e.producer) & ~kLineageUnknown;
  out["lineage_unknown"] = static_cast<std::uint32_t>((get(e.producer) & kLineageUnknown) != 0);
  out["computed_from_ms"] = get(e.computed_from_ms);
  out["computed_until_ms"] = get(e.computed_until_ms);
  out["committed_ns"] = get(e.committed_ns);
  out["birth"] = birth;
  out["line"] = line;
  out["rests_on"] = rests_on;
  return out;
}

std::pair<std::uint32_t, std::vector<std::uint64_t>> used_pages(const PyArena& self, std::uint32_t begin,
                                                                 std::uint32_t count) {
  if (count == 0 || count > kUsedEntriesAtOnce) throw nb::value_error("count must be 1 to 65536");
  std::vector<std::uint64_t> found;
  const std::uint32_t next = find_used(self.core().view(), begin, count, found);
  return {next, std::move(found)};
}

std::vector<std::uint64_t> cold_used_pages(const PyArena& self, std::uint32_t turn, std::uint32_t count) {
  if (count == 0 || count > kUsedEntriesAtOnce) throw nb::value_error("count must be 1 to 65536");
  return self.core().cold_used(turn, count);
}

nb::object find(const PyArena& self, nb::handle key_bytes) {
  const BorrowedKeys key(key_bytes);
  if (key.count() != 1) throw nb::value_error("key is exactly 32 bytes");
  const Arena& arena = self.core();
  const std::optional<std::uint32_t> at = arena.find(PageKey::load(key.data()));
  if (!at) return nb::none();
  const AccessTimes& access = arena.view().access[*at];
  nb::dict out = fields_of(arena, *at);
  out["last_access_ns"] = access.last.load(std::memory_order_relaxed);
  out["previous_access_ns"] = access.previous.load(std::memory_order_relaxed);
  out["leases"] = arena.leases_on(*at);
  return out;
}

std::optional<std::uint64_t> instance_under(const PyArena& self, nb::handle key_bytes) {
  const BorrowedKeys key(key_bytes);
  if (key.count() != 1) throw nb::value_error("key is exactly 32 bytes");
  const Arena& arena = self.core();
  const std::optional<std::uint32_t> at = arena.find(PageKey::load(key.data()));
  if (!at) return std::nullopt;
  return instance_of(arena.view().entries[*at].generation.load(std::memory_order_relaxed), *at);
}

nb::object describe(const PyArena& self, std::uint64_t instance) {
  const Arena& arena = self.core();
  const std::optional<std::uint32_t> at = arena.entry_of(instance);
  return at ? nb::object(fields_of(arena, *at)) : nb::none();
}

nb::dict statistics(const PyArena& self) {
  const ArenaStatistics s = self.core().statistics();
  nb::dict out;
  out["entries_total"] = s.entries_total;
  out["entries_visible"] = s.entries_visible;
  out["entries_reserved"] = s.entries_reserved;
  out["entries_hidden_leased"] = s.entries_hidden_leased;
  out["entries_quarantined"] = s.entries_quarantined;
  out["entries_granted"] = s.entries_granted;
  out["resident_bytes"] = s.resident_bytes;
  out["reserved_bytes"] = s.reserved_bytes;
  out["granted_bytes"] = s.granted_bytes;
  out["leased_bytes"] = s.leased_bytes;
  out["segments_total"] = s.segments_total;
  out["segments_free"] = s.segments_free;
  out["segments_moved"] = s.segments_moved;
  out["evictions_capacity"] = s.evictions_capacity;
  out["evictions_ttl"] = s.evictions_ttl;
  out["evictions_invalidated"] = s.evictions_invalidated;
  out["evictions_segment"] = s.evictions_segment;
  out["stored"] = s.stored;
  out["known"] = s.known;
  out["refused"] = s.refused;
  out["index_full"] = s.index_full;
  out["posted"] = s.posted;
  out["loaded"] = s.loaded;
  out["gave_way"] = s.gave_way;
  out["oldest_hidden_view"] = s.oldest_hidden_view;
  out["notes_read"] = s.notes_read;
  out["notes_lost"] = s.notes_lost;
  out["policy_learned"] = s.policy_learned;
  out["policy_requests"] = s.policy.requests;
  out["policy_returns"] = s.policy.returned;
  out["policy_elsewhere"] = s.policy.elsewhere;
  out["policy_made_up"] = s.policy.made_up;
  return out;
}

nb::dict namespace_statistics(const PyArena& self) {
  nb::dict out;
  for (std::uint32_t number = 0; number < kNamespacesMax; ++number) {
    const Tally& resident = self.core().resident(number);
    if (resident.pages != 0) out[nb::int_(number)] = nb::make_tuple(resident.pages, resident.bytes);
  }
  return out;
}

// The arguments of hide_step and count_step; borrows the bitmaps.
struct PySelection {
  PySelection(const std::optional<nb::bytes>& key, const std::optional<nb::bytes>& namespaces,
              const std::optional<nb::bytes>& provenances, std::uint64_t since_ms, std::uint64_t until_ms,
              std::uint64_t since_revision, std::uint64_t until_revision, std::int64_t cursor, std::uint64_t work_max)
      : selection{{}, numbers(namespaces), numbers(provenances), since_ms, until_ms, since_revision, until_revision} {
    if (key) {
      PageKey packed{};
      take_bytes(*key, &packed, sizeof(packed), "key");
      selection.key = packed;
    }
    if (cursor < 0) throw nb::value_error("cursor must be 0 to begin, or what the step before returned; -1 says that it was the last");
    if (work_max == 0) throw nb::value_error("work_max must be positive");
  }

  static NumberSet numbers(const std::optional<nb::bytes>& bitmap) {
    if (!bitmap) return {};
    return {reinterpret_cast<const std::uint8_t*>(bitmap->c_str()), bitmap->size()};
  }

  Selection selection;
};

std::int64_t next_cursor(std::uint64_t cursor) { return cursor == 0 ? -1 : static_cast<std::int64_t>(cursor); }

nb::tuple hide_step(const PyArena& self, const std::optional<nb::bytes>& key, const std::optional<nb::bytes>& namespaces,
                    const std::optional<nb::bytes>& provenances, std::uint64_t since_ms, std::uint64_t until_ms,
                    std::uint64_t since_revision, std::uint64_t until_revision, std::int64_t cursor, std::uint64_t work_max) {
  const PySelection named(key, namespaces, provenances, since_ms, until_ms, since_revision, until_revision, cursor, work_max);
  const HideStep step = self.core().hide_step(named.selection, static_cast<std::uint64_t>(cursor), work_max);
  return nb::make_tuple(next_cursor(step.cursor), step.pages);
}

nb::tuple count_step(const PyArena& self, const std::optional<nb::bytes>& key, const std::optional<nb::bytes>& namespaces,
                     const std::optional<nb::bytes>& provenances, std::uint64_t since_ms, std::uint64_t until_ms,
                     std::uint64_t since_revision, std::uint64_t until_revision, std::int64_t cursor, std::uint64_t work_max,
                     std::uint64_t census) {
  const PySelection named(key, namespaces, provenances, since_ms, until_ms, since_revision, until_revision, cursor, work_max);
  const CountStep step = self.core().count_step(named.selection, static_cast<std::uint64_t>(cursor), work_max, census);
  return nb::make_tuple(next_cursor(step.cursor), step.pages, step.bytes);
}

nb::object chain(const PyArena& self, const nb::bytes& key, std::int64_t pages_max) {
  PageKey packed{};
  take_bytes(key, &packed, sizeof(packed), "key");
  if (pages_max < 1) throw nb::value_error("pages_max must be positive");
  const std::optional<std::vector<PageKey>> keys = self.core().chain(packed, static_cast<std::size_t>(pages_max));
  if (!keys) return nb::none();
  return give_bytes(keys->data(), keys->size() * kKeyBytes);
}

void bind_pages(nb::class_<PyArena>& arena) {
  arena.def("reserve", reserve, nb::kw_only(), nb::arg("row"), nb::arg("namespace_slot"), nb::arg("parent").none(),
            nb::arg("keys"), nb::arg("payload_bytes"), nb::arg("expiry_s"), nb::arg("deadline_ns"), nb::arg("now_ns"),
            nb::arg("gives_way") = false, nb::arg("granted") = std::vector<std::uint64_t>{})
      .def("grant", [](const PyArena& self, std::uint32_t row, std::uint64_t payload_bytes, std::uint32_t wanted,
                       std::uint64_t bytes_max, std::uint64_t now_ns, std::uint64_t spared, std::uint64_t number) {
             return self.core().grant(row, payload_bytes, {wanted, bytes_max, now_ns, spared, checked_slot(number)});
           }, nb::kw_only(), nb::arg("row"), nb::arg("payload_bytes"), nb::arg("wanted"), nb::arg("bytes_max"),
           nb::arg("now_ns"), nb::arg("spared") = 0, nb::arg("namespace_slot") = 0)
      .def("recall_grants", [](const PyArena& self, std::uint32_t row) { self.core().recall_all_grants(row); }, nb::arg("row"))
      .def("posting_rows", [](const PyArena& self) { return self.core().posting_rows(); })
      .def("next_post", next_post, nb::arg("row"))
      .def("drop_grants", [](const PyArena& self, std::uint32_t row, const std::vector<std::uint64_t>& ids) {
             for (const std::uint64_t id : ids) self.core().drop_grant(row, id);
           }, nb::kw_only(), nb::arg("row"), nb::arg("ids"))
      .def("settle_post", [](const PyArena& self, std::uint32_t row) { self.core().settle_post(row); }, nb::arg("row"))
      .def("publish_loaded", publish_loaded, nb::kw_only(), nb::arg("row"), nb::arg("reservation"), nb::arg("incarnation"),
           nb::arg("revision"), nb::arg("producer"), nb::arg("computed_from_ms"), nb::arg("computed_until_ms"),
           nb::arg("birth"), nb::arg("rests_on"), nb::arg("expiry_s"), nb::arg("now_ns"))
      .def("loaded_lineage_known", [](const PyArena& self, std::uint32_t row, std::uint64_t reservation,
                                      std::uint64_t rests_on) { return self.core().loaded_lineage_known(row, reservation, rests_on); },
           nb::kw_only(), nb::arg("row"), nb::arg("reservation"), nb::arg("rests_on"))
      .def("commit", commit, nb::kw_only(), nb::arg("row"), nb::arg("reservations"), nb::arg("incarnation"),
           nb::arg("revision"), nb::arg("producer"), nb::arg("computed_from_ms"), nb::arg("computed_until_ms"),
           nb::arg("rests_on"), nb::arg("now_ns"))
      .def("lineage_known", [](const PyArena& self, std::uint32_t row, const std::vector<std::uint64_t>& reservations,
                               std::uint64_t rests_on) { return self.core().lineage_known(row, reservations, rests_on); },
           nb::kw_only(), nb::arg("row"), nb::arg("reservations"), nb::arg("rests_on"))
      .def("abort", [](const PyArena& self, std::uint32_t row, const std::vector<std::uint64_t>& reservations) {
             self.core().abort(row, reservations);
           }, nb::kw_only(), nb::arg("row"), nb::arg("reservations"))
      .def("read_notes", [](const PyArena& self, std::uint64_t notes_max, std::uint64_t now_ns) {
             return self.core().read_notes(notes_max, now_ns);
           }, nb::kw_only(), nb::arg("notes_max"), nb::arg("now_ns"))
      .def("export_policy", [](const PyArena& self) {
             const std::string state = self.core().export_policy();
             return give_bytes(state.data(), state.size());
           })
      .def("import_policy", [](const PyArena& self, const nb::bytes& state, std::uint64_t now_ns) {
             self.core().import_policy(std::string_view(state.c_str(), state.size()), now_ns);
           }, nb::arg("state"), nb::kw_only(), nb::arg("now_ns"))
      .def("set_elsewhere", [](const PyArena& self, std::uint64_t instance, bool is_elsewhere) {
             return self.core().set_elsewhere(instance, is_elsewhere);
           }, nb::arg("instance"), nb::arg("is_elsewhere"))
      .def("set_losing_costs", [](const PyArena& self, double elsewhere, std::uint32_t attention_pages) {
             self.core().set_losing_costs(elsewhere, attention_pages);
           }, nb::kw_only(), nb::arg("elsewhere"), nb::arg("attention_pages"))
      .def("expire", [](const PyArena& self, std::uint64_t now_ns) { return self.core().expire(now_ns); }, nb::arg("now_ns"))
      .def("hide_step", hide_step, nb::kw_only(), nb::arg("key").none(), nb::arg("namespaces").none(),
           nb::arg("provenances").none(), nb::arg("since_ms"), nb::arg("until_ms"), nb::arg("since_revision"),
           nb::arg("until_revision"), nb::arg("cursor"), nb::arg("work_max"))
      .def("count_step", count_step, nb::kw_only(), nb::arg("key").none(), nb::arg("namespaces").none(),
           nb::arg("provenances").none(), nb::arg("since_ms"), nb::arg("until_ms"), nb::arg("since_revision"),
           nb::arg("until_revision"), nb::arg("cursor"), nb::arg("work_max"), nb::arg("census") = 0)
      .def("chain", chain, nb::arg("key"), nb::kw_only(), nb::arg("pages_max"))
      .def("find", find, nb::arg("key"))
      .def("instance", instance_under, nb::arg("key"))
      .def("describe", describe, nb::arg("instance"))
      .def("cold_used_pages", cold_used_pages, nb::kw_only(), nb::arg("turn"), nb::arg("count"))
      .def("used_pages", used_pages, nb::kw_only(), nb::arg("begin"), nb::arg("count"))
      .def("statistics", statistics)
      .def("namespace_statistics", namespace_statistics)
      .def("namespace_entries", [](const PyArena& self, std::uint64_t number) {
             return self.core().namespace_entries(checked_slot(number));
           }, nb::arg("namespace_slot"))
      .def("evict_namespace", [](const PyArena& self, std::uint64_t number) {
             return self.core().evict_namespace(checked_slot(number));
           }, nb::arg("namespace_slot"))
      .def("check_invariants", [](const PyArena& self) { self.core().check_invariants(); })
      .def("close", &PyArena::close);
}

}  // namespace

void bind_arena(nb::module_& m) {
  nb::class_<PyArena> arena(m, "Arena", nb::is_final());
  arena.def("__init__", construct, nb::kw_only(), nb::arg("arena_bytes"), nb::arg("segment_bytes"), nb::arg("entries"),
            nb::arg("rows"), nb::arg("leases_per_row"), nb::arg("ring_records"), nb::arg("life"),
            nb::arg("index_hash_bits") = 64, nb::arg("copy_kernel") = 0, nb::arg("warm_copy_kernel") = 0,
            nb::arg("prefault") = true, nb::arg("huge_pages") = 1, nb::arg("commit_through_mapping") = false,
            nb::arg("learns") = true)
      .def_prop_ro("geometry", geometry)
      .def("duplicate_descriptors", duplicate_descriptors, nb::kw_only(), nb::arg("writable"))
      .def("publish_event", publish_event, nb::kw_only(), nb::arg("incarnation"), nb::arg("revision"), nb::arg("kind"),
           nb::arg("payload"))
      .def("publish_freshness", [](const PyArena& self, std::uint64_t ns) { self.core().publish_freshness(ns); },
           nb::arg("freshness_ns"))
      .def("record", [](const PyArena& self, bool on) { self.core().record(on); }, nb::arg("on"))
      .def("grant_keep", [](const PyArena& self, bool granted) { self.core().grant_keep(granted); }, nb::arg("granted"))
      .def("close_header", [](const PyArena& self) { self.core().close_header(); })
      .def_prop_ro("view", [](const PyArena& self) { return self.core().view_number(); })
      .def("open_row", open_row, nb::arg("pid"), nb::kw_only(), nb::arg("engine") = 0)
      .def("orphan_row", [](const PyArena& self, std::uint32_t row) { self.core().orphan_row(row); }, nb::arg("row"))
      .def("end_row", [](const PyArena& self, std::uint32_t row) { self.core().end_row(row); }, nb::arg("row"))
      .def("row_statistics", row_statistics, nb::arg("row"))
      .def("row_counts", row_counts, nb::arg("row"), nb::arg("counter"))
      .def("reset_counts", [](const PyArena& self, std::uint32_t row, std::uint32_t counter) {
             clear_counts(self.core().counts(row, counter));
           }, nb::arg("row"), nb::arg("counter"));
  bind_pages(arena);
  bind_operator(arena);
}

}  // namespace stratakv
