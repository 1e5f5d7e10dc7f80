"""Types of the native core. Arena is the writer half (sidecar), Reader the half that workers import.

Numbers called `reason` and `status` are those of `kv_types.outcomes`. Times are CLOCK_BOOTTIME nanoseconds unless the
name says otherwise. `keys` is n × 32 bytes, a chain from the root. Errors are ValueError (bad argument), MemoryError,
OSError; the callers in cache_l2 turn them into kv_types.errors.
"""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeAlias, final

from typing_extensions import Buffer

class _Tensor(Protocol):
    def __dlpack__(self) -> Any: ...

Memory: TypeAlias = Buffer | _Tensor
"""C-contiguous host memory: anything with the buffer protocol, or a DLPack tensor on the CPU (torch's among them)."""

LAYOUT_VERSION: int
COPY_KERNELS: tuple[str, ...]

def size_class(payload_bytes: int) -> int:
    """Bytes of the slot that a payload of this size takes: a ladder of 16 steps a doubling, aligned to 4 KiB."""

def copy_bytes(destination: Memory, source: Memory, *, kernel: int = -1) -> None:
    """Copy equal-sized contiguous buffers with one of COPY_KERNELS (-1: the measured ones), without the GIL."""

@final
class ScatteredPage:
    """One page in several runs of memory; a source of `fill` and `post`. Runs that lie end to end are one."""

    @property
    def nbytes(self) -> int: ...
    @property
    def runs(self) -> int: ...
    def revoke(self) -> None:
        """Nothing reads it from now on: who would begin to raises ValueError. Who has begun already tells by `is_read`."""
    @property
    def is_read(self) -> bool: ...

def scattered_pages(addresses: Memory, run_bytes: Memory, *, owner: object) -> list[ScatteredPage]:
    """Pages at addresses: words of 64 bits, for each page that of each of its runs, whose sizes are `run_bytes`. Nobody
    checks that memory is there: `owner` keeps it. Address 0: nothing is written there; such a page can't be read."""

def scatter_pages(pages: list[ScatteredPage], sources: list[Any], *, begin: int, end: int) -> None:
    """Copy bytes [begin, end) of each page out of a buffer of the whole page, without the GIL."""

def gather_pages(pages: list[ScatteredPage], destinations: list[Any], *, begin: int, end: int) -> None:
    """Copy bytes [begin, end) of each page to their place in a buffer of the whole page, without the GIL."""

def calibrate_copy(*, bytes: int = 1 << 20) -> tuple[tuple[int, int], dict[str, tuple[float, float]]]:
    """Measure every kernel on copies of this size: the best for (cold, warm) destinations, and such seconds of each."""

def placement_policy() -> tuple[int, bytes]:
    """(mode, nodes) of set_mempolicy(2) for memory that this thread asks for; node n is bit n % 8 of byte n // 8. Raises
    OSError."""

def set_placement_policy(mode: int, nodes: bytes) -> None:
    """Set it. Raises OSError."""

