"""The planner of loads, explored: requests, answers of L3, places, puts, evictions and time in any order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kv_types.ids import NamespaceId, PageKey
from kv_types.loading import ComputeCost
from kv_types.outcomes import MissReason
from sidecar.l3 import plan
from sidecar.l3.planner import Planner

SPACE = NamespaceId(b"n" * 32)
SIZE = 10
MS = 1_000_000
BOUNDS = plan.Bounds(
    requests=4, pages=14, flights=4, flight_bytes=3 * SIZE, run_pages=2, probe_pages=4, absent_pages=8,
    absent_ns=20 * MS, put_awaited_ns=10 * MS, sent_ns=15 * MS,
)  # fmt: skip


def key(name: str) -> PageKey:
    """A page's key, readable."""
    return PageKey(name.encode().ljust(32, b"."))


CHAINS = [
    [key(f"a{i}") for i in range(7)],
    [key(f"a{i}") for i in range(3)] + [key(f"b{i}") for i in range(3, 7)],
    [key(f"c{i}") for i in range(5)],
]
PARENTS = {
    one: (chain[at - 1] if at else None) for chain in CHAINS for at, one in reversed(list(enumerate(chain)))
}
FAILURES = [MissReason.ABSENT, MissReason.INVALIDATED, MissReason.L3_UNAVAILABLE, MissReason.DEADLINE]


@dataclass
class Open:
    """A request that the world waits for, and what happened since it was asked."""

    rows: list[tuple[PageKey, ...]]
    deadline_ns: int
    is_group: bool
    told: set[PageKey]
    """Pages that were resident at its beginning or became it since."""
    is_weighed: bool = False
    """Whether it says what computing its pages takes."""
    loaded: set[PageKey] = field(default_factory=set)


