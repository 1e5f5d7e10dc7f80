"""Pins and tenants' shares under any order of calls, against a model that knows the rules and not how victims are found."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache_l2._native import Lease
from kv_types.outcomes import PutStatus, RefuseReason
from tests.support.native_arena import PAGE, NativeArena, chain, now_ns

SLOTS = 256
SMALL, LARGE = PAGE, 4 * PAGE
TENANTS = 3
SHARES = {0: 0, 1: 96 * PAGE, 2: 64 * PAGE}
QUOTA = 48 * PAGE
SECOND_NS = 1_000_000_000
CHAIN_PAGES = 24
CHAINS_EACH = 8
CHAINS = {
    (tenant, number): chain(f"{tenant}-{number % 3}/{number}", CHAIN_PAGES)
    for tenant in range(TENANTS)
    for number in range(CHAINS_EACH)
}
WHICH = st.tuples(st.integers(0, TENANTS - 1), st.integers(0, CHAINS_EACH - 1))
DEPTH = st.integers(1, CHAIN_PAGES)


@dataclass
class KnownPage:
    """A resident page as the model has it."""

    tenant: int
    parent: bytes | None
    size: int


@dataclass
class Before:
    """What was resident before a call, and how many bytes each tenant had."""

    pages: dict[bytes, KnownPage]
    used: list[int] = field(default_factory=lambda: [0] * TENANTS)


class KeptMachine(RuleBasedStateMachine):
    """Puts, pins, invalidations, leases and time; after each call what went is held against what may go."""

    large_tenants: frozenset[int] = frozenset()
    """Tenants whose pages are large: with some, segments move."""

    @initialize()
    def begin(self) -> None:
        self.world = NativeArena(slots=SLOTS, entries=1024, leases_per_row=256)
        self.world.arena.set_pin_quota(QUOTA)
        self.world.arena.set_tenant_shares([SHARES[1], SHARES[2]])
        for tenant in range(TENANTS):
            self.world.arena.set_tenant(tenant, tenant)
        self.pages: dict[bytes, KnownPage] = {}
        self.pinned: dict[bytes, int] = {}
        self.pins: list[list[bytes]] = []
        self.leases: list[tuple[Lease, list[bytes]]] = []
        self.scanned = 0

    def size_of(self, tenant: int) -> int:
        return LARGE if tenant in self.large_tenants else SMALL

    # --- what the model knows ---

    def before(self) -> Before:
        known = Before(dict(self.pages))
        for page in self.pages.values():
            known.used[page.tenant] += page.size
        return known

    def leaves(self) -> set[bytes]:
        return self.pages.keys() - {page.parent for page in self.pages.values()}

    def took(self, before: Before, taker: int | None) -> set[bytes]:
        """Bring the model up to date with what is gone; only what may go for `taker`'s sake may be (None: nobody's)."""
        gone = {key for key in before.pages if self.world.arena.find(key) is None}
        for key in gone:
            self.pages.pop(key, None)
        assert taker is not None or not gone
        assert not gone & self.pinned.keys(), "a pinned page went"
        assert not any(page.parent in gone for page in self.pages.values()), "an orphan stayed"
        now = self.before().used
        for owner in {before.pages[key].tenant for key in gone} - {taker, 0}:
            assert now[owner] >= SHARES[owner], f"tenant {owner} was evicted below its share for another"
        return gone

    def may_still_go(self, taker: int, spared: set[bytes], *, own: bool) -> list[bytes]:
        """Leaves of the taker's size that could have been evicted for it: nobody's of a share, pinned, leased or spared."""
        held = {key for _, keys in self.leases for key in keys} | spared | self.pinned.keys()
        used = self.before().used
        size = self.size_of(taker)
        found = []
        for key in self.leaves() - held:
            page = self.pages[key]
            if page.size != size or (page.tenant == taker and not own):
                continue
            if page.tenant in (0, taker) or used[page.tenant] - size >= SHARES[page.tenant]:
                found.append(key)
        return found

    def put(self, tenant: int, keys: list[bytes]) -> None:
        size, before = self.size_of(tenant), self.before()
        outcomes = self.world.put(keys, namespace=tenant, page_bytes=size)
        parent: bytes | None = None
        stored = []
        for key, (status, reason) in zip(keys, outcomes, strict=True):
            if status == PutStatus.REFUSED:
                assert reason in (RefuseReason.FULL, RefuseReason.BUSY), (
                    "only for want of room, or for a page on its way"
                )
                break
            if key not in self.pages:
                self.pages[key] = KnownPage(tenant, parent, size)
                stored.append(key)
            parent = key
        after = {key: page for key, page in before.pages.items() if key not in stored}
        gone = self.took(Before(after, before.used), tenant)
        refused = any(status == PutStatus.REFUSED for status, _ in outcomes)
        chain_so_far = set(keys)
        if refused and not self.large_tenants:
            assert not self.may_still_go(tenant, chain_so_far, own=True), "refused though something might go"
        owns = [key for key in gone if before.pages[key].tenant == tenant]
        is_owed = before.used[tenant] + len(stored) * size <= SHARES[tenant]
        if owns and is_owed and not self.large_tenants:
            assert not self.may_still_go(tenant, chain_so_far, own=False), (
                "its own went, though others' might"
            )

    # --- calls ---

    @rule(which=WHICH, depth=DEPTH)
    def put_chain(self, which: tuple[int, int], depth: int) -> None:
        self.put(which[0], CHAINS[which][:depth])

    @rule(tenant=st.integers(0, TENANTS - 1), pages=st.integers(1, 40))
    def scan(self, tenant: int, pages: int) -> None:
        for _ in range(pages):
            self.scanned += 1
            self.put(tenant, chain(f"scan{self.scanned}", 1))

    @precondition(lambda self: len(self.pins) < 6)
    @rule(which=WHICH, depth=DEPTH)
    def pin(self, which: tuple[int, int], depth: int) -> None:
        keys = CHAINS[which][:depth]
        size = self.size_of(which[0])
        new = [key for key in keys if key not in self.pinned]
        charged = sum(self.size_of(self.tenant_of(key)) for key in self.pinned)
        fits = charged + len(new) * size <= QUOTA
        assert self.world.arena.pin(keys=b"".join(keys), payload_bytes=size) == fits
        if fits:
            self.pins.append(keys)
            for key in keys:
                self.pinned[key] = self.pinned.get(key, 0) + 1

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        keys = self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1)))
        self.world.arena.unpin(keys=b"".join(keys))
        for key in keys:
            self.pinned[key] -= 1
            if not self.pinned[key]:
                del self.pinned[key]

    @precondition(lambda self: len(self.leases) < 4)
    @rule(which=WHICH, depth=DEPTH)
    def lease(self, which: tuple[int, int], depth: int) -> None:
        keys = CHAINS[which][:depth]
        lease = self.world.reader.lease(0, b"".join(keys), namespace=which[0])
        self.leases.append((lease, keys[: lease.pages]))

    @precondition(lambda self: self.leases)
    @rule()
    def release(self) -> None:
        self.leases.pop(0)[0].release()

    @rule(which=WHICH, depth=DEPTH)
    def invalidate(self, which: tuple[int, int], depth: int) -> None:
        """Takes the page with all that stands on it, pinned or not, whatever the share."""
        top = CHAINS[which][depth - 1]
        named = {top} & self.pages.keys()
        while more := {key for key, page in self.pages.items() if page.parent in named} - named:
            named |= more
        assert self.world.hide(top) == len(named)
        for key in named:
            assert self.world.arena.find(key) is None
            del self.pages[key]

    def tenant_of(self, key: bytes) -> int:
        return next(which[0] for which, keys in CHAINS.items() if key in keys)

    # --- what holds at any time ---

    @invariant()
    def everything_adds_up(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.arena.check_invariants()
        self.took(self.before(), None)
        told = self.world.arena.pin_statistics()
        assert told["keys"] == len(self.pinned)
        assert told["held_pages"] == len(self.pinned.keys() & self.pages.keys())
        used = self.before().used
        assert [one["used_bytes"] for one in self.world.arena.tenant_statistics()] == used

    def teardown(self) -> None:
        """With nothing pinned or leased any more, everybody without a share has what the shares in use leave."""
        if not hasattr(self, "world"):
            return
        while self.leases:
            self.leases.pop()[0].release()
        for keys in self.pins:
            self.world.arena.unpin(keys=b"".join(keys))
        self.pinned.clear()
        if not self.large_tenants:
            for _ in range(SLOTS):
                self.scan(0, 1)
            used = self.before().used
            assert all(used[tenant] <= SHARES[tenant] for tenant in (1, 2))
            assert sum(used) == SLOTS * PAGE
        self.world.reader.close()
        self.world.arena.close()


class SegmentsMachine(KeptMachine):
    """One tenant's pages are four times as large, so that room for it is made of whole segments."""

    large_tenants = frozenset({2})

    @rule(seconds=st.sampled_from([1, 11]))
    def time_passes(self, seconds: int) -> None:
        """Segments that are held too long keep their class."""
        self.world.arena.expire(now_ns() + seconds * SECOND_NS)


_SETTINGS = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestKept = KeptMachine.TestCase
TestKept.settings = _SETTINGS
TestKept = pytest.mark.timeout(120)(TestKept)
TestSegments = SegmentsMachine.TestCase
TestSegments.settings = _SETTINGS
TestSegments = pytest.mark.timeout(120)(TestSegments)