@final
class Arena:
    """Single-threaded writer: creates the three memory files, fills the index, evicts, publishes."""

    def __init__(
        self,
        *,
        arena_bytes: int,
        segment_bytes: int,
        entries: int,
        rows: int,
        leases_per_row: int,
        ring_records: int,
        life: bytes,
        index_hash_bits: int = 64,
        copy_kernel: int = 0,
        warm_copy_kernel: int = 0,
        prefault: bool = True,
        huge_pages: int = 1,
        commit_through_mapping: bool = False,
        learns: bool = True,
    ) -> None:
        """Commits all memory. `huge_pages`: 0 off, 1 transparent, 2 explicit (of 2 MiB, out of the machine's pool).
        `commit_through_mapping`: for kernels that give transparent ones only to mappings that ask for them. Raises
        MemoryError, OSError where memory or such pages are not to be had.
        `learns`: victims are chosen by what look-ups have shown; else the least recently used leaf goes."""
    @property
    def geometry(self) -> dict[str, int]: ...
    def duplicate_descriptors(self, *, writable: bool) -> tuple[int, int, int]:
        """New (control, clients, data) descriptors to hand to a client; control can only be mapped read-only."""
    # header
    def publish_event(self, *, incarnation: bytes, revision: int, kind: int, payload: bytes) -> int:
        """Append to the ring, then publish the next view; returns it. Hide pages before (rule R14)."""
    def publish_freshness(self, freshness_ns: int) -> None: ...
    def record(self, on: bool) -> None:
        """Whether clients are to tell of their look-ups over the attach connection."""

    def grant_keep(self, granted: bool) -> None:
        """Whether engines may claim freshness without limit from now on (rule R18)."""
    def close_header(self) -> None: ...
    @property
    def view(self) -> int: ...
    # clients
    def open_row(self, pid: int, *, engine: int = 0) -> int:
        """Returns a cleared row's number; raises RuntimeError when none is free. `engine` is what the client says of an
        index of its own (rule R18): 0 it has none, 1 keep, 2 drop."""
    def orphan_row(self, row: int) -> None:
        """The connection is gone, the process may live: leases stay, reservations are quarantined."""
    def end_row(self, row: int) -> None:
        """The process is gone (or detached with nothing held): leases and reservations end, the row is free."""
    def row_statistics(self, row: int) -> dict[str, int]:
        """state, pid, engine, leases (in pages), leased_bytes, reservations, applied_view, own_freshness_ns, oldest_view (0: no
        request in flight), oldest_hidden_view (least view that was published when a page was hidden which it leases; 0:
        none). own_freshness_ns: until then the client may serve an index of its own without having applied (rule R18); 0:
        it has none or asks the header at each look-up, 2**64 - 1: without limit. engine and pid are what open_row was told,
        the rest is what the client wrote."""
    def row_counts(self, row: int, counter: int) -> dict[str, int]:
        """begun, requested, l1, l2, l3, miss_0…miss_31, bytes_read, bytes_written, collisions, look_ups: one consistent copy."""
    def reset_counts(self, row: int, counter: int) -> None: ...
    # pages
    def reserve(
        self,
        *,
        row: int,
        namespace_slot: int,
        parent: bytes | None,
        keys: bytes,
        payload_bytes: int,
        expiry_s: int,
        deadline_ns: int,
        now_ns: int,
        gives_way: bool = False,
        granted: Sequence[int] = (),
    ) -> list[tuple[int, int, int, int]]:
        """One (status, reason, reservation, data_offset) a key; keys[0]'s parent is `parent` (None: a root page).

        status STORED here means reserved: fill payload_bytes at data_offset, then commit. Evicts tails of other
        chains to make room, never an ancestor. After the first refused page all later ones are refused. A chain lies
        in one namespace: a parent or a known page of another counts as absent.

        `gives_way`: what a load will fill. Whoever reserves the same page without it gets the key, and the place that it
        had stays the load's until it is committed (EXPIRED) or aborted; its deadline never frees it. Two of the kind are
        BUSY to each other. Neither stands on what the other has reserved.

        `granted`: ids of slots of `grant` that hold the pages already, one a key; those of pages that aren't reserved end.
        """
    def grant(
        self,
        *,
        row: int,
        payload_bytes: int,
        wanted: int,
        bytes_max: int,
        now_ns: int,
        spared: int = 0,
        namespace_slot: int = 0,
    ) -> int:
        """Bring the slots for such pages that are on offer to a row up to `wanted`; returns how many there are. Evicts for
        them, but nothing of the chain up to the instance `spared`. All rows together have at most `bytes_max` bytes. They
        count for the tenant of the namespace."""
    def recall_grants(self, row: int) -> None:
        """Take back what is on offer to a row; what its client has taken stays its."""
    def drop_grants(self, *, row: int, ids: Sequence[int]) -> None:
        """Free slots that a row's client posted and that won't be published. Others are ignored."""
    def posting_rows(self) -> list[int]:
        """Rows that have posts, or may have."""
    def next_post(self, row: int) -> tuple[int, int, bytes | None, bytes, list[int], int, bytes] | None:
        """(namespace_slot, payload_bytes, parent, keys, ids, ttl_s, terms) of a row's next post. Raises ValueError, once, when
        there stands what no client writes: from then on the row has no posts."""
    def settle_post(self, row: int) -> None:
        """The post read last was carried out: whoever waits for it may look."""
    def commit(
        self,
        *,
        row: int,
        reservations: Sequence[int],
        incarnation: bytes,
        revision: int,
        producer: int,
        computed_from_ms: int,
        computed_until_ms: int,
        rests_on: int,
        now_ns: int,
    ) -> list[tuple[int, int]]:
        """Publish in the given order (parents first); one (status, reason) each. Foreign or ended ids: REFUSED, EXPIRED.

        `rests_on` is the instance of the deepest page that the request reused: low 32 bits of the visible page's
        generation in the high half, entry + 1 in the low (so a page stored by the caller has its reservation id plus
        2**32); 0: nothing was reused, 2**64 - 1: unknown. A page that has it not among its ancestors, or not within the
        bounded number that is looked at, is flagged: its lineage is unknown. Each page is given a birth, and keeps the
        line of what it rests on: the births from the root down to there, as one number.
        """
    def publish_loaded(
        self,
        *,
        row: int,
        reservation: int,
        incarnation: bytes,
        revision: int,
        producer: int,
        computed_from_ms: int,
        computed_until_ms: int,
        birth: int,
        rests_on: int,
        expiry_s: int,
        now_ns: int,
    ) -> tuple[int, int]:
        """Publish one page that was computed elsewhere, with its birth; as `commit` does otherwise.

        Its time ends with `expiry_s` (boot-time seconds; 0: never) or with what was reserved, whichever comes first.

        `rests_on` is a line: that of the deepest page that its request reused, 0: nothing, 2**64 - 1: unknown. One that
        none of the page's ancestors has, as far as they are looked at, flags the page as commit does.
        """
    def loaded_lineage_known(self, *, row: int, reservation: int, rests_on: int) -> bool:
        """What `publish_loaded` would find out about the lineage; False for an id that the row doesn't hold."""
    def lineage_known(self, *, row: int, reservations: Sequence[int], rests_on: int) -> list[bool]:
        """What `commit` of these would find out about their lineage, for whoever judges them before; False for ids that the
        row doesn't hold. A page whose stamp is older than a record about origins must not be published on a False."""
    def abort(self, *, row: int, reservations: Sequence[int]) -> None: ...
    def read_notes(self, *, notes_max: int, now_ns: int) -> int:
        """Tell the eviction policy of look-ups that clients have noted, up to so many; returns how many."""
    def export_policy(self) -> bytes:
        """What the eviction policy has learned: versioned, checked, bounded; nothing of the pages themselves."""
    def import_policy(self, state: bytes, *, now_ns: int) -> None:
        """Go on with what was exported in an earlier life; ValueError, and nothing has changed, when it is damaged."""
    def set_elsewhere(self, instance: int, is_elsewhere: bool) -> bool:
        """Whether L3 holds the page that is an instance, so that it costs less to lose; False: it is gone."""
    def set_losing_costs(self, *, elsewhere: float, attention_pages: int) -> None:
        """What a load costs against computing a page, in (0, 1], and the depth at which one takes twice as long to compute
        as the first one (0: all alike); ValueError."""
    def expire(self, now_ns: int) -> int:
        """Hide pages past their expiry (and what stands on them), quarantine late reservations, free what has no
        lease any more; bounded work a call; returns pages hidden."""
    def hide_step(
        self,
        *,
        key: bytes | None,
        namespaces: bytes | None,
        provenances: bytes | None,
        since_ms: int,
        until_ms: int,
        since_revision: int,
        until_revision: int,
        cursor: int,
        work_max: int,
    ) -> tuple[int, int]:
        """Hide some of what a selection names, with everything computed on top of it: (next cursor, pages hidden).

        Cursor 0 begins; each step takes the cursor that the one before returned, with the same other arguments; -1: done.
        Then every page that was visible at the first step and is selected is hidden, whatever happened between the
        steps. A step looks at and hides `work_max` entries together at most and scans the leases once; a subtree goes
        from its leaves on. Hidden at once; freed at the last release. Four selections can be under way side by side.

        `key`: this page and what stands on it; None: all. `namespaces`, `provenances`: bitmaps by number, number n being
        bit n % 8 of byte n // 8; None: all; a number beyond its bitmap doesn't match, the provenance 2**32 - 1 always
        does. Times are those of the entry, in ms, widened by the caller; 0 and 2**64 - 1 are no bounds, an entry's time
        of 0 matches. Conditions combine by "and"; an entry of unknown lineage matches provenance, times and revisions
        whatever they say. Without conditions on those, reservations in the way are cut off: their commits are refused.
        """
    def count_step(
        self,
        *,
        key: bytes | None,
        namespaces: bytes | None,
        provenances: bytes | None,
        since_ms: int,
        until_ms: int,
        since_revision: int,
        until_revision: int,
        cursor: int,
        work_max: int,
        census: int = 0,
    ) -> tuple[int, int, int]:
        """What hide_step would hide, each page once: (next cursor, pages, payload bytes) of this step.

        `census` 0 counts a selection alone. A number that was not used before begins a census; the counts of several
        selections under one number, one after the other, count each page once together. Beginning another ends it.
        Raises ValueError when a count can't go on, because too many others were begun meanwhile or its census has ended.
        """
    def chain(self, key: bytes, *, pages_max: int) -> bytes | None:
        """Packed keys root … `key` of the visible or reserved page under a key; b"" when there is none, None when they are
        more than `pages_max`. Looks at no lease."""
    def instance(self, key: bytes) -> int | None:
        """Instance of the visible page under a key. Looks at no lease."""
    def find(self, key: bytes) -> dict[str, int | bytes] | None:
        """The visible entry under a key: all fields of the entry (lineage_unknown 0 or 1 apart from producer), its access
        times and its lease count, for which it looks at all leases. For `inspect`."""
    def cold_used_pages(self, *, turn: int, count: int) -> list[int]:
        """At most `count` (1 to 65,536) instances that were looked up since they were committed and are likely to be evicted
        soon; each `turn` looks at others. Raises ValueError."""
    def used_pages(self, *, begin: int, count: int) -> tuple[int, list[int]]:
        """Instances, among `count` entries (1 to 65,536) from `begin` on, that were looked up since they were committed, and the
        entry to go on from, 0 at the end. Raises ValueError."""

    def describe(self, instance: int) -> dict[str, int | bytes] | None:
        """What `find` tells but for access times and leases, with `birth`, `line` and `rests_on` (a line, 0 or 2**64 - 1), of the
        visible page that is this instance; None: it is gone. Looks at no lease."""
    def statistics(self) -> dict[str, int]:
        """entries_total, entries_visible, entries_reserved, entries_hidden_leased, entries_quarantined, resident_bytes,
        reserved_bytes, leased_bytes, segments_total, segments_free, segments_moved (from one size class to another),
        evictions_capacity, evictions_ttl, evictions_invalidated, evictions_segment, stored, known, refused, index_full,
        oldest_hidden_view (least view that was published when a page was hidden, for whatever reason, that is still leased;
        0: there is none)."""
    def namespace_statistics(self) -> dict[int, tuple[int, int]]:
        """namespace_slot -> (resident pages, resident bytes)."""
    def namespace_entries(self, namespace_slot: int) -> int:
        """Entries that still go by a namespace's number: visible, reserved, quarantined, or hidden and still leased."""
    def evict_namespace(self, namespace_slot: int) -> int:
        """Evict all pages of a namespace, unless something is reserved or waits for leases there; returns the entries left.
        Work grows with its entries: ask how many there are before."""
    # what an operator sets apart
    def set_pin_quota(self, quota_bytes: int) -> None:
        """Bytes of slots that pinned keys may be charged together; 0 until it is set."""
    def pin(self, *, keys: bytes, payload_bytes: int) -> bool:
        """Name each of these keys (n × 32 bytes) once more; their pages are held while they are resident. Each is charged the
        slot of a page of `payload_bytes` (0: unknown, and charged once a page comes). False, and nothing has changed: the
        quota does not allow it."""
    def pin_cost(self, *, keys: bytes, payload_bytes: int) -> int:
        """Bytes that pinning these would charge beyond what is charged already."""
    def unpin(self, *, keys: bytes) -> None:
        """Name each of these keys once less; others are ignored."""
    def held_among(self, *, keys: bytes) -> tuple[int, int]:
        """(pages, payload bytes) of these keys that are resident and held."""
    def pin_statistics(self) -> dict[str, int]:
        """keys, held_pages, held_bytes and charged_bytes (of slots), quota_bytes, beyond_quota (pages that came under a pinned
        key and were not held, for the quota was used up)."""
    def set_tenant_shares(self, share_bytes: Sequence[int]) -> None:
        """Give tenants 1, 2, … these shares of the arena: none is evicted below its own for another tenant. Before anything is
        stored. Tenant 0 is everybody else, and has none."""
    def set_tenant(self, namespace_slot: int, tenant: int) -> None:
        """Say whose a namespace is, before it has pages; 0 at first."""
    def tenant_statistics(self) -> list[dict[str, int]]:
        """By tenant, from 0 on: share_bytes, used_bytes (of slots: visible, reserved, quarantined or granted), and pages evicted
        for want of room: evictions_own (for itself), evictions_caused (of others, for it), evictions_suffered (of its own, for
        others)."""
    def check_invariants(self) -> None:
        """Walk everything; raises RuntimeError naming the first broken invariant. For tests and `--debug`."""
    def close(self) -> None: ...

