"""What comes into the arena: places for puts and for loads, each page judged by the log before it is published."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cache_l2._native import Arena
from cache_l2.accounts import Accounts
from cache_l2.arena_start import ArenaConfig
from cache_l2.checks import boot_expiry_s, check_batch, expiry_s
from cache_l2.descriptions import page_description, terms_of
from cache_l2.judging import (
    BatchJudging,
    CommitJudge,
    CommitTerms,
    PageJudging,
    Vetted,
    chain_of,
    probed_chain,
)
from cache_l2.namespaces import NamespaceRecord, NamespaceRegistry
from cache_l2.posted import PostedPut, PostedPuts
from cache_l2.provenance import ProvenanceTable
from cache_l2.reservations import PendingPage, ReservationBook
from kv_types.clock import Clock
from kv_types.errors import LimitExceededError
from kv_types.ids import PageKey, Stamp
from kv_types.limits import BATCH_PAGES_MAX
from kv_types.outcomes import PutStatus, RefuseReason
from kv_types.record import PageDescription
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE, stored_instance

_SECOND_NS = 1_000_000_000

PageRow = tuple[int, int, int, int]
"""(PutStatus, RefuseReason, reservation, data offset); STORED means reserved."""


class PageIntake:
    """Reservations and what becomes of them. The half of ArenaStore that judges."""

    def __init__(
        self,
        arena: Arena,
        config: ArenaConfig,
        *,
        clock: Clock,
        judge: CommitJudge,
        namespaces: NamespaceRegistry,
        wall_ms: Callable[[], int],
    ) -> None:
        self._arena = arena
        self._wall_ms = wall_ms
        self._config = config
        self._clock = clock
        self._judge = judge
        self._namespaces = namespaces
        self._accounts = Accounts(arena)
        self._provenances = ProvenanceTable()
        self._book = ReservationBook()
        self._loads_vetted = Vetted()
        self._draining = False
        self._own_row = -1
        self._posted = PostedPuts(
            arena, arena_bytes=config.sizes().arena_bytes, clock=clock, find=self._namespace_of_row,
            store=self._store_posted,
        )  # fmt: skip
        self._stored_last = NO_INSTANCE
        self.on_stored: Callable[[list[int]], None] | None = None
        """Told the instances of pages that a put has published, right after; not those of loads."""

    # --- puts ---

    def reserve(
        self, row: int, record: NamespaceRecord, parent: PageKey | None, keys: bytes, ttl_s: int | None = None
    ) -> list[PageRow]:
        """Reserve places for a run of one chain (n × 32 bytes, n ≤ BATCH_PAGES_MAX) that follows `parent`.

        Raises LimitExceededError, InvalidArgumentError.
        """
        self.settle_posts()
        self._posted.settle_all(row)  # what it stands on may be among them, said already or not
        return self._reserve(row, record, parent, keys, ttl_s=ttl_s)

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
        rests_on: int = UNKNOWN_INSTANCE,
    ) -> list[tuple[int, int]]:
        """Publish filled reservations, parents first: (PutStatus, RefuseReason) each. A refused one ends.

        `rests_on` is the instance of the deepest page that their request reused. Raises LimitExceededError,
        InvalidArgumentError; nothing has changed then.
        """
        if len(reservations) > BATCH_PAGES_MAX:
            raise LimitExceededError(
                f"a batch of {len(reservations)} pages exceeds {BATCH_PAGES_MAX}: split it"
            )
        provenance = self._provenances.number(producer, tags)
        terms = CommitTerms(
            stamp=stamp, producer=producer, tags=tags, computed_from_ms=computed_from_ms,
            computed_until_ms=computed_until_ms, rests_on=rests_on,
        )  # fmt: skip
        reasons = self._judge_batch(row, reservations, terms)
        permitted = [
            reservation for reservation, reason in zip(reservations, reasons, strict=True) if not reason
        ]
        published = self._arena.commit(
            row=row, reservations=permitted, incarnation=stamp.incarnation, revision=stamp.revision,
            producer=provenance, computed_from_ms=computed_from_ms, computed_until_ms=computed_until_ms,
            rests_on=rests_on, now_ns=self._clock.now_ns(),
        )  # fmt: skip
        self._tell_stored(permitted, published)
        rest = iter(published)
        return [(int(PutStatus.REFUSED), int(reason)) if reason else next(rest) for reason in reasons]

    def offer_slots(self, row: int, record: NamespaceRecord, outcomes: Sequence[tuple[int, int]]) -> None:
        """Grant slots in advance to a client whose put in this namespace has just ended so."""
        if any(status == PutStatus.STORED for status, _ in outcomes):
            self._posted.offer(row, record, pages=len(outcomes), spared=self._stored_last)

    def settle_posts(self) -> None:
        """Carry out all that clients have posted before: whoever looks from here on finds it."""
        self._posted.settle_every()

    def settle_some_posts(self) -> bool:
        """Carry out what clients have posted, a bounded part of it; returns whether something may be left."""
        return self._posted.settle()

    def _store_posted(self, row: int, put: PostedPut) -> int:
        rows = self._reserve(row, put.record, put.parent, put.keys, ttl_s=put.ttl_s, granted=put.granted)
        reserved = [reservation for status, _, reservation, _ in rows if status == PutStatus.STORED]
        self._stored_last = NO_INSTANCE
        if reserved:
            terms = put.terms
            try:
                self.commit(
                    row, reserved, stamp=terms.stamp, producer=terms.producer, tags=terms.tags,
                    computed_from_ms=terms.computed_from_ms, computed_until_ms=terms.computed_until_ms,
                    rests_on=terms.rests_on,
                )  # fmt: skip
            except BaseException:
                for reservation in reserved:  # nobody else would: their client takes them for pages
                    self._book.take(row, reservation)
                self._arena.abort(row=row, reservations=reserved)
                raise
        return self._stored_last

    def abort(self, row: int, reservations: Sequence[int]) -> None:
        """Give reservations of this row back, whose holder writes to them no more; others are ignored."""
        mine = [reservation for reservation in reservations if self._book.take(row, reservation) is not None]
        if mine:
            self._arena.abort(row=row, reservations=mine)

    def _namespace_of_row(self, row: int, number: int) -> NamespaceRecord | None:
        record = self._namespaces.find_number(number)
        return record if record is not None and self._accounts.counts_under(row, record.id) else None

    def _judge_batch(self, row: int, reservations: Sequence[int], terms: CommitTerms) -> list[RefuseReason]:
        """Take the reservations from the book and say why each must not be published, NONE where nothing speaks against.

        Those that the log refuses end here.
        """
        judging = BatchJudging(
            self._judge, self._arena, self._namespaces, terms, row=row, reservations=reservations
        )
        reasons, refused = judging.judge_all(self._book, is_closed=self._draining)
        if refused:
            self._arena.abort(row=row, reservations=refused)
        return reasons

    def _tell_stored(self, reservations: Sequence[int], published: Sequence[tuple[int, int]]) -> None:
        stored = [
            stored_instance(reservation)
            for reservation, (status, _) in zip(reservations, published, strict=True)
            if status == PutStatus.STORED
        ]
        if stored:
            self._stored_last = stored[-1]
            if self.on_stored is not None:
                self.on_stored(stored)

    # --- what is shared with other nodes: described, and loaded into the sidecar's own row ---

    @property
    def own_row(self) -> int:
        """The sidecar's own row: what it loads, and what is looked up, stored and leased here for others, counts there."""
        return self._own_row

    def describe(self, instance: int) -> PageDescription | None:
        """Tell what travels with the bytes of the page that is this instance, whoever leases it; None: it is gone."""
        entry = self._arena.describe(instance)
        if entry is None:
            return None
        return page_description(
            entry, self._namespaces, self._provenances, now_ns=self._clock.now_ns(), wall_ms=self._wall_ms()
        )

    def judge_probed(
        self, record: NamespaceRecord, parent: PageKey | None, pages: Sequence[PageDescription]
    ) -> list[RefuseReason]:
        """Say of a run of pages elsewhere, which would follow `parent`, what publishing them would be refused for now.

        It saves loading them: what they rest on counts as there, and only `publish_loaded` decides. After the first that is
        refused all are, as PARENT_ABSENT. A page of another place in the chain, or of another size, is CORRUPT; one whose
        time is over is EXPIRED.
        """
        chain = probed_chain(self._arena, parent, [page.key for page in pages])
        judging = PageJudging(self._judge.judge_loaded, chain, self._namespaces, vetted=Vetted())
        position = self._judge.position
        reasons: list[RefuseReason] = []
        for page in pages:
            if reasons and reasons[-1]:
                reasons.append(RefuseReason.PARENT_ABSENT)
                continue
            pending = PendingPage(record.id, page.key, parent)
            reason = RefuseReason.NONE if _is_of(page, pending, record) else RefuseReason.CORRUPT
            if 0 < page.expires_ms <= self._wall_ms():
                reason = reason or RefuseReason.EXPIRED
            reasons.append(
                reason
                or judging.judge(pending, terms_of(page), position=position, is_lineage_known=lambda: True)
            )
            parent = page.key
        return reasons

    def reserve_for_load(
        self,
        record: NamespaceRecord,
        parent: PageKey | None,
        keys: bytes,
        *,
        ttl_s: int | None = None,
        until_ns: int = 0,
    ) -> list[PageRow]:
        """Reserve places of the sidecar's own row that loads will fill, as `reserve` does for puts.

        They give way: a put of the same page gets the key, and the load's place is freed when it is published (EXPIRED) or
        aborted, never before. `until_ns`: when the transfer ends at the latest; they last at least until then.
        """
        return self._reserve(
            self.own_row, record, parent, keys, ttl_s=ttl_s, gives_way=True, until_ns=until_ns
        )

    def publish_loaded(self, reservation: int, page: PageDescription) -> tuple[int, int]:
        """Publish a page whose bytes lie in their place now, verified: (PutStatus, RefuseReason). A refused one ends.

        Judged by its own stamp and origin over its whole chain, at this moment (rule R2). It keeps its birth, and its lineage
        is known if what it rests on is resident below it, the very same computation. Its time ends when it ended elsewhere,
        to the second.
        """
        pending = self._book.take(self.own_row, reservation)
        if pending is None:
            return int(PutStatus.REFUSED), int(RefuseReason.EXPIRED)
        reason = self._judge_loaded(reservation, pending, page)
        if reason:
            self._arena.abort(row=self.own_row, reservations=[reservation])
            return int(PutStatus.REFUSED), int(reason)
        provenance = ProvenanceTable.OVERFLOW
        if not page.origin_unknown:
            provenance = self._provenances.number(page.producer, page.tags)
        now_ns = self._clock.now_ns()
        return self._arena.publish_loaded(
            row=self.own_row, reservation=reservation, incarnation=page.stamp.incarnation,
            revision=page.stamp.revision, producer=provenance, computed_from_ms=page.computed_from_ms,
            computed_until_ms=page.computed_until_ms, birth=page.birth, rests_on=page.rests_on,
            expiry_s=boot_expiry_s(page.expires_ms, now_ns, self._wall_ms()), now_ns=now_ns,
        )  # fmt: skip

    def _judge_loaded(self, reservation: int, pending: PendingPage, page: PageDescription) -> RefuseReason:
        if self._draining:
            return RefuseReason.CLOSED
        record = self._namespaces.find(pending.namespace)
        if record is None:  # nothing of it is in the arena any more
            return RefuseReason.EXPIRED
        if not _is_of(page, pending, record):
            return RefuseReason.CORRUPT
        judging = PageJudging(
            self._judge.judge_loaded, chain_of(self._arena), self._namespaces, vetted=self._loads_vetted
        )
        return judging.judge(
            pending, terms_of(page), position=self._judge.position,
            is_lineage_known=lambda: self._arena.loaded_lineage_known(
                row=self.own_row, reservation=reservation, rests_on=page.rests_on
            ),
        )  # fmt: skip

    def _reserve(
        self,
        row: int,
        record: NamespaceRecord,
        parent: PageKey | None,
        keys: bytes,
        *,
        ttl_s: int | None,
        gives_way: bool = False,
        until_ns: int = 0,
        granted: Sequence[int] = (),
    ) -> list[PageRow]:
        pages = check_batch(keys)
        if self._draining:
            return [(PutStatus.REFUSED, RefuseReason.CLOSED, 0, 0)] * pages
        now_ns = self._clock.now_ns()
        rows = self._arena.reserve(
            row=row, namespace_slot=record.number, parent=parent, keys=keys, payload_bytes=record.page_bytes,
            expiry_s=expiry_s(self._config.default_ttl_s if ttl_s is None else ttl_s, now_ns),
            deadline_ns=max(now_ns + int(self._config.reservation_s * _SECOND_NS), until_ns), now_ns=now_ns,
            gives_way=gives_way, granted=granted,
        )  # fmt: skip
        reserved = [reservation if status == PutStatus.STORED else None for status, _, reservation, _ in rows]
        self._book.add_run(row, record.id, parent, keys, reserved)
        return rows


def _is_of(page: PageDescription, pending: PendingPage, record: NamespaceRecord) -> bool:
    """Whether what arrived is the page that was asked for."""
    return (page.namespace, page.key, page.parent, page.payload_bytes) == (
        pending.namespace, pending.key, pending.parent, record.page_bytes,
    )  # fmt: skip
