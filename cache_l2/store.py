"""ArenaStore: the sidecar's half of L2. One thread owns it; it decides, the native arena does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cache_l2._native import Lease, Reader
from cache_l2.accounts import Accounts, NamespaceCounts
from cache_l2.arena_start import ArenaConfig, create_arena, map_own
from cache_l2.local_log import LocalLog
from cache_l2.memory import MemoryProbe
from cache_l2.namespaces import NamespaceRecord, NamespaceRegistry
from cache_l2.provenance import ProvenanceTable
from cache_l2.reservations import ReservationBook
from kv_types.clock import Clock
from kv_types.errors import BufferMismatchError, InvalidArgumentError, LimitExceededError
from kv_types.ids import KEY_BYTES, LifeId, NamespaceId, PageKey, Stamp, new_life_id
from kv_types.limits import BATCH_PAGES_MAX, COPY_LEASE_S_DEFAULT, TTL_S_MAX
from kv_types.outcomes import (
    Hit,
    LookUpOutcome,
    Miss,
    MissReason,
    PutOutcome,
    PutStatus,
    RefuseReason,
    Tier,
    put_outcome,
)
from kv_types.page_keys import Keys, pack_keys

__all__ = ["ArenaConfig", "ArenaStore", "ClientRow", "NamespaceCounts", "NamespaceRecord"]

_SECOND_NS = 1_000_000_000

PageRow = tuple[int, int, int, int]
"""(PutStatus, RefuseReason, reservation, data offset); STORED means reserved."""

_ROW_STATES = {0: "free", 1: "attached", 2: "orphaned"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """One client as the sidecar sees it. `oldest_view` 0: no request in flight."""

    row: int
    pid: int
    state: str
    leases: int
    leased_bytes: int
    reservations: int
    applied_view: int
    oldest_view: int


class ArenaStore:
    """The node's pages. Not thread-safe: the event loop's thread alone calls it.

    Conforms to kv_types.page_store.PageStore by a row and a reader of its own, counted as every client is.
    """

    def __init__(
        self,
        config: ArenaConfig,
        *,
        clock: Clock,
        life: LifeId | None = None,
        memory: MemoryProbe | None = None,
    ) -> None:
        """Make the arena and start its log. Raises ArenaTooLargeError with numbers and remedy, ConfigError."""
        self._config = config
        self._clock = clock
        self.life = life or new_life_id()
        self._arena = create_arena(config, self.life, probe=memory)
        self._log = LocalLog(self._arena)
        self._namespaces = NamespaceRegistry()
        self._provenances = ProvenanceTable()
        self._book = ReservationBook()
        self._accounts = Accounts(self._arena)
        self._rows: set[int] = set()
        self._draining = False
        self._closed = False
        self._log.start()
        self._own_row = self.open_client(os.getpid())
        self._reader = self._own_reader()
        self.tick()

    def _own_reader(self) -> Reader:
        try:
            return map_own(self._arena, self._own_row, self.life, prefault=self._config.prefault)
        except BaseException:
            self._arena.close()
            raise

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
    def own_row(self) -> int:
        """The row that look_up, get, put and lease count in."""
        return self._own_row

    @property
    def is_draining(self) -> bool:
        """Whether the header was closed: nothing hits and nothing is stored any more."""
        return self._draining

    @property
    def geometry(self) -> Mapping[str, int]:
        """Sizes of the three files and their parts, as the header names them."""
        return self._arena.geometry

    def stamp(self) -> Stamp:
        """Position of the log, to load before any reuse."""
        return self._log.stamp()

    def tick(self) -> int:
        """Renew freshness and expire pages and reservations, bounded work a call; returns the pages hidden.

        To be called about every quarter of the freshness lease: F = t0 + lease, t0 read first (rule R14).
        """
        begun_ns = self._clock.now_ns()
        hidden = self._arena.expire(begun_ns)
        if not self._draining:
            self._arena.publish_freshness(begun_ns + int(self._config.freshness_lease_s * _SECOND_NS))
        return hidden

    def drain(self) -> None:
        """Close the header: from now on every look-up misses and every put is refused as CLOSED. Idempotent."""
        if not self._draining:
            self._draining = True
            self._arena.close_header()

    def close(self) -> None:
        """Give the memory back; clients keep what they have mapped. Idempotent."""
        if self._closed:
            return
        self.drain()
        self._closed = True
        self._reader.close()
        self._arena.close()

    def check_invariants(self) -> None:
        """Walk the whole arena; raises RuntimeError naming the first broken invariant. For tests and debugging."""
        self._arena.check_invariants()

    # --- namespaces ---

    def register(self, canonical: bytes, page_bytes: int) -> NamespaceRecord:
        """Make a namespace known; idempotent. Raises ProtocolError, LayoutConflictError, LimitExceededError."""
        return self._namespaces.register(canonical, page_bytes)

    def namespace(self, namespace: NamespaceId) -> NamespaceRecord:
        """Look a namespace up; raises UnknownNamespaceError."""
        return self._namespaces.of_id(namespace)

    def namespace_of_number(self, number: int) -> NamespaceRecord:
        """Look a namespace up by its number in this life; raises UnknownNamespaceError."""
        return self._namespaces.of_number(number)

    def namespaces(self) -> list[NamespaceRecord]:
        """Every namespace of this life, in the order of registration."""
        return list(self._namespaces)

    # --- clients ---

    def open_client(self, pid: int) -> int:
        """Take a cleared row for a process; raises LimitExceededError when all are taken."""
        try:
            row = self._arena.open_row(pid)
        except RuntimeError as error:
            raise LimitExceededError(
                f"all {self._config.client_rows} client rows are taken: raise client_rows, or end clients"
            ) from error
        self._rows.add(row)
        self._accounts.open_row(row)
        return row

    def bind_namespace(self, row: int, record: NamespaceRecord) -> int:
        """Counter that this row counts the namespace under; raises LimitExceededError."""
        return self._accounts.bind(row, record)

    def orphan_client(self, row: int) -> None:
        """The connection is gone, the process may live: leases stay, reservations are quarantined (rule R17)."""
        self._arena.orphan_row(row)
        self._book.end_row(row)

    def end_client(self, row: int) -> None:
        """The process is gone, or has unmapped the arena: its leases and reservations end, its counts are kept."""
        self._accounts.end_row(row)
        self._arena.end_row(row)
        self._book.end_row(row)
        self._rows.discard(row)

    def client_leases(self, row: int) -> int:
        """Leases that a row still holds."""
        return self._arena.row_statistics(row)["leases"]

    def descriptors(self, *, writable: bool) -> tuple[int, int, int]:
        """Return new (control, clients, data) descriptors that the caller closes."""
        return self._arena.duplicate_descriptors(writable=writable)

    def clients(self) -> list[ClientRow]:
        """Every row in use, the sidecar's own among them."""
        return [self._client(row) for row in sorted(self._rows)]

    def oldest_view(self) -> int:
        """Least view that any request in flight loaded, or the present one: how far the node is drained (rule R19)."""
        views = (self._arena.row_statistics(row)["oldest_view"] for row in self._rows)
        return min((view for view in views if view), default=self.view)

    def _client(self, row: int) -> ClientRow:
        state = self._arena.row_statistics(row)
        return ClientRow(
            row=row, pid=state["pid"], state=_ROW_STATES.get(state["state"], str(state["state"])),
            leases=state["leases"], leased_bytes=state["leased_bytes"], reservations=state["reservations"],
            applied_view=state["applied_view"], oldest_view=state["oldest_view"],
        )  # fmt: skip

    # --- storing ---

    def reserve(
        self, row: int, record: NamespaceRecord, parent: PageKey | None, keys: bytes, ttl_s: int | None = None
    ) -> list[PageRow]:
        """Reserve places for a run of one chain (n × 32 bytes, n ≤ BATCH_PAGES_MAX) that follows `parent`.

        Raises LimitExceededError, InvalidArgumentError.
        """
        pages = _check_batch(keys)
        if self._draining:
            return [(PutStatus.REFUSED, RefuseReason.CLOSED, 0, 0)] * pages
        now_ns = self._clock.now_ns()
        rows = self._arena.reserve(
            row=row, namespace_slot=record.number, parent=parent, keys=keys, payload_bytes=record.page_bytes,
            expiry_s=self._expiry_s(ttl_s, now_ns),
            deadline_ns=now_ns + int(self._config.reservation_s * _SECOND_NS), now_ns=now_ns,
        )  # fmt: skip
        reserved = [reservation if status == PutStatus.STORED else None for status, _, reservation, _ in rows]
        self._book.add_run(row, record.id, parent, keys, reserved)
        return rows

    def commit(
        self,
        row: int,
        reservations: Sequence[int],
        *,
        stamp: Stamp,
        producer: bytes = b"",
        tags: tuple[bytes, ...] = (),
        computed_from_ms: int = 0,
        computed_until_ms: int = 0,
    ) -> list[tuple[int, int]]:
        """Publish filled reservations, parents first: (PutStatus, RefuseReason) each. A refused one ends.

        Raises LimitExceededError, InvalidArgumentError; nothing has changed then.
        """
        if len(reservations) > BATCH_PAGES_MAX:
            raise LimitExceededError(
                f"a batch of {len(reservations)} pages exceeds {BATCH_PAGES_MAX}: split it"
            )
        provenance = self._provenances.number(producer, tags)
        reasons = self._judge(row, reservations, stamp)
        permitted = [
            reservation for reservation, reason in zip(reservations, reasons, strict=True) if not reason
        ]
        published = iter(
            self._arena.commit(
                row=row, reservations=permitted, incarnation=stamp.incarnation, revision=stamp.revision,
                producer=provenance, computed_from_ms=computed_from_ms, computed_until_ms=computed_until_ms,
                now_ns=self._clock.now_ns(),
            )
        )  # fmt: skip
        return [(int(PutStatus.REFUSED), int(reason)) if reason else next(published) for reason in reasons]

    def abort(self, row: int, reservations: Sequence[int]) -> None:
        """Give reservations of this row back; others are ignored."""
        mine = [reservation for reservation in reservations if self._book.take(row, reservation) is not None]
        if mine:
            self._arena.abort(row=row, reservations=mine)

    def _judge(self, row: int, reservations: Sequence[int], stamp: Stamp) -> list[RefuseReason]:
        """Take the reservations from the book and say why each must not be published, NONE where nothing speaks against.

        Those that the log refuses end here.
        """
        vetted: set[bytes] = set()
        reasons = []
        refused = []
        for reservation in reservations:
            page = self._book.take(row, reservation)
            if page is None:
                reasons.append(RefuseReason.EXPIRED)
                continue
            reason = RefuseReason.CLOSED if self._draining else self._log.judge(page, stamp, vetted)
            reasons.append(reason)
            if reason:
                refused.append(reservation)
        if refused:
            self._arena.abort(row=row, reservations=refused)
        return reasons

    def _expiry_s(self, ttl_s: int | None, now_ns: int) -> int:
        ttl_s = self._config.default_ttl_s if ttl_s is None else ttl_s
        if ttl_s < 0:
            raise InvalidArgumentError(f"a time to live of {ttl_s} s; it is 0 (never) or more")
        return -(-now_ns // _SECOND_NS) + min(ttl_s, TTL_S_MAX) if ttl_s else 0

    # --- hiding ---

    def hide_pages(self, keys: Keys) -> int:
        """Hide these pages (any order) and whatever was computed on them; returns the pages hidden.

        A put that began before can't bring them back. Raises InvalidIdentifierError, LimitExceededError.
        """
        return self._log.hide_pages(pack_keys(keys))

    def hide_namespace(self, namespace: NamespaceId) -> int:
        """Hide every page of a namespace, registered or not; returns the pages hidden."""
        record = self._namespaces.find(namespace)
        return self._log.hide_namespace(namespace, None if record is None else record.number)

    def hide_all(self) -> int:
        """Hide every page; returns how many."""
        return self._log.hide_all()

    # --- PageStore, for those who come over the network ---

    def look_up(self, namespace: NamespaceId, keys: Keys) -> LookUpOutcome:
        """Answer how many pages of the chain could be served now; counts nothing, pins nothing."""
        self._namespaces.of_id(namespace)
        return _outcome(*self._reader.match(pack_keys(keys)))

    def get(
        self, namespace: NamespaceId, keys: Sequence[PageKey], destinations: Sequence[memoryview]
    ) -> LookUpOutcome:
        """Copy the longest servable prefix out, one destination a key; see PageStore.get."""
        record = self._namespaces.of_id(namespace)
        packed = pack_keys(keys)
        _check_buffers(
            destinations, len(packed) // KEY_BYTES, record.page_bytes, "destination", writable=True
        )
        counter = self._accounts.bind(self._own_row, record, recycle=True)
        lease_ns = int(COPY_LEASE_S_DEFAULT * _SECOND_NS)
        return _outcome(
            *self._reader.get(counter, packed, destinations, page_bytes=record.page_bytes, lease_ns=lease_ns)
        )

    def lease(self, namespace: NamespaceId, keys: Keys, *, start: int = 0) -> Lease:
        """Pin the longest servable prefix of keys[start:]; the caller releases it. Counted as a look-up.

        Raises UnknownNamespaceError, LimitExceededError, InvalidArgumentError.
        """
        record = self._namespaces.of_id(namespace)
        packed = pack_keys(keys)
        if not 0 <= start <= len(packed) // KEY_BYTES:
            raise InvalidArgumentError(f"start is {start}; the chain has {len(packed) // KEY_BYTES} pages")
        counter = self._accounts.bind(self._own_row, record, recycle=True)
        return self._reader.lease(counter, packed, start=start)

    def put(
        self,
        namespace: NamespaceId,
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        *,
        start: int = 0,
        stamp: Stamp | None = None,
    ) -> list[PutOutcome]:
        """Store pages keys[start:], one source each; see PageStore.put."""
        record = self._namespaces.of_id(namespace)
        packed = pack_keys(keys)
        pages = len(packed) // KEY_BYTES
        if not 0 <= start <= pages:
            raise InvalidArgumentError(f"start is {start}; the chain has {pages} pages")
        _check_buffers(sources, pages - start, record.page_bytes, "source", writable=False)
        stamp = stamp or self.stamp()
        outcomes: list[PutOutcome] = []
        for begin in range(start, pages, BATCH_PAGES_MAX):
            end = min(begin + BATCH_PAGES_MAX, pages)
            outcomes += self._put_run(record, packed, begin, end, sources[begin - start : end - start], stamp)
        return outcomes

    def _put_run(
        self,
        record: NamespaceRecord,
        packed: bytes,
        begin: int,
        end: int,
        sources: Sequence[memoryview],
        stamp: Stamp,
    ) -> list[PutOutcome]:
        parent = PageKey(packed[(begin - 1) * KEY_BYTES : begin * KEY_BYTES]) if begin else None
        rows = self.reserve(self._own_row, record, parent, packed[begin * KEY_BYTES : end * KEY_BYTES])
        reserved = [
            (reservation, offset, source)
            for (status, _, reservation, offset), source in zip(rows, sources, strict=True)
            if status == PutStatus.STORED
        ]
        reservations = [reservation for reservation, _, _ in reserved]
        if reserved:
            counter = self._accounts.bind(self._own_row, record, recycle=True)
            try:
                self._reader.fill(
                    [offset for _, offset, _ in reserved], [source for _, _, source in reserved],
                    page_bytes=record.page_bytes, counter=counter,
                )  # fmt: skip
            except BaseException:
                self.abort(self._own_row, reservations)
                raise
        committed = iter(self.commit(self._own_row, reservations, stamp=stamp))
        return [
            put_outcome(*(next(committed) if status == PutStatus.STORED else (status, reason)))
            for status, reason, _, _ in rows
        ]

    # --- figures ---

    def statistics(self) -> Mapping[str, int]:
        """The arena's counters and gauges, and those of the bookkeeping around it."""
        clients = self.clients()
        return {
            **self._arena.statistics(),
            **self._page_statistics(),
            "namespaces": len(self._namespaces),
            "provenances": len(self._provenances),
            "tombstones": len(self._log.floors),
            "view": self.view,
            "revision": self._log.stamp().revision,
            "clients_attached": sum(client.state == "attached" for client in clients),
            "clients_orphaned": sum(client.state == "orphaned" for client in clients),
            "leases": sum(client.leases for client in clients),
            "reservations": sum(client.reservations for client in clients),
        }

    def _page_statistics(self) -> dict[str, int]:
        """Accounts over all namespaces; reasons that never occurred are left out."""
        total = sum(self._accounts.totals().values(), NamespaceCounts())
        missed = total.missed_by_reason()
        return {
            "requested_pages": total.requested,
            "l1_pages": total.l1,
            "l2_pages": total.l2,
            "l3_pages": total.l3,
            **{f"missed_pages_{reason.name.lower()}": pages for reason, pages in missed.items()},
        }

    def namespace_counts(self) -> Mapping[NamespaceId, NamespaceCounts]:
        """Exact page accounts a namespace over clients that live and have ended (I7)."""
        return self._accounts.totals()

    def namespace_resident(self) -> Mapping[NamespaceId, tuple[int, int]]:
        """(pages, payload bytes) resident a namespace."""
        return {
            self._namespaces.of_number(number).id: figures
            for number, figures in self._arena.namespace_statistics().items()
        }


def _outcome(pages: int, reason: int) -> LookUpOutcome:
    return Hit(pages, Tier.L2, MissReason(reason)) if pages else Miss(MissReason(reason))


def _check_batch(keys: bytes) -> int:
    pages, rest = divmod(len(keys), KEY_BYTES)
    if rest:
        raise InvalidArgumentError(f"packed keys are n × {KEY_BYTES} bytes; got {len(keys)}")
    if pages > BATCH_PAGES_MAX:
        raise LimitExceededError(f"a batch of {pages} pages exceeds {BATCH_PAGES_MAX}: split it")
    return pages


def _check_buffers(
    buffers: Sequence[memoryview], count: int, page_bytes: int, what: str, *, writable: bool
) -> None:
    if len(buffers) != count:
        raise BufferMismatchError(f"{len(buffers)} {what} buffers for {count} pages: give one a page")
    for index, buffer in enumerate(buffers):
        if buffer.nbytes != page_bytes:
            raise BufferMismatchError(f"{what} {index} has {buffer.nbytes} bytes; a page has {page_bytes}")
        if not buffer.c_contiguous or (writable and buffer.readonly):
            raise BufferMismatchError(f"{what} {index} is not contiguous or not writable")