@final
class Donor:
    """A size class that could give a segment, as a sample of its pages shows it. `ages_ns` are ages of at most 512 of its
    pages; `sampled` slots of the segment that it offers were looked at, of which `warm` were read lately and `fresh` stored
    lately; `busy` pages of it are held, `elsewhere` segments' worth of pages would go with it."""

    def __init__(
        self,
        *,
        size_class: int,
        slots_per_segment: int,
        slots: int,
        free_slots: int = 0,
        ages_ns: Sequence[int],
        sampled: int,
        warm: int = 0,
        fresh: int = 0,
        busy: int = 0,
        elsewhere: float = 0.0,
    ) -> None: ...

@final
class SegmentPolicy:
    """Which size class gets a segment of another one (segment_policy.hpp), apart from any arena."""

    def __init__(self, *, segments: int) -> None: ...
    def took(self, *, slots_per_segment: int, now_ns: int) -> None: ...
    def evicted(self, size_class: int, *, slots_per_segment: int) -> None: ...
    def returned(self, size_class: int, *, slots_per_segment: int, distance: int) -> None: ...
    def asks(self, size_class: int, *, slots_per_segment: int) -> bool: ...
    def answered(self, size_class: int, *, got: bool) -> None: ...
    @property
    def window_ns(self) -> int: ...
    def gain(self, size_class: int) -> float:
        """Segments' worth of hits a nanosecond that a segment more would have had lately, at most."""
    def choose(
        self, size_class: int, *, slots_per_segment: int, own_age_ns: int, donors: Sequence[Donor]
    ) -> int | None:
        """The place in `donors` of the one whose offered segment is worth more to the class; None: there is none."""
    def choose_in_need(self, donors: Sequence[Donor]) -> int | None:
        """The place of the one that loses least."""

