"""ArenaStore: the sidecar's half of L2. One thread owns it; it decides, the native arena does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from cache_l2._native import Lease, Reader
from cache_l2.accounts import NamespaceCounts
from cache_l2.arena_start import ArenaConfig, create_arena, map_own
from cache_l2.checks import check_buffers, look_up_outcome
from cache_l2.client_rows import ClientRow, HeldBack, acknowledged_view, held_back_by, oldest_view, undrained
from cache_l2.figures import client_figures, page_figures
from cache_l2.huge_pages import ArenaMemory
from cache_l2.inspection import PageFacts, entry_number, page_facts
from cache_l2.intake import PageIntake
from cache_l2.judging import CommitJudge
from cache_l2.memory_probe import MemoryProbe
from cache_l2.namespace_numbers import NamespaceNumbers
from cache_l2.namespaces import NamespaceRecord, NamespaceRegistry
from cache_l2.own_puts import put_pages
from cache_l2.pins import PinBoard
from cache_l2.selecting import Selecting
from cache_l2.tenants import Tenants
from kv_policy.eviction_choice import EvictionChoice
from kv_policy.losing_cost import LosingCosts
from kv_types.clock import Clock, unix_ms
from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.events import Event, encode_event
from kv_types.ids import KEY_BYTES, NO_INCARNATION, LifeId, NamespaceId, PageKey, Stamp, new_life_id
from kv_types.limits import COPY_LEASE_S_DEFAULT
from kv_types.namespace import Namespace
from kv_types.outcomes import LookUpOutcome, PutOutcome
from kv_types.page_keys import Keys, pack_keys, unpack_keys
from kv_types.selectors import Selector
from kv_types.validity import EngineMode

__all__ = [
    "ArenaConfig", "ArenaStore", "ClientRow", "HeldBack", "NamespaceCounts", "NamespaceRecord", "PageFacts",
]  # fmt: skip

_SECOND_NS = 1_000_000_000
_NOTES_PER_TICK = 8192
"""Of look-ups, all clients together: a ms or two."""


class ArenaStore(PageIntake):
    """The node's pages. Not thread-safe: the event loop's thread alone calls it.

    Conforms to kv_types.page_store.PageStore by a row and a reader of its own, counted as every client is.
    """

    def __init__(
        self,
        config: ArenaConfig,
        *,
        clock: Clock,
        judge: CommitJudge,
        life: LifeId | None = None,
        memory: MemoryProbe | None = None,
        wall_ms: Callable[[], int] = unix_ms,
    ) -> None:
        """Make the arena; without freshness, it serves nothing until whoever follows the log publishes some.

        `judge` is the state of the log that commits are held against, `wall_ms` the time that other nodes
        know. Raises ArenaTooLargeError, ConfigError.
        """
        self.life = life or new_life_id()
        arena, memory_got = create_arena(config, self.life, probe=memory)
        self.memory: ArenaMemory = memory_got
        namespaces = NamespaceRegistry(give_up=self._give_up_namespace)
        super().__init__(arena, config, clock=clock, judge=judge, namespaces=namespaces, wall_ms=wall_ms)
        self._position = Stamp(NO_INCARNATION, 0)
        self._numbers = NamespaceNumbers(self._arena, self._accounts)
        self._selecting = Selecting(
            self._arena, self._namespaces, self._provenances, skew_ms=int(config.skew_bound_s * 1000)
        )
        arena_bytes = config.sizes().arena_bytes
        self.tenants = Tenants(self._arena, config.tenant_shares, arena_bytes=arena_bytes)
        self.pins = PinBoard(
            self._arena, quota_bytes=int(config.pin_quota * arena_bytes), find=namespaces.find
        )
        self._rows: dict[int, str] = {}
        self._engines: dict[int, EngineMode] = {}
        self._keep_opened = 0
        self._closed = False
        self._own_row = self.open_client(os.getpid(), name="calls over gRPC")
        self._reader = map_own(self._arena, self._own_row, self.life, prefault=config.prefault)

    # --- the log, freshness and the end ---

    @property
    def config(self) -> ArenaConfig:
        """The settings that the arena was made with."""
        return self._config

    @property
    def view(self) -> int:
        """Count of all events published in this life."""
        return self._arena.view

    @property
    def reader(self) -> Reader:
        """The sidecar's own mapping, under its own row."""
        return self._reader

    @property
    def is_draining(self) -> bool:
        """Whether the header was closed: nothing hits and nothing is stored any more."""
        return self._draining

    @property
    def geometry(self) -> Mapping[str, int]:
        """Sizes of the three files and their parts, as the header names them."""
        return self._arena.geometry

    def stamp(self) -> Stamp:
        """Position that was published last, to load before any reuse; of NO_INCARNATION before a log was joined.

        Never the judge's, which is ahead while pages are still being hidden: what reused one of them would be stamped
        as if it had not (rule R1).
        """
        return self._position

    def tick(self) -> int:
        """Expire pages and reservations, read notes of look-ups, bounded work a call; returns the pages hidden."""
        self.settle_posts()
        self._posted.recall_idle()
        self.pins.expire(self._clock.now_ns())
        self.read_notes()
        return self._arena.expire(self._clock.now_ns())

    def read_notes(self) -> None:
        """Tell the eviction policy of look-ups that were noted, up to so many."""
        self._arena.read_notes(notes_max=_NOTES_PER_TICK, now_ns=self._clock.now_ns())

    @property
    def learns(self) -> bool:
        """Whether victims are chosen by what look-ups have shown."""
        return self._config.eviction_policy is EvictionChoice.LEARNED

    def export_policy(self) -> bytes:
        """What the eviction policy has learned of the workload, for the next life; nothing of the pages themselves."""
        return self._arena.export_policy()

    def import_policy(self, state: bytes) -> None:
        """Go on with what an earlier life has learned. Raises InvalidArgumentError, and changes nothing, when it is damaged."""
        try:
            self._arena.import_policy(state, now_ns=self._clock.now_ns())
        except ValueError as error:
            raise InvalidArgumentError(f"the state of the eviction policy: {error}") from error

    def set_elsewhere(self, instance: int, is_elsewhere: bool) -> None:
        """Say whether L3 holds the page that is an instance: then it costs less to lose. One that is gone costs nothing."""
        self._arena.set_elsewhere(instance, is_elsewhere)

    def set_losing_costs(self, costs: LosingCosts) -> None:
        """What it costs from now on to lose pages."""
        self._arena.set_losing_costs(elsewhere=costs.elsewhere, attention_pages=costs.attention_pages)

    def drain(self) -> None:
        """Close the header: from now on every look-up misses and every put is refused as CLOSED. Idempotent."""
        if not self._draining:
            self._arena.close_header()  # first: nobody posts any more
            for row in list(self._rows):
                self._posted.settle_all(row)  # what was told to be stored is, and goes to L3
            self._draining = True

    def close(self) -> None:
        """Give the memory back; clients keep what they have mapped. Idempotent."""
        if self._closed:
            return
        self.drain()
        self._closed = True
        self._reader.close()
        self._arena.close()

    def used_pages(self, *, begin: int, count: int) -> tuple[int, list[int]]:
        """Instances that were looked up since they were stored, among `count` entries from `begin` on, and where to go on.

        0: that was the end. What is found may be gone by now. Raises ValueError for a count beyond 65,536.
        """
        return self._arena.used_pages(begin=begin, count=count)

    def cold_used_pages(self, *, turn: int, count: int) -> list[int]:
        """At most so many instances that were looked up since they were stored and that are likely to be evicted soon.

        A bounded look at what is coldest now, at other pages with each `turn`. Raises ValueError for a count beyond 65,536.
        """
        return self._arena.cold_used_pages(turn=turn, count=count)

    def check_invariants(self) -> None:
        """Walk the whole arena; raises RuntimeError naming the first broken invariant. For tests and debugging."""
        self._arena.check_invariants()

    # --- namespaces ---

    def register(self, canonical: bytes, page_bytes: int) -> NamespaceRecord:
        """Make a namespace known; idempotent. Past NAMESPACES_MAX one that is idle is forgotten.

        Raises ProtocolError, LayoutConflictError, LimitExceededError (clients use all of them).
        """
        serial = self._namespaces.registrations
        record = self._namespaces.register(canonical, page_bytes)
        if record.serial >= serial:
            self.tenants.assign(record)
        return record

    def namespace(self, namespace: NamespaceId) -> NamespaceRecord:
        """Look up a namespace that is about to be used; raises UnknownNamespaceError."""
        return self._namespaces.of_id(namespace)

    def namespace_of_number(self, number: int) -> NamespaceRecord:
        """Look a namespace up by its number; raises UnknownNamespaceError."""
        return self._namespaces.of_number(number)

    def namespaces(self) -> list[NamespaceRecord]:
        """Every namespace that is registered, in the order of registration: that of their serials."""
        return list(self._namespaces)

    def first_namespaces(self) -> Mapping[NamespaceId, Namespace]:
        """The first METRIC_NAMESPACES_MAX of this life, registered still or not: they keep accounts of their own."""
        return self._namespaces.first

    def _give_up_namespace(self, idle: Iterable[NamespaceRecord]) -> NamespaceRecord | None:
        record = self._numbers.give_up(idle)
        if record is not None and record.id not in self._namespaces.first:
            self._accounts.forget(record.id)
        return record

    # --- clients ---

    def open_client(self, pid: int, *, engine: EngineMode = EngineMode.NONE, name: str = "") -> int:
        """Take a cleared row for a process; raises LimitExceededError when all are taken.

        `engine` says whether acknowledgements wait for this client (rule R18), `name` what it calls itself.
        """
        if engine is EngineMode.KEEP:
            self.take_back_keep()  # before anybody hears of the row
            self._keep_opened += 1
        try:
            row = self._arena.open_row(pid, engine=int(engine))
        except RuntimeError as error:
            raise LimitExceededError(
                f"all {self._config.client_rows} client rows are taken: raise client_rows, or end clients"
            ) from error
        self._rows[row] = name
        if engine is not EngineMode.NONE:
            self._engines[row] = engine
        self._accounts.open_row(row)
        return row

    def bind_namespace(self, row: int, record: NamespaceRecord) -> int:
        """Counter that this row counts the namespace under; raises LimitExceededError."""
        self._namespaces.used(record.id)
        return self._accounts.bind(row, record)

    def unbind_namespace(self, row: int, record: NamespaceRecord) -> None:
        """The client counts under this namespace no more; its counter is free for another one."""
        self._posted.settle_all(row)  # what it has posted is of this namespace still
        self._namespaces.used(record.id)
        self._accounts.unbind(row, record.id)

    def orphan_client(self, row: int) -> None:
        """The connection is gone, the process may live: leases stay, reservations are quarantined (rule R17)."""
        self._posted.settle_all(row)
        self._arena.orphan_row(row)
        self._book.end_row(row)

    def end_client(self, row: int) -> None:
        """The process is gone, or has unmapped the arena: its leases and reservations end, its counts are kept."""
        self._posted.settle_all(row)  # what a client has posted before it ended is stored
        self._posted.forget(row)
        for namespace in self._accounts.end_row(row):
            self._namespaces.used(namespace)
        self._arena.end_row(row)
        self._book.end_row(row)
        self._rows.pop(row, None)
        if self._engines.pop(row, None) is EngineMode.KEEP and not self.engines(EngineMode.KEEP):
            self.take_back_keep()  # the next renewal says that there are none: whoever attaches waits for a later one

    def client_leases(self, row: int) -> int:
        """Pages that a row still leases."""
        return self._arena.row_statistics(row)["leases"]

    def descriptors(self, *, writable: bool) -> tuple[int, int, int]:
        """Return new (control, clients, data) descriptors that the caller closes."""
        return self._arena.duplicate_descriptors(writable=writable)

    def clients(self) -> list[ClientRow]:
        """Every row in use, the sidecar's own among them."""
        return [self._client(row) for row in sorted(self._rows)]

    def _client(self, row: int) -> ClientRow:
        return ClientRow.of(row, self._arena.row_statistics(row), name=self._rows[row])

    # --- following the log (rule R14: hide, then publish; only then may anybody be told) ---

    def hiding(self, *selectors: Selector) -> Iterator[int]:
        """Hide every page that one of the selectors selects, with what was computed on it, in steps of bounded work.

        Yields the pages hidden in each step. The judge must refuse what they select before the first step.
        """
        return self._selecting.hiding(selectors)

    def publish(self, event: Event, stamp: Stamp) -> int:
        """Tell clients of an event whose pages are hidden, at a position of the log; returns the new view."""
        kind, payload = encode_event(event)
        self._position = stamp
        return self._arena.publish_event(
            incarnation=stamp.incarnation, revision=stamp.revision, kind=int(kind), payload=payload
        )

    def publish_freshness(self, freshness_ns: int) -> None:
        """Vouch for the published view until a time of CLOCK_BOOTTIME."""
        self._arena.publish_freshness(freshness_ns)

    def record(self, on: bool) -> None:
        """Whether clients are to tell of their look-ups."""
        self._arena.record(on)

    @property
    def keep_opened(self) -> int:
        """How often a client has attached whose engine keeps its pages: the same number, the same clients or fewer."""
        return self._keep_opened

    def grant_keep(self, opened: int) -> bool:
        """Let engines that keep their pages serve without limit: the log knows of those below the first `opened` clients.

        Refused, and False, when one has attached since, none is left, or the header is closed (rule R18).
        """
        granted = opened == self._keep_opened and not self._draining and self.engines(EngineMode.KEEP) > 0
        if granted:
            self._arena.grant_keep(True)
        return granted

    def take_back_keep(self) -> None:
        """From now on engines claim what others do, until it is granted anew."""
        self._arena.grant_keep(False)

    def acknowledged_view(self) -> int:
        """Newest view that every engine below this node's clients has applied (rule R18)."""
        return acknowledged_view(self._engine_clients(), view=self.view, now_ns=self._clock.now_ns())

    def held_back_by(self) -> list[HeldBack]:
        """Clients whose engines have not applied the present view."""
        return held_back_by(self._engine_clients(), view=self.view, now_ns=self._clock.now_ns())

    def draining_held_by(self) -> list[HeldBack]:
        """Clients that use what is older than the present view; those whose engines do are in `held_back_by`."""
        return undrained(self.clients(), view=self.view)

    def drained_view(self) -> int:
        """Newest view up to which nothing hidden is in use: no engine, no request in flight, no lease (rule R19)."""
        clients = self.clients()
        hidden = [client.oldest_hidden_view for client in clients if client.oldest_hidden_view]
        return min([self.acknowledged_view(), oldest_view(clients, view=self.view), *hidden])

    def engines(self, mode: EngineMode) -> int:
        """Clients with an engine of this mode."""
        return sum(one is mode for one in self._engines.values())

    def engines_may_serve(self) -> bool:
        """Whether an engine may still serve what it has without having heard of what is yet to be invalidated."""
        return any(client.may_serve(now_ns=self._clock.now_ns()) for client in self._engine_clients())

    def _engine_clients(self) -> Iterator[ClientRow]:
        return (self._client(row) for row in self._engines)

    # --- asking about pages ---

    def census(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, int]]:
        """Count the pages and payload bytes that hiding would hide, each page once, in steps of bounded work.

        Yields (pages, bytes) found in each step. Changes nothing. Raises LimitExceededError in whoever counts when
        another census begins meanwhile.
        """
        return self._selecting.counting(selectors)

    def inspect(self, key: PageKey) -> PageFacts | None:
        """Return what is known of the visible page under a key."""
        self.settle_posts()
        entry = self._arena.find(key)
        if entry is None:
            return None
        return page_facts(entry, self._namespaces, self._provenances, now_ns=self._clock.now_ns())

    def expires_in_s(self, instance: int) -> int | None:
        """Seconds, rounded up, until the time of the page that is this instance is over; None: never, or it is gone."""
        entry = self._arena.describe(instance)
        if entry is None or not (expiry_s := entry_number(entry, "expiry_s")):
            return None
        return max(0, expiry_s - self._clock.now_ns() // _SECOND_NS)

    def pin(self, instance: int) -> Lease | None:
        """Lease the one page that is this instance in the sidecar's own row, uncounted; None: it is gone.

        The caller releases it.
        """
        return self._reader.pin(instance)

    def instance(self, key: PageKey) -> int | None:
        """Instance of the visible page under a key."""
        return self._arena.instance(key)

    def chain(self, key: PageKey, *, pages_max: int) -> list[PageKey] | None:
        """Keys from the root to the page under a key, none when it is not there; None: more than `pages_max`."""
        packed = self._arena.chain(key, pages_max=pages_max)
        return None if packed is None else unpack_keys(packed)

    # --- PageStore, for those who come over the network ---

    def look_up(self, namespace: NamespaceId, keys: Keys) -> LookUpOutcome:
        """Answer how many pages of the chain could be served now; counts nothing, pins nothing."""
        self.settle_posts()
        record = self._namespaces.of_id(namespace)
        return look_up_outcome(*self._reader.match(pack_keys(keys), namespace=record.number))

    def get(
        self, namespace: NamespaceId, keys: Sequence[PageKey], destinations: Sequence[memoryview]
    ) -> LookUpOutcome:
        """Copy the longest servable prefix out, one destination a key; see PageStore.get."""
        self.settle_posts()
        record = self._namespaces.of_id(namespace)
        packed = pack_keys(keys)
        check_buffers(destinations, len(packed) // KEY_BYTES, record.page_bytes, "destination", writable=True)
        pages, reason, _ = self._reader.get(
            self.own_counter(record), packed, destinations, namespace=record.number, page_bytes=record.page_bytes,
            lease_ns=int(COPY_LEASE_S_DEFAULT * _SECOND_NS),
        )  # fmt: skip
        return look_up_outcome(pages, reason)

    def lease(self, namespace: NamespaceId, keys: Keys, *, start: int = 0) -> Lease:
        """Pin the longest servable prefix of keys[start:]; the caller releases it. Counted as a look-up.

        Raises UnknownNamespaceError, LimitExceededError, InvalidArgumentError, OverloadedError.
        """
        self.settle_posts()
        record = self._namespaces.of_id(namespace)
        packed = pack_keys(keys)
        if not 0 <= start <= len(packed) // KEY_BYTES:
            raise InvalidArgumentError(f"start is {start}; the chain has {len(packed) // KEY_BYTES} pages")
        return self._reader.lease(self.own_counter(record), packed, namespace=record.number, start=start)

    def put(
        self,
        namespace: NamespaceId,
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        *,
        stamp: Stamp | None,
        start: int = 0,
    ) -> list[PutOutcome]:
        """Store pages keys[start:], one source each; see PageStore.put."""
        record, packed = self._namespaces.of_id(namespace), pack_keys(keys)
        pages = len(packed) // KEY_BYTES
        if not 0 <= start <= pages:
            raise InvalidArgumentError(f"start is {start}; the chain has {pages} pages")
        check_buffers(sources, pages - start, record.page_bytes, "source", writable=False)
        return put_pages(self, record, packed, sources, start=start, stamp=stamp)

    def own_counter(self, record: NamespaceRecord) -> int:
        """Counter of the sidecar's own row for a namespace, taken from another one where none is left.

        Raises OverloadedError when look-ups of all others are under way.
        """
        return self._accounts.bind(self._own_row, record, recycle=True)

    # --- figures ---

    def statistics(self) -> Mapping[str, int]:
        """The arena's counters and gauges, and those of the bookkeeping around it."""
        return {
            **self._arena.statistics(),
            "posts_garbled": self._posted.garbled,
            **page_figures(sum(self._accounts.totals().values(), self._accounts.forgotten)),
            **client_figures(self.clients()),
            "namespaces": len(self._namespaces),
            "namespaces_recycled": self._namespaces.recycled,
            "provenances": len(self._provenances),
            "view": self.view,
            "revision": self._position.revision,
        }

    def namespace_counts(self) -> Mapping[NamespaceId, NamespaceCounts]:
        """Exact page accounts of those that are registered and the first ones, over clients living and ended (I7)."""
        return self._accounts.totals()

    def recycled_counts(self) -> NamespaceCounts:
        """The sum of the accounts of all other namespaces, which were registered once."""
        return self._accounts.forgotten

    def count_written(self, namespace: NamespaceId, written_bytes: int) -> None:
        """Count payload bytes of a put that the reader's own counters did not see."""
        self._accounts.add(namespace, NamespaceCounts(bytes_written=written_bytes))
        if self._namespaces.find(namespace) is None and namespace not in self._namespaces.first:
            self._accounts.forget(namespace)

    def namespace_resident(self) -> Mapping[NamespaceId, tuple[int, int]]:
        """(pages, payload bytes) resident a namespace."""
        return {
            self._namespaces.of_number(number).id: figures
            for number, figures in self._arena.namespace_statistics().items()
        }
