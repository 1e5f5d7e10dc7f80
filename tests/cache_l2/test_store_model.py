"""ArenaStore beside a dictionary: puts held open, hidden, expired and evicted pages in a small arena."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from cache_l2._native import Lease
from kv_types.clock import BoottimeClock, ManualClock
from kv_types.ids import NamespaceId, PageKey, Stamp
from kv_types.outcomes import STORED, Hit, PutStatus
from kv_types.record import PageDescription
from tests.support.pages import buffers, chain, namespace_of, packed, page_of
from tests.support.stores import MIB, SECOND_NS, add, make_store

ALL = PageKey(b"everything".ljust(32))


class StoreMachine(RuleBasedStateMachine):
    """Chains that branch in a small arena, with puts held open, hidden, expired and evicted pages.

    The model knows what may be resident; eviction may have taken a tail of it, nothing else may be missing.
    """

    TTL_S = 1000

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(BoottimeClock().now_ns())
        self.store = make_store(
            self.clock,
            arena_bytes=MIB,
            segment_bytes=MIB // 8,
            lease_s=3600.0,
            reservation_s=3600.0,
        )
        self.may: dict[PageKey, tuple[PageKey | None, NamespaceId, int]] = {}
        self.open: list[tuple[int, PageKey, PageKey | None, NamespaceId, Stamp, int]] = []
        self.hidden: dict[PageKey, int] = {}
        self.loading: list[tuple[int, PageDescription]] = []
        self.stored: list[int] = []
        self.pins: list[tuple[Lease, bytes]] = []
        self.store.on_stored = self.stored.extend

    @initialize()
    def register(self) -> None:
        self.records = [
            add(self.store, namespace_of(name, units=units)) for name, units in (("a", 1), ("b", 5))
        ]

    def teardown(self) -> None:
        for pin, _ in self.pins:
            pin.release()
        self.store.close()

    def _chain(self, which: int, branch: list[int]) -> list[PageKey]:
        parent, keys = bytes(self.records[which].id), []
        for turn in branch:
            (key,) = chain(1, root=parent + bytes([turn]))
            keys.append(key)
            parent = key
        return keys

    # few chains, so that what is hidden is often what is being put; `flood` is what makes evictions
    CHAINS = st.tuples(st.integers(0, 1), st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=7))

    @rule(which_branch=CHAINS, ttl=st.booleans(), commit=st.booleans(), old=st.booleans())
    def put(self, which_branch: tuple[int, list[int]], ttl: bool, commit: bool, old: bool) -> None:
        record, keys = self.records[which_branch[0]], self._chain(*which_branch)
        stamp = self.store.stamp()
        if old and stamp.revision:
            stamp = Stamp(stamp.incarnation, stamp.revision - 1)
        rows = self.store.reserve(
            self.store.own_row, record, None, packed(keys), self.TTL_S if ttl else 0
        )  # fmt: skip
        expiry = self.clock.now_ns() + self.TTL_S * SECOND_NS if ttl else 0
        for index, (status, _, reservation, offset) in enumerate(rows):
            if status != PutStatus.STORED:
                continue
            self.store.reader.fill(
                [offset], [page_of(keys[index], record.page_bytes)], page_bytes=record.page_bytes
            )
            parent = keys[index - 1] if index else None
            self.open.append((reservation, keys[index], parent, record.id, stamp, expiry))
        if commit:
            self.commit_open()

    @rule(pages=st.integers(1, 120))
    def flood(self, pages: int) -> None:
        record, keys = self.records[0], chain(pages)
        outcomes = self.store.put(
            record.id,
            keys,
            [memoryview(page_of(key, record.page_bytes)) for key in keys],
            stamp=self.store.stamp(),
        )
        for index, (key, outcome) in enumerate(zip(keys, outcomes, strict=True)):
            if outcome == STORED:
                self.may[key] = (keys[index - 1] if index else None, record.id, 0)

    @rule()
    def commit_open(self) -> None:
        for reservation, key, parent, namespace, stamp, expiry in self.open:
            ((status, _),) = self.store.commit(self.store.own_row, [reservation], stamp=stamp)
            if status == PutStatus.STORED:
                self._published(key, parent, namespace, stamp, expiry)
        self.open.clear()

    def _published(
        self, key: PageKey, parent: PageKey | None, namespace: NamespaceId, stamp: Stamp, expiry: int
    ) -> None:
        chain_keys, above = [key], parent
        while above is not None:
            chain_keys.append(above)
            above = self.may[above][0]
        floor = max(self.hidden.get(each, 0) for each in [*chain_keys, PageKey(bytes(namespace)), ALL])
        assert stamp.revision >= floor, "BrokeInFlight"
        self.may[key] = (parent, namespace, expiry)

    @rule(which_branch=CHAINS, old=st.booleans(), land=st.sampled_from([False, False, False, True]))
    def load(self, which_branch: tuple[int, list[int]], old: bool, land: bool) -> None:
        """Pages that were computed elsewhere, on what is resident here; a put of the same takes over."""
        record, keys = self.records[which_branch[0]], self._chain(*which_branch)
        stamp = self.store.stamp()
        if old and stamp.revision:
            stamp = Stamp(stamp.incarnation, stamp.revision - 1)
        rows = self.store.reserve_for_load(record, None, packed(keys), ttl_s=0)
        for index, (status, reason, reservation, offset) in enumerate(rows):
            assert status != PutStatus.STORED or not reason
            if status != PutStatus.STORED:
                continue
            page = PageDescription(
                namespace=record.id, key=keys[index], parent=keys[index - 1] if index else None, stamp=stamp,
                payload_bytes=record.page_bytes, birth=1 + len(self.loading),
            )  # fmt: skip
            self.store.reader.fill(
                [offset], [page_of(page.key, record.page_bytes)], page_bytes=record.page_bytes
            )
            self.loading.append((reservation, page))
        if land:
            self.land()

    @rule()
    def land(self) -> None:
        for reservation, page in self.loading:
            status, _ = self.store.publish_loaded(reservation, page)
            if status == PutStatus.STORED:
                self._published(page.key, page.parent, page.namespace, page.stamp, 0)
        self.loading.clear()

    @rule()
    def call_loads_off(self) -> None:
        self.store.abort(self.store.own_row, [reservation for reservation, _ in self.loading])
        self.loading.clear()

    @rule(which=st.integers(0, 1000))
    def pin(self, which: int) -> None:
        """Of what puts have stored; it stays while it is pinned, whatever becomes of it."""
        if self.stored:
            instance = self.stored[which % len(self.stored)]
            page, pin = self.store.describe(instance), self.store.pin(instance)
            assert (page is None) == (pin is None)
            if page is not None and pin is not None:
                assert page.key in self.may
                self.pins.append((pin, page_of(page.key, page.payload_bytes)))

    @rule()
    def unpin(self) -> None:
        for pin, expected in self.pins:
            assert bytes(pin[0]) == expected, "BrokeWhole"
            pin.release()
        self.pins.clear()

    @rule()
    def abort_open(self) -> None:
        self.store.abort(self.store.own_row, [reservation for reservation, *_ in self.open])
        self.open.clear()

    @rule(which_branch=CHAINS)
    def hide_page(self, which_branch: tuple[int, list[int]]) -> None:
        key = self._chain(*which_branch)[-1]
        self.store.hide_pages([key])
        self.hidden[key] = self.store.stamp().revision
        self._forget({key})

    @rule(which=st.integers(0, 1))
    def hide_namespace(self, which: int) -> None:
        identity = self.records[which].id
        self.store.hide_namespace(identity)
        self.hidden[PageKey(bytes(identity))] = self.store.stamp().revision
        self._forget({key for key, (_, namespace, _) in self.may.items() if namespace == identity})

    @rule()
    def hide_all(self) -> None:
        self.store.hide_all()
        self.hidden[ALL] = self.store.stamp().revision
        self.may.clear()

    @rule(seconds=st.integers(1, 1500))
    def expire(self, seconds: int) -> None:
        self.clock.advance(seconds * SECOND_NS)
        self.store.tick()
        now_ns = self.clock.now_ns() - SECOND_NS  # the entry's expiry is rounded up to a second
        self._forget({key for key, (_, _, expiry) in self.may.items() if expiry and expiry <= now_ns})

    @rule(which_branch=CHAINS)
    def get(self, which_branch: tuple[int, list[int]]) -> None:
        record, keys = self.records[which_branch[0]], self._chain(*which_branch)
        destinations = buffers(len(keys), record.page_bytes)
        outcome = self.store.get(record.id, keys, destinations)
        pages = outcome.pages if isinstance(outcome, Hit) else 0
        for key, page in zip(keys[:pages], destinations, strict=False):
            assert key in self.may, "a hidden, expired or never stored page was served"
            assert bytes(page) == page_of(key, record.page_bytes), "BrokeWhole"
        if not self._evictions():
            expiring = {key for key, (_, _, expiry) in self.may.items() if expiry}
            expected = next((i for i, key in enumerate(keys) if key not in self.may), len(keys))
            if not expiring & set(keys[:expected]):
                assert pages == expected

    def _evictions(self) -> int:
        figures = self.store.statistics()
        return figures["evictions_capacity"] + figures["evictions_segment"]

    def _forget(self, gone: set[PageKey]) -> None:
        gone &= self.may.keys()
        while grown := {key for key, (parent, *_) in self.may.items() if parent in gone} - gone:
            gone |= grown
        for key in gone:
            del self.may[key]

    @invariant()
    def holds_together(self) -> None:
        self.store.check_invariants()
        figures = self.store.statistics()
        missed = sum(pages for name, pages in figures.items() if name.startswith("missed_pages_"))
        served = figures["l1_pages"] + figures["l2_pages"] + figures["l3_pages"]
        assert figures["requested_pages"] == served + missed, "I7"
        assert figures["entries_visible"] <= len(self.may)


def test_the_store_agrees_with_a_model() -> None:
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(max_examples=60, stateful_step_count=40, deadline=None, database=None),
    )