@final
class Reader:
    """A client's mapping of the arena under one row. Thread-safe. Never used in a forked child (maps are DONTFORK)."""

    def __init__(
        self,
        *,
        control_fd: int,
        clients_fd: int,
        data_fd: int,
        row: int,
        life: bytes,
        writable: bool,
        prefault: bool = True,
        doorbell_fd: int = -1,
        first_use: bool = False,
    ) -> None:
        """Takes over the descriptors. With `prefault` the index is pre-faulted here and the pages' bytes by a thread of its
        own; `first_use`: nobody has done that before. Without a doorbell (an eventfd) it can't post, nor waits for what others
        have posted. Raises ValueError when the header is not of this layout and life."""
    @property
    def prefault_ended(self) -> bool:
        """Whether nothing is being pre-faulted any more."""
    @property
    def pages_memory(self) -> tuple[int, int]:
        """(address, bytes) of the mapping that all pages lie in, until the last lease or call after `close` has ended."""
    @property
    def life(self) -> bytes: ...
    @property
    def closed(self) -> bool: ...
    @property
    def recording(self) -> bool:
        """Whether the sidecar wants to be told of look-ups, for a trace; False once closed."""

    @property
    def keep_granted(self) -> bool:
        """Whether the log knows of this node's engines of mode keep, so that they may claim without limit."""
    @property
    def view(self) -> int: ...
    def stamp(self) -> tuple[int, bytes, int]:
        """(view, incarnation, revision) that belong together."""
    def freshness_ns(self) -> int: ...
    def set_applied_view(self, view: int) -> None: ...
    def claim_freshness(self, freshness_ns: int | None = None) -> tuple[int, int]:
        """Store in the row until when an index may serve without asking (None: the header's F; 0: no longer; 2**64 - 1:
        without limit, for an engine of mode keep where that is granted; else the header's F at most), then load the view:
        (what was stored, view). Apply up to that view before serving. A full fence lies between the two, so that either
        this client sees an event or the sidecar sees the claim (rule R18). (0, 0), and nothing is claimed, once the header
        is closed. Never lower a claim that may still be relied on."""
    def events_since(self, view: int) -> list[tuple[int, bytes, int, int, bytes]] | None:
        """(view, incarnation, revision, kind, payload) of each event after `view`; None when the ring was overrun."""
    def begin_request(self, *, view: int | None = None) -> tuple[int, int, bytes, int]:
        """(request slot, view, incarnation, revision); the slot holds back `drained` until end_request. Slot -1: none free.
        `view`: the slot holds back from this older view on, on which work that was begun elsewhere rests; what is returned
        is the present one all the same. Raises ValueError when it is 0 or not published yet."""
    def advance_request(self, slot: int, view: int) -> None:
        """Say that what the slot stands for works on `view` now: at or below the present view, applied before. Never goes
        back. Slot -1 is ignored; raises ValueError for a slot that no request holds and a view that is not published."""
    def end_request(self, slot: int) -> None: ...
    def match(
        self, keys: Buffer, *, namespace: int, start: int = 0, may_await: bool = True
    ) -> tuple[int, int]:
        """(pages, reason): resident, valid pages of keys[start:]; nothing pinned, nothing counted. `namespace`, here and
        below, is the sidecar's number of it: pages of another one are absent, whatever their keys. Like all look-ups it
        waits some ms, at most, for an absent page that a client has posted; unless `may_await` is False."""
    def lease(
        self, counter: int, keys: Buffer, *, namespace: int, start: int = 0, may_load: bool = False
    ) -> Lease:
        """Find and pin. Counts a look-up: requested = all keys, L1 = start (they were served before), L2, miss(reason).

        `may_load`: what ends short by ABSENT is begun but not counted yet. Exactly one `complete…` must follow; should
        the client die before, it is counted as missed(aborted).
        """
    def lease_uncounted(self, keys: Buffer, *, namespace: int, start: int = 0) -> Lease:
        """Find and pin as `lease` does, and count nothing: of pages whose look-up another process has counted."""
    def pin(self, instance: int) -> Lease | None:
        """Pin the one page that is this instance, for as long as the lease is kept, and count nothing; None: it is gone, or
        as much is leased as may be. Asks neither freshness nor expiry."""
    def complete_lease(
        self,
        counter: int,
        keys: Buffer,
        *,
        namespace: int,
        start: int = 0,
        l3_from: int | None = None,
        reason: int = 0,
        may_await: bool = True,
    ) -> Lease:
        """Look up again what was begun with `may_load`, and count it: pages found from keys[l3_from] on are L3's, those
        before L2's; None: none is. What is still absent is missed for `reason`, unless that is 0. Raises ValueError when
        no look-up of so many pages is under way. `may_await` as for match."""
    def complete(
        self,
        counter: int,
        *,
        requested: int,
        l1: int,
        l2: int = 0,
        l3: int = 0,
        reason: int = 0,
        bytes_read: int = 0,
    ) -> None:
        """Count a look-up that was begun with `may_load` and ends with what is named here. Raises ValueError for more than
        was requested, for pages missed without a reason, and when no look-up of so many pages is under way."""
    def get(
        self,
        counter: int,
        keys: Buffer,
        destinations: Sequence[Memory] | Memory,
        *,
        namespace: int,
        page_bytes: int,
        start: int = 0,
        lease_ns: int = 5_000_000_000,
        kernel: int = -1,
        instances: Memory | None = None,
        may_load: bool = False,
    ) -> tuple[int, int, int]:
        """Look up, copy out, check again: (pages, reason, instance of the last page served, 0 for none). Destinations: one
        writable contiguous buffer a key of keys[start:], or one for all of them. Without the GIL. Counts as `lease` does,
        with `may_load` too.

        `instances`: 8 writable bytes a key of the whole chain, to be told the instance of each page served and of
        keys[start - 1], on which the first of them stands; those of other keys are left as they are."""
    def complete_get(
        self,
        counter: int,
        keys: Buffer,
        destinations: Sequence[Memory] | Memory,
        *,
        namespace: int,
        page_bytes: int,
        start: int = 0,
        lease_ns: int = 5_000_000_000,
        kernel: int = -1,
        instances: Memory | None = None,
        l1: int | None = None,
        l3_from: int | None = None,
        reason: int = 0,
        may_await: bool = True,
    ) -> tuple[int, int, int]:
        """`get` for what was begun with `may_load`, counted as `complete_lease` does. keys[l1:start] were copied by that
        first call: they are L2's, and their bytes are counted; None: `start`, none were."""
    def counts(self, counter: int) -> dict[str, int]:
        """What this row has counted under `counter` up to now: the names of Arena.row_counts, one consistent copy."""
    def count_outcome(self, counter: int, *, requested: int, l1: int, reason: int) -> None:
        """Account a look-up that never reached L2: all in L1, or a miss with `reason` for the rest."""
    def fill(
        self,
        offsets: Sequence[int],
        sources: Sequence[Memory | ScatteredPage] | Memory,
        *,
        page_bytes: int,
        counter: int = 0,
        kernel: int = -1,
    ) -> None:
        """Copy pages into reserved places, without the GIL. Needs writable=True."""
    def post(
        self,
        counter: int,
        keys: Buffer,
        sources: Memory | Sequence[Memory | ScatteredPage],
        *,
        namespace: int,
        start: int,
        resident: int,
        page_bytes: int,
        incarnation: bytes,
        revision: int,
        ttl_s: int = -1,
        deadline_ns: int,
        terms: bytes,
    ) -> tuple[int, list[int]]:
        """Store keys[start:] without asking the sidecar: (1, ids of the reservations). (0, []): it must be asked, and nothing
        has changed; (2, []): the deadline passed before the pages were filled. `resident` is what `match` has just found of
        the chain, `incarnation` and `revision` the stamp, `ttl_s` -1 the sidecar's default."""
    def slot(self, offset: int, size: int) -> Buffer:
        """A writable view of a reserved place, for writers that fill in place."""
    def held(self) -> int:
        """Leases held now, each of however many pages."""
    def posted(self) -> int:
        """Pages that this row has posted and the sidecar has not carried out."""
    def abandon_in_child(self) -> None:
        """Close the copy of the doorbell that a forked child has inherited; does nothing in the process that attached."""
    def close(self) -> bool:
        """Unmap when the last lease is released; further calls raise ValueError. True once that has happened: no lease or
        view is left and no other thread is inside a call, so that the row can be given back. Closing again asks again."""

@final
class Lease:
    """Pinned pages, read-only views of shared memory. Releasing ends the views; a view still exported (a numpy array on
    it) keeps its pages pinned until it is gone."""

    @property
    def pages(self) -> int: ...
    @property
    def reason(self) -> int: ...
    @property
    def view(self) -> int:
        """The view that the look-up loaded."""
    @property
    def instance(self) -> int:
        """Instance of the last page (what `Arena.commit` calls so), 0 for none. Stays readable after the release."""
    def instances(self) -> list[int]:
        """Instance of each page, for a holder that may reuse fewer of them later."""
    @property
    def stands_on(self) -> int:
        """Instance of keys[start - 1], on which the first page stands; 0 when start is 0 or there is no page. It tells a
        holder of the pages before `start` whether its own are the ones below these."""
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> memoryview: ...
    def __iter__(self) -> Iterator[memoryview]: ...
    def release(self) -> None:
        """End the views. Pages at which something still looks stay pinned until it is gone, with what lies between them."""
    def __enter__(self) -> Lease: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
