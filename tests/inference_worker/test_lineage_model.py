"""Whatever a page was computed from can be found in L2's tree, or the page is marked: L1, requests and eviction at play.

L2 is a naive tree here, whose pages carry the true set of computations behind their bytes; L1 and what requests
remember are the real ones.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from cache_l1.cache import L1Cache
from inference_worker.reused import ReusedPages, Run
from kv_types.clock import ManualClock
from kv_types.ids import PageKey
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE, Instances, ObservedView
from tests.cache_l1.bench import SIZE, chain
from tests.cache_l1.fakes import ByteMemory, FakeHeader

CHAINS = [chain(5), chain(5, branch=(0, 1, 1, 1)), chain(5, branch=(0, 0, 0, 1))]
L1_PAGES = 5
Lineage = frozenset[int]


@dataclass
class Entry:
    """One page of L2: what it stands on, whose it is, and what its bytes were really computed from."""

    parent: int
    origin: int
    marked: bool
    true: Lineage


@dataclass
class Tree:
    """L2 without slots: keys, instances that never come again, and parents."""

    resident: dict[PageKey, int] = field(default_factory=dict)
    entries: dict[int, Entry] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def walk(self, keys: list[PageKey], start: int) -> list[int]:
        """Instances of keys[start:] that stand on each other, and on keys[start − 1]."""
        below = self.resident.get(keys[start - 1], -1) if start else NO_INSTANCE
        found: list[int] = []
        for key in keys[start:]:
            number = self.resident.get(key)
            if number is None or self.entries[number].parent != below:
                break
            found.append(number)
            below = number
        return found

    def ancestors(self, number: int) -> list[int]:
        above = []
        while number != NO_INSTANCE:
            above.append(number)
            number = self.entries[number].parent
        return above

    def store(self, key: PageKey, parent: int, *, origin: int, true: Lineage, rests_on: int) -> int:
        number = next(self.numbers)
        marked = rests_on not in (NO_INSTANCE, *self.ancestors(parent))
        self.entries[number] = Entry(parent, origin, marked, true)
        self.resident[key] = number
        return number

    def told(self, number: int) -> Lineage | None:
        """Every computation that the tree finds behind a page; None: any, since one of them is marked."""
        above = [self.entries[one] for one in self.ancestors(number)]
        return None if any(one.marked for one in above) else frozenset(one.origin for one in above)


@dataclass
class Request:
    """One request on one chain: the lineage of the bytes that it has of each page, and what it remembers."""

    origin: int
    keys: list[PageKey]
    view: ObservedView | None
    reused: ReusedPages = field(default_factory=ReusedPages)
    have: dict[int, Lineage] = field(default_factory=dict)
    given: dict[PageKey, Lineage] = field(default_factory=dict)

    @property
    def packed(self) -> bytes:
        return b"".join(self.keys)

    @property
    def front(self) -> int:
        """Pages that it has from the root on."""
        return next(index for index in itertools.count() if index not in self.have)

    def take(self, index: int, lineage: Lineage) -> None:
        """Bytes may come from two places; it may go on with either, and keep either of those it was given."""
        self.have[index] = self.have.get(index, frozenset()) | lineage
        self.give(self.keys[index], lineage)

    def give(self, key: PageKey, lineage: Lineage) -> None:
        self.given[key] = self.given.get(key, frozenset()) | lineage

    def compute(self, upto: int) -> None:
        """Compute each page that it has not, from all before it."""
        for index in range(upto):
            if index not in self.have:
                below = (self.have[before] for before in range(index))
                self.have[index] = frozenset({self.origin}).union(*below)


def _shared(one: list[PageKey], other: list[PageKey]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class Lineages(RuleBasedStateMachine):
    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.tree = Tree()
        self.header = FakeHeader()
        self.memory = ByteMemory(L1_PAGES, SIZE)
        self.l1 = L1Cache(capacity_pages=L1_PAGES, page_bytes=SIZE, memory=self.memory, clock=ManualClock())
        self.l1.synchronise(self.header)
        self.lineages: list[Lineage] = []
        self.origins = itertools.count(1)

    # bytes stand for their lineage

    def _bytes(self, lineage: Lineage) -> bytes:
        if lineage not in self.lineages:
            self.lineages.append(lineage)
        return self.lineages.index(lineage).to_bytes(SIZE, "little")

    @rule(target=requests, which=st.integers(0, len(CHAINS) - 1), pages=st.integers(1, 5))
    def begin(self, which: int, pages: int) -> Request:
        return self._request(which, pages)

    def _request(self, which: int, pages: int) -> Request:
        return Request(next(self.origins), CHAINS[which][:pages], self.l1.observe())

    @rule(request=requests)
    def look_into_l1(self, request: Request) -> None:
        pages = self.l1.match(request.keys)
        into = [bytearray(SIZE) for _ in pages]
        self.l1.read(pages, into)
        known = self.l1.instances(pages)
        self.l1.release(pages)
        if pages:
            numbers = known.numbers
            request.reused.found(request.packed, Run(known.life, 0, len(pages), numbers[-1], numbers))
        for index, page in enumerate(into):
            request.take(index, self.lineages[int.from_bytes(page, "little")])

    @rule(request=requests, is_behind=st.booleans(), tells_all=st.booleans())
    def look_into_l2(self, request: Request, is_behind: bool, tells_all: bool) -> None:
        start = min(request.front, len(request.keys)) if is_behind else 0
        found = self.tree.walk(request.keys, start)
        if not found:
            return
        stands_on = self.tree.entries[found[0]].parent if start else NO_INSTANCE
        numbers = found if tells_all else []
        run = Run(self.header.life, start, len(found), found[-1], numbers, stands_on)
        request.reused.found(request.packed, run)
        for index, number in enumerate(found, start):
            request.take(index, self.tree.entries[number].true)

    @rule(request=requests, which=st.integers(0, len(CHAINS) - 1), tells_all=st.booleans())
    def look_another_chain_up(self, request: Request, which: int, tells_all: bool) -> None:
        """As for another row, or for one that is given up: what the two chains share is there for both."""
        other = CHAINS[which]
        found = self.tree.walk(other, 0)
        if not found:
            return
        numbers = found if tells_all else []
        run = Run(self.header.life, 0, len(found), found[-1], numbers, NO_INSTANCE)
        request.reused.found(b"".join(other), run)
        for index, number in enumerate(found):
            true = self.tree.entries[number].true
            if index < _shared(request.keys, other):
                request.take(index, true)
            else:
                request.give(other[index], true)

    @rule(request=requests, which=st.integers(0, len(CHAINS) - 1))
    def turn_to_another_chain(self, request: Request, which: int) -> None:
        """It goes on with what the two share, as one of several samples of a prompt does."""
        shared = _shared(request.keys, CHAINS[which])
        request.keys = CHAINS[which]
        for index in [index for index in request.have if index >= shared]:
            del request.have[index]

    @rule(request=requests, start=st.integers(0, 4), whole=st.booleans())
    def put(self, request: Request, start: int, whole: bool) -> None:
        """Known pages are not sent; the rest is stored one after the other, as far as parents are there."""
        upto = len(request.keys) if whole else min(len(request.keys), start + 1)
        first = max(min(start, upto), min(len(self.tree.walk(request.keys, 0)), upto))
        request.compute(upto)
        packed = b"".join(request.keys[:upto])
        rests_on = request.reused.rests_on(packed, first=first, life=self.header.life)
        below = self.tree.resident.get(request.keys[first - 1]) if first else NO_INSTANCE
        stored: list[int] = []
        for index in range(first, upto):
            if below is None or request.keys[index] in self.tree.resident:
                break
            true = request.have[index]
            below = self.tree.store(
                request.keys[index], below, origin=request.origin, true=true, rests_on=rests_on
            )
            stored.append(below)
        if stored:
            own = Run(self.header.life, first, len(stored), stored[-1], stored)
            request.reused.stored(packed, own)

    @rule(request=requests)
    def keep_in_l1(self, request: Request) -> None:
        keys = request.keys[: request.front]
        sources = [self._bytes(request.given.get(key, request.have[index])) for index, key in enumerate(keys)]
        told = request.reused.instances(b"".join(keys))
        self.l1.insert(keys, 0, sources, view=request.view, instances=told)

    @rule(which=st.integers(0, len(CHAINS) - 1), pages=st.integers(1, 5), keeps=st.booleans())
    def serve(self, which: int, pages: int, keeps: bool) -> None:
        """The usual way from beginning to end, by a worker with this L1 or by one without."""
        request = self._request(which, pages)
        if keeps:
            self.look_into_l1(request)
        self.look_into_l2(request, True, True)
        self.put(request, min(request.front, 4), True)
        if keeps:
            self.keep_in_l1(request)

    @rule(request=consumes(requests))
    def end(self, request: Request) -> None:
        """It is over."""

    @rule(which=st.integers(0, len(CHAINS) - 1))
    def evict(self, which: int) -> None:
        """L2 evicts a tail; its page may be computed again by anybody."""
        used = {
            entry.parent
            for key, number in self.tree.resident.items()
            for entry in [self.tree.entries[number]]
        }
        for key in reversed(CHAINS[which]):
            if (number := self.tree.resident.get(key)) is not None and number not in used:
                del self.tree.resident[key]
                return

    @invariant()
    def every_page_is_found_by_what_it_was_computed_from(self) -> None:
        for number in self.tree.resident.values():
            told = self.tree.told(number)
            assert told is None or self.tree.entries[number].true <= told

    @invariant()
    def what_l1_has_is_found_by_the_instance_that_it_names(self) -> None:
        for keys in CHAINS:
            pages = self.l1.match(keys)
            into = [bytearray(SIZE) for _ in pages]
            self.l1.read(pages, into)
            numbers = self.l1.instances(pages).numbers
            self.l1.release(pages)
            behind: Lineage = frozenset()
            for number, page in zip(numbers, into, strict=True):
                behind |= self.lineages[int.from_bytes(page, "little")]
                told = None if number == UNKNOWN_INSTANCE else self.tree.told(number)
                assert told is None or behind <= told


TestLineages = Lineages.TestCase
TestLineages.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_a_model_that_can_fail() -> None:
    """An instance taken for granted hides what L1's page was computed from: the reason for all of this."""
    tree = Tree()
    root = tree.store(CHAINS[0][0], NO_INSTANCE, origin=1, true=frozenset({1}), rests_on=NO_INSTANCE)
    del tree.resident[CHAINS[0][0]]
    again = tree.store(CHAINS[0][0], NO_INSTANCE, origin=2, true=frozenset({2}), rests_on=NO_INSTANCE)
    reused = ReusedPages()
    reused.found(CHAINS[0][0], Run(FakeHeader().life, 0, 1, root, (root,)))
    wrong = tree.store(CHAINS[0][1], again, origin=3, true=frozenset({1, 3}), rests_on=again)
    told = tree.told(wrong)
    assert told is not None
    assert not tree.entries[wrong].true <= told
    assert tree.told(tree.store(CHAINS[0][1], again, origin=3, true=frozenset({1, 3}), rests_on=root)) is None


def test_the_usual_way_marks_nothing() -> None:
    """Turn by turn, with pages from both tiers: an invalidation by producer stays exact."""
    machine = Lineages()
    keys = CHAINS[0]
    first = Request(1, keys[:2], machine.l1.observe())
    machine.put(first, 0, True)
    machine.keep_in_l1(first)
    far = Request(2, keys[:4], machine.l1.observe())
    machine.look_into_l2(far, True, True)
    machine.put(far, 2, True)  # another worker goes on
    back = Request(3, keys, machine.l1.observe())
    machine.look_into_l1(back)
    machine.look_into_l2(back, True, True)
    machine.put(back, 4, True)
    machine.keep_in_l1(back)
    numbers = machine.tree.walk(keys, 0)
    assert machine.tree.told(numbers[-1]) == frozenset({1, 2, 3})
    pages = machine.l1.match(keys)
    assert machine.l1.instances(pages) == Instances(machine.header.life, tuple(numbers))
    machine.l1.release(pages)