class PlannerMachine(RuleBasedStateMachine):
    """Plays the shell, L3, the arena and everybody who asks."""

    def __init__(self) -> None:
        super().__init__()
        self.planner = Planner(BOUNDS)
        self.now_ns = 1_000 * MS
        self.requests = 0
        self.open: dict[int, Open] = {}
        self.resident: set[PageKey] = set()
        self.probes: dict[int, plan.Probe] = {}
        self.flights: dict[int, PageKey] = {}
        self.landed: set[int] = set()
        self.orphans: set[int] = set()
        self.ends: Counter[int] = Counter()
        self.is_closing = False
        self.place = "given"
        self.being_put: dict[PageKey, int] = {}

    # --- the shell ---

    def do(self, event: plan.Event) -> None:
        events = [event]
        while events:
            for action in self.planner.step(events.pop(0)):
                events += self.carry_out(action)

    def carry_out(self, action: plan.Action) -> list[plan.Event]:
        match action:
            case plan.Probe():
                assert 1 <= len(action.pages) <= BOUNDS.probe_pages
                self.probes[action.probe] = action
            case plan.Fetch():
                return self.fetch(action)
            case plan.Publish(flight):
                return [self.publish(flight)]
            case plan.GiveBack(flight):
                self.end(flight)
            case plan.Answer():
                self.check_answer(action)
        return []

    def fetch(self, action: plan.Fetch) -> list[plan.Event]:
        events: list[plan.Event] = []
        stopped = False
        parent = action.parent
        for one, flight in zip(action.keys, action.flights, strict=True):
            assert PARENTS[one] == parent, "a run is consecutive"
            parent = one
            under_way = [number for number, other in self.flights.items() if other == one]
            assert set(under_way) <= self.orphans, "one fetch a page"
            if stopped:
                events.append(plan.NotTried(flight))
            elif one in self.resident:
                events.append(plan.AlreadyThere(flight))
                self.told_resident(one)
            elif self.place == "given":
                self.flights[flight] = one
            else:
                stopped = True
                refused = (
                    plan.BeingPut(flight) if self.place == "put" else plan.NoPlace(flight, MissReason.NO_ROOM)
                )
                events.append(refused)
                if self.place == "put":
                    self.being_put[one] = self.now_ns + BOUNDS.put_awaited_ns
        return events

    def publish(self, flight: int) -> plan.Event:
        one = self.flights[flight]
        assert flight in self.landed, "only what has arrived"
        assert flight not in self.orphans, "never what is resident as far as was told"
        self.end(flight)
        parent = PARENTS[one]
        if one in self.resident:
            self.told_resident(one)
            return plan.NotPublished(flight, MissReason.NONE)
        if parent is not None and parent not in self.resident:
            return plan.NotPublished(flight, MissReason.ABSENT)
        if self.place == "put":
            self.being_put[one] = self.now_ns + BOUNDS.put_awaited_ns
            return plan.BeingPut(flight)
        if self.place == "refused":
            return plan.NotPublished(flight, MissReason.INVALIDATED)
        self.resident.add(one)
        self.told_resident(one)
        for request in self.open.values():
            request.loaded.add(one)
        return plan.Published(flight)

    def end(self, flight: int) -> None:
        del self.flights[flight]
        self.landed.remove(flight)
        self.ends[flight] += 1
        assert self.ends[flight] == 1, "a place is given back once"

    def told_resident(self, one: PageKey) -> None:
        above: PageKey | None = one
        self.being_put.pop(one, None)
        while above is not None:  # what stands below a resident page is resident
            for request in self.open.values():
                request.told.add(above)
            above = PARENTS[above]

    def check_answer(self, action: plan.Answer) -> None:
        request = self.open.pop(action.request)
        assert len(action.rows) == len(request.rows)
        if request.is_group:
            assert len({row.pages for row in action.rows}) == 1
        for keys, row in zip(request.rows, action.rows, strict=True):
            if row.reason in (MissReason.STALE, MissReason.CLOSED):
                assert row.pages == 0
                continue
            assert row.pending == 0
            assert (row.reason is MissReason.NONE) == (row.pages == len(keys))
            assert request.is_weighed or row.reason is not MissReason.COMPUTE_IS_FASTER
            assert all(one in request.told for one in keys[: row.pages]), "never what was hoped"
            loaded = [at for at in range(row.pages) if keys[at] in request.loaded]
            assert row.from_l3 == (loaded[0] if loaded else row.pages)

    # --- what happens ---

    @rule(
        picks=st.lists(
            st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(1, 7)), min_size=1, max_size=3
        ),
        patience_ms=st.integers(1, 60),
        is_group=st.booleans(),
        is_waited=st.booleans(),
        page_ms=st.none() | st.integers(1, 20),
    )
    def ask(
        self,
        picks: list[tuple[int, int, int]],
        patience_ms: int,
        is_group: bool,
        is_waited: bool,
        page_ms: int | None,
    ) -> None:
        rows, asked = [], []
        for chain, start, length in picks:
            keys = tuple(CHAINS[chain][start : start + length])
            parent = PARENTS[keys[0]]
            is_reachable = parent is None or parent in self.resident
            resident = 0
            while is_reachable and resident < len(keys) and keys[resident] in self.resident:
                resident += 1
            rows.append(keys)
            asked.append(
                plan.AskedRow(
                    namespace=SPACE, parent=parent, keys=b"".join(keys), page_bytes=SIZE, resident=resident,
                    ended_by=MissReason.NONE if is_reachable else MissReason.ABSENT,
                )
            )  # fmt: skip
        self.requests += 1
        deadline_ns = self.now_ns + patience_ms * MS
        told = {one for keys, row in zip(rows, asked, strict=True) for one in keys[: row.resident]}
        for one in told:
            self.told_resident(one)
        self.open[self.requests] = Open(rows, deadline_ns, is_group, told, is_weighed=page_ms is not None)
        self.do(
            plan.Asked(
                request=self.requests, rows=tuple(asked), deadline_ns=deadline_ns, is_group=is_group, now_ns=self.now_ns,
                compute=None if page_ms is None else ComputeCost(page_ms / 1000),
            )
        )  # fmt: skip
        if is_waited:
            self.do(plan.Waited(self.requests))
        assert not (self.is_closing and self.open)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[number]
        self.do(plan.GivenUp(number))
        assert self.planner.so_far(number) is None

    @precondition(lambda self: self.probes)
    @rule(data=st.data(), good=st.integers(0, 4), failure=st.sampled_from(FAILURES))
    def l3_answers(self, data: st.DataObject, good: int, failure: MissReason) -> None:
        probe = self.probes.pop(data.draw(st.sampled_from(sorted(self.probes))))
        results = [MissReason.NONE] * min(good, len(probe.pages))
        results += [failure] * (len(probe.pages) - len(results))
        if failure is MissReason.DEADLINE and good < len(probe.pages):
            self.pass_time(max(0, probe.deadline_ns - self.now_ns))
        self.do(plan.Probed(probe.probe, tuple(results), self.now_ns))

    @precondition(lambda self: set(self.flights) - self.landed)
    @rule(
        data=st.data(), is_good=st.sampled_from([True, True, True, False]), failure=st.sampled_from(FAILURES)
    )
    def lands(self, data: st.DataObject, is_good: bool, failure: MissReason) -> None:
        flight = data.draw(st.sampled_from(sorted(set(self.flights) - self.landed)))
        self.landed.add(flight)
        self.do(plan.Arrived(flight, MissReason.NONE if is_good else failure, self.now_ns))

    @rule(place=st.sampled_from(["given", "given", "given", "put", "none", "refused"]))
    def places(self, place: str) -> None:
        self.place = place

    @rule(chain=st.integers(0, 2), length=st.integers(1, 7), is_heard=st.booleans())
    def somebody_puts(self, chain: int, length: int, is_heard: bool) -> None:
        for one in CHAINS[chain][:length]:
            self.resident.add(one)
        if not is_heard:
            return
        keys = tuple(CHAINS[chain][:length])
        for one in keys:
            self.told_resident(one)
        self.orphans |= {flight for flight, one in self.flights.items() if one in keys}
        self.do(plan.BecameResident(keys))

    @precondition(lambda self: self.resident)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        tails = sorted(self.resident - {PARENTS[one] for one in self.resident})
        self.resident.remove(data.draw(st.sampled_from(tails)))

    @rule(ms=st.integers(1, 30))
    def time_passes(self, ms: int) -> None:
        self.pass_time(ms * MS)

    def pass_time(self, delta_ns: int) -> None:
        self.now_ns += delta_ns
        while (due_ns := self.planner.due_ns) is not None and due_ns <= self.now_ns:
            self.do(plan.TimeCame(self.now_ns))
        self.being_put = {one: until for one, until in self.being_put.items() if until > self.now_ns}
        for request in self.open.values():
            assert request.deadline_ns > self.now_ns, "answered at its deadline at the latest"

    @rule(chain=st.integers(0, 2))
    def stored_there(self, chain: int) -> None:
        self.do(plan.StoredThere(tuple(CHAINS[chain])))

    @rule()
    def becomes_stale(self) -> None:
        self.do(plan.BecameStale())
        assert not self.open

    @precondition(lambda self: self.requests > 3)
    @rule(really=st.integers(0, 9))
    def close(self, really: int) -> None:
        if really == 0:
            self.is_closing = True
            self.do(plan.Closing())
            assert not self.open

    # --- what always holds ---

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if not self.open or self.probes or set(self.flights) - self.landed:
            return
        wanted = {one for request in self.open.values() for keys in request.rows for one in keys}
        assert wanted & self.being_put.keys(), "a put is awaited, or else there is nothing to wait for"

    @invariant()
    def bounded(self) -> None:
        figures = self.planner.statistics()
        assert figures["requests"] == len(self.open) <= BOUNDS.requests
        assert figures["flights"] == len(self.flights) <= BOUNDS.flights
        assert figures["flight_bytes"] == len(self.flights) * SIZE <= BOUNDS.flight_bytes
        assert figures["pages"] <= BOUNDS.pages
        assert figures["probes_in_flight"] == len(self.probes)

    def teardown(self) -> None:
        """When L3 has answered everything and nobody asks any more, nothing is left."""
        for number in list(self.open):
            self.do(plan.GivenUp(number))
        self.open.clear()
        while self.probes:
            _, probe = self.probes.popitem()
            self.do(plan.Probed(probe.probe, (MissReason.NONE,) * len(probe.pages), self.now_ns))
        for flight in sorted(set(self.flights) - self.landed, reverse=True):
            if flight in self.flights:
                self.landed.add(flight)
                self.do(plan.Arrived(flight, MissReason.NONE, self.now_ns))
        figures = self.planner.statistics()
        left = ("requests", "pages", "flights", "flight_bytes", "probes_in_flight")
        assert [figures[name] for name in left] == [0] * len(left)
        assert self.planner.due_ns is None


PlannerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestPlannerMachine = PlannerMachine.TestCase
