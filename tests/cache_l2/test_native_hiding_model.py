"""Hiding and counting step by step against a naive twin, while pages come, go and are leased between the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache_l2._native import Lease
from kv_types.outcomes import PutStatus, RefuseReason
from tests.support.native_arena import (
    PROVENANCE_OVERFLOW,
    UNBOUNDED,
    UNKNOWN_INSTANCE,
    NativeArena,
    Selection,
    now_ns,
    payload,
    selection,
)

STORED = (PutStatus.STORED, RefuseReason.NONE)
NAMESPACES, FAN, DEPTH = 3, 2, 5
PAGE_BYTES, SLOTS = 32 * 1024, 32


def key_of(path: tuple[int, ...]) -> bytes:
    return blake2b(repr(path).encode(), digest_size=32).digest()


PATHS = st.lists(st.integers(0, FAN - 1), min_size=1, max_size=DEPTH).flatmap(
    lambda steps: st.integers(0, NAMESPACES - 1).map(lambda namespace: (namespace, *steps))
)
"""Namespace, then which child at each depth."""
TIMES = st.sampled_from([(0, 0), (10, 20), (15, 35), (30, 40), (0, 25)])
BOUNDS = st.sampled_from([0, 12, 22, 33, UNBOUNDED])
NUMBERS = st.none() | st.sets(st.integers(0, 3))
PRODUCERS = st.sampled_from([0, 1, 2, PROVENANCE_OVERFLOW])


@dataclass(frozen=True)
class Known:
    """What the twin knows of one instance of a page."""

    path: tuple[int, ...]
    producer: int
    times: tuple[int, int]
    revision: int
    lineage_known: bool


def lies_in(number: int, numbers: bytes | None) -> bool:
    return numbers is None or bool(int.from_bytes(numbers, "little") >> number & 1)


def names_itself(which: Selection, page: Known) -> bool:
    """Whether a page is named by what it is itself, its ancestors left out."""
    if not lies_in(page.path[0], which["namespaces"]):
        return False
    if which["key"] is not None and which["key"] not in [key_of(page.path[:n]) for n in range(2, DEPTH + 2)]:
        return False
    if not page.lineage_known:
        return True
    begun, ended = page.times
    return (
        (page.producer == PROVENANCE_OVERFLOW or lies_in(page.producer, which["provenances"]))
        and (not ended or ended >= which["since_ms"])
        and (not begun or begun <= which["until_ms"])
        and which["since_revision"] <= page.revision <= which["until_revision"]
    )


@dataclass
class Hide:
    """A selection being hidden: its next cursor, and the instances that were named when it began."""

    which: Selection
    cursor: int
    named: set[int]


@dataclass
class Count:
    """A selection being counted: what it must, and what it may count."""

    which: Selection
    cursor: int
    must: set[int]
    may: set[int]
    pages: int = 0


class HidingMachine(RuleBasedStateMachine):
    """Puts (which evict), late commits, leases, expiries, and hides and counts that go on one step at a time."""

    @initialize()
    def begin(self) -> None:
        self.world = NativeArena(slots=SLOTS, page_bytes=PAGE_BYTES, entries=64, leases_per_row=256)
        self.known: dict[int, Known] = {}
        self.here: dict[tuple[int, ...], int] = {}  # instance of each visible page, by path
        self.hides: list[Hide] = []
        self.counts: list[Count] = []
        self.pending: list[tuple[tuple[int, ...], int]] = []
        self.leases: list[tuple[Lease, list[bytes]]] = []

    def instance(self, path: tuple[int, ...]) -> int | None:
        found = self.world.arena.find(key_of(path))
        if found is None:
            return None
        assert isinstance(found["generation"], int)
        assert isinstance(found["entry"], int)
        return (found["generation"] & 0xFFFFFFFF) << 32 | found["entry"] + 1

    def look_around(self) -> None:
        """Ask the arena which pages are visible; what came since is noted by whoever put it."""
        paths = {page.path for page in self.known.values()}
        seen = {path: self.instance(path) for path in paths}
        self.here = {path: instance for path, instance in seen.items() if instance is not None}
        for count in self.counts:
            count.must &= set(self.here.values())
            count.may |= {one for path, one in self.here.items() if self.is_named(count.which, path)}

    def ancestors(self, path: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Path and every path above it."""
        return [path[:n] for n in range(2, len(path) + 1)]

    def is_named(self, which: Selection, path: tuple[int, ...]) -> bool:
        return any(names_itself(which, self.known[self.here[one]]) for one in self.ancestors(path))

    def note(
        self, path: tuple[int, ...], instance: int, origin: tuple[int, tuple[int, int], int, int]
    ) -> None:
        """A page became visible: what is its lineage?"""
        producer, times, revision, rests_on = origin
        above = {self.instance(one) for one in self.ancestors(path)[:-1]}
        page = Known(path, producer, times, revision, rests_on == 0 or rests_on in above)
        self.known[instance] = page
        found = self.world.arena.find(key_of(path))
        assert found is not None
        assert found["lineage_unknown"] == (not page.lineage_known)

    def commit(
        self, pending: list[tuple[tuple[int, ...], int]], origin: tuple[int, tuple[int, int], int, int]
    ) -> None:
        producer, times, revision, rests_on = origin
        ids = [reservation for _, reservation in pending]
        asked = self.world.arena.lineage_known(row=self.world.row, reservations=ids, rests_on=rests_on)
        outcomes = self.world.commit(
            ids, producer=producer, computed_ms=times, revision=revision, rests_on=rests_on
        )
        for (path, reservation), outcome, said in zip(pending, outcomes, asked, strict=True):
            if outcome == STORED:
                instance = (reservation + (1 << 32)) % 2**64
                self.note(path, instance, origin)
                assert self.known[instance].lineage_known == said
        self.look_around()

    def rests_on(self, data: st.DataObject, path: tuple[int, ...]) -> int:
        chain = [self.here[one] for one in self.ancestors(path) if one in self.here]
        return data.draw(st.sampled_from([0, UNKNOWN_INSTANCE, *chain, *self.here.values()]))

    @rule(
        path=PATHS,
        producer=PRODUCERS,
        times=TIMES,
        revision=st.integers(0, 3),
        data=st.data(),
        late=st.booleans(),
    )
    def put(
        self, path: tuple[int, ...], producer: int, times: tuple[int, int], revision: int,
        data: st.DataObject, late: bool,
    ) -> None:  # fmt: skip
        rests_on = self.rests_on(data, path)
        paths = self.ancestors(path)
        answers = self.world.reserve([key_of(one) for one in paths], namespace=path[0])
        self.look_around()  # it may have evicted
        reserved = []
        for one, answer in zip(paths, answers, strict=True):
            if answer.status != PutStatus.STORED:
                continue
            self.world.reader.fill([answer.offset], [payload(key_of(one), PAGE_BYTES)], page_bytes=PAGE_BYTES)
            reserved.append((one, answer.reservation))
        if late:
            self.pending += reserved
        else:
            self.commit(reserved, (producer, times, revision, rests_on))

    @precondition(lambda self: self.pending)
    @rule(producer=PRODUCERS, times=TIMES, revision=st.integers(0, 3), data=st.data())
    def commit_late(self, producer: int, times: tuple[int, int], revision: int, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.pending)))
        pending, self.pending = self.pending[:count], self.pending[count:]
        self.commit(pending, (producer, times, revision, self.rests_on(data, pending[0][0])))

    @rule(path=PATHS)
    def lease(self, path: tuple[int, ...]) -> None:
        keys = [key_of(one) for one in self.ancestors(path)]
        lease = self.world.reader.lease(0, b"".join(keys), namespace=1)
        whole = [self.here.get(one) for one in self.ancestors(path)]
        assert lease.instances() == whole[: lease.pages]
        assert lease.instance == ([0, *lease.instances()][-1])
        self.leases.append((lease, keys))
        if len(self.leases) > 6:
            old, held = self.leases.pop(0)
            assert [bytes(view) for view in old] == [payload(key, PAGE_BYTES) for key in held[: old.pages]]
            old.release()

    @rule(
        path=st.none() | PATHS, namespaces=NUMBERS, provenances=NUMBERS, since_ms=BOUNDS, until_ms=BOUNDS,
        revisions=st.tuples(st.integers(0, 2), st.integers(1, 3) | st.just(UNBOUNDED)), plain=st.booleans(),
        work_max=st.integers(1, 12), counted=st.booleans(),
    )  # fmt: skip
    def begin_walk(
        self, path: tuple[int, ...] | None, namespaces: set[int] | None, provenances: set[int] | None, since_ms: int,
        until_ms: int, revisions: tuple[int, int], plain: bool, work_max: int, counted: bool,
    ) -> None:  # fmt: skip
        key = None if path is None else key_of(path)
        which = selection(key=key, namespaces=namespaces)
        if not plain:
            which = selection(
                key=key, namespaces=namespaces, provenances=provenances, since_ms=since_ms, until_ms=until_ms,
                since_revision=revisions[0], until_revision=revisions[1],
            )  # fmt: skip
        named = {instance for one, instance in self.here.items() if self.is_named(which, one)}
        if counted and len(self.counts) < 4:
            self.counts.append(Count(which, 0, set(named), set(named)))
            self.count_once(self.counts[-1], work_max)
        elif not counted and len(self.hides) < 4:
            self.hides.append(Hide(which, 0, named))
            self.hide_once(self.hides[-1], work_max)

    @precondition(lambda self: self.hides)
    @rule(data=st.data(), work_max=st.integers(1, 12))
    def hide_on(self, data: st.DataObject, work_max: int) -> None:
        self.hide_once(data.draw(st.sampled_from(self.hides)), work_max)

    def hide_once(self, hide: Hide, work_max: int) -> None:
        before = dict(self.here)
        allowed = {path for path in before if self.is_named(hide.which, path)}
        hide.cursor, hidden = self.world.arena.hide_step(**hide.which, cursor=hide.cursor, work_max=work_max)
        self.look_around()
        gone = {path for path, instance in before.items() if self.here.get(path) != instance}
        assert len(gone) == hidden <= work_max
        assert gone <= allowed
        if hide.cursor == -1:
            self.hides.remove(hide)
            assert not hide.named & set(self.here.values()), "what was named when it began is still there"

    @precondition(lambda self: self.counts)
    @rule(data=st.data(), work_max=st.integers(1, 12))
    def count_on(self, data: st.DataObject, work_max: int) -> None:
        self.count_once(data.draw(st.sampled_from(self.counts)), work_max)

    def count_once(self, count: Count, work_max: int) -> None:
        count.cursor, pages, size = self.world.arena.count_step(
            **count.which, cursor=count.cursor, work_max=work_max
        )
        assert size == pages * PAGE_BYTES
        assert pages <= work_max
        count.pages += pages
        if count.cursor == -1:
            self.counts.remove(count)
            assert len(count.must) <= count.pages <= len(count.may)

    @rule(path=PATHS)
    def chains(self, path: tuple[int, ...]) -> None:
        whole = b"".join(key_of(one) for one in self.ancestors(path))
        expected = whole if self.instance(path) is not None else None
        found = self.world.arena.chain(key_of(path), pages_max=len(path) - 1)
        assert found in ({whole} if expected else {whole, b""})
        if found and len(path) > 2:
            assert self.world.arena.chain(key_of(path), pages_max=len(path) - 2) is None

    @rule()
    def expire(self) -> None:
        self.world.arena.expire(now_ns())
        self.look_around()

    @invariant()
    def the_arena_agrees_with_itself(self) -> None:
        if hasattr(self, "world"):
            self.world.arena.check_invariants()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        finish: list[tuple[list[Hide] | list[Count], Callable[[int], None]]] = [
            (self.hides, lambda work: self.hide_once(self.hides[0], work)),
            (self.counts, lambda work: self.count_once(self.counts[0], work)),
        ]
        for under_way, step in finish:
            steps = 0
            while under_way:
                step(5)
                steps += 1
                assert steps < 1000, "a walk does not end"
        self.world.arena.check_invariants()
        self.leases.clear()
        self.world.reader.close()
        self.world.arena.close()


TestHidingAgainstTheTwin = HidingMachine.TestCase
TestHidingAgainstTheTwin.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHidingAgainstTheTwin = pytest.mark.timeout(120)(TestHidingAgainstTheTwin)
