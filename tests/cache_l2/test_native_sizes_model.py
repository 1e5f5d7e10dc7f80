"""Pages of several sizes in one small arena, in any order of calls: whatever moves, nothing held is touched, no page is lost."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache_l2._native import Lease
from kv_types.outcomes import PutStatus, RefuseReason
from tests.support.native_arena import FAR_NS, NativeArena, chain, now_ns, payload

SIZES = (4096, 8192, 12_288, 65_536)
CHAINS = {(size, number): chain(f"{size}-{number % 3}/{number}", 8) for size in SIZES for number in range(9)}
WHICH = st.tuples(st.sampled_from(SIZES), st.integers(0, 8))
DEPTH = st.integers(1, 8)
SECOND_NS = 1_000_000_000
HELD_MAX = 5


class SizesMachine(RuleBasedStateMachine):
    """Sixteen segments; classes come, crowd each other out, and hold on to some of their pages."""

    @initialize()
    def begin(self) -> None:
        self.world = NativeArena(slots=256, entries=512, leases_per_row=256)
        self.leases: list[tuple[Lease, int, list[bytes]]] = []
        self.reserved: list[tuple[int, list[bytes], list[int], list[int]]] = []
        self.ahead_ns = 0

    def _now(self) -> int:
        return now_ns() + self.ahead_ns

    def _namespace(self, size: int) -> int:
        return SIZES.index(size)

    @rule(which=WHICH, depth=DEPTH)
    def put(self, which: tuple[int, int], depth: int) -> None:
        size, keys = which[0], CHAINS[which][:depth]
        outcomes = self.world.put(keys, namespace=self._namespace(size), page_bytes=size)
        stored = [status in (PutStatus.STORED, PutStatus.KNOWN) for status, _ in outcomes]
        assert stored == sorted(stored, reverse=True), "what follows a page that is not there isn't either"
        assert self.world.resident(keys, namespace=self._namespace(size)) == sum(stored)
        reasons = {reason for status, reason in outcomes if status == PutStatus.REFUSED}
        assert reasons <= {RefuseReason.FULL, RefuseReason.BUSY, RefuseReason.PARENT_ABSENT}

    @precondition(lambda self: len(self.reserved) < HELD_MAX)
    @rule(which=WHICH, depth=DEPTH, gives_way=st.booleans())
    def reserve(self, which: tuple[int, int], depth: int, gives_way: bool) -> None:
        size, keys = which[0], CHAINS[which][:depth]
        answers = self.world.reserve(
            keys, namespace=self._namespace(size), page_bytes=size, now=self._now(), deadline_ns=FAR_NS,
            gives_way=gives_way,
        )  # fmt: skip
        mine = [(key, one) for key, one in zip(keys, answers, strict=True) if one.status == PutStatus.STORED]
        if mine:
            self.reserved.append(
                (
                    size,
                    [key for key, _ in mine],
                    [one.reservation for _, one in mine],
                    [one.offset for _, one in mine],
                )
            )

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), publish=st.booleans())
    def end_reservation(self, data: st.DataObject, publish: bool) -> None:
        size, keys, reservations, offsets = self.reserved.pop(
            data.draw(st.integers(0, len(self.reserved) - 1))
        )
        if publish:
            self.world.reader.fill(offsets, [payload(key, size) for key in keys], page_bytes=size)
            self.world.commit(reservations, now=self._now())
        else:
            self.world.arena.abort(row=self.world.row, reservations=reservations)

    @precondition(lambda self: len(self.leases) < HELD_MAX)
    @rule(which=WHICH, depth=DEPTH)
    def lease(self, which: tuple[int, int], depth: int) -> None:
        size, keys = which[0], CHAINS[which][:depth]
        lease = self.world.reader.lease(0, b"".join(keys), namespace=self._namespace(size))
        self.leases.append((lease, size, keys[: lease.pages]))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease, size, keys = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        assert [bytes(view) for view in lease] == [payload(key, size) for key in keys]
        lease.release()

    @rule(seconds=st.sampled_from([1, 11]))
    def time_passes(self, seconds: int) -> None:
        self.ahead_ns += seconds * SECOND_NS

    @rule(which=WHICH, depth=DEPTH)
    def hide(self, which: tuple[int, int], depth: int) -> None:
        self.world.hide(CHAINS[which][depth - 1])

    @invariant()
    def everything_adds_up(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.arena.check_invariants()
        for lease, size, keys in self.leases:
            assert [bytes(view) for view in lease] == [payload(key, size) for key in keys]

    def teardown(self) -> None:
        """With nothing held any more, any size can have the whole arena."""
        if not hasattr(self, "world"):
            return
        for lease, _, _ in self.leases:
            lease.release()
        for _, _, reservations, _ in self.reserved:
            self.world.arena.abort(row=self.world.row, reservations=reservations)
        for size in SIZES:
            for number in range(600):
                (outcome,) = self.world.put(chain(f"last{size}-{number}", 1), namespace=7, page_bytes=size)
                assert outcome == (PutStatus.STORED, RefuseReason.NONE)
        self.world.arena.check_invariants()
        self.leases.clear()
        self.world.reader.close()
        self.world.arena.close()


TestSizes = SizesMachine.TestCase
TestSizes.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestSizes = pytest.mark.timeout(120)(TestSizes)
