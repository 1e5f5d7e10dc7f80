"""Two nodes that follow one log and share pages, beside an oracle that knows what each page was really computed from.

Whatever a node serves must rest on nothing that a record it has applied selects: though pages travel, are evicted and
computed again on one node and not on the other, are loaded onto others than they were computed from, and give way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import pytest

from cache_l2 import intake
from cache_l2.descriptions import page_description
from cache_l2.intake import PageIntake
from cache_l2.judging import PageJudging, Vetted
from invalidation.local_log import LocalLog
from kv_types.clock import BoottimeClock
from kv_types.events import Selected
from kv_types.ids import PageKey, Stamp
from kv_types.outcomes import PutStatus, RefuseReason
from kv_types.record import PageDescription
from kv_types.selectors import EVERYTHING, Selector
from kv_types.validity import NO_INSTANCE
from tests.support.followed_store import FollowedStore
from tests.support.pages import chain, namespace_of, packed, page_bytes_of, page_of
from tests.support.stores import MIB, add, make_store

SPACE = namespace_of("a")
SIZE = page_bytes_of(SPACE)
PRODUCERS = (b"p", b"q", b"r")
PATHS = ((0, 0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 1, 1))


@cache
def _rest_of(key: PageKey) -> bytes:
    """A page's bytes behind the number of its computation."""
    return page_of(key, SIZE)[8:]


@dataclass(frozen=True)
class Computed:
    """One computation of a page: what it is, and every computation that it rests on, itself among them."""

    number: int
    chain: tuple[PageKey, ...]
    producer: bytes
    stamp: Stamp
    rests_on: frozenset[int]


@dataclass(frozen=True)
class Going:
    """A put or a load on its way: its reservations, and what will be published in them."""

    node: int
    places: tuple[tuple[int, int], ...]
    pages: tuple[PageDescription | Computed, ...]
    stamp: Stamp
    rests_on: int


class Sharing:
    """A random history. Each put computes on what is resident at its node when it begins."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = BoottimeClock()
        log = LocalLog(clock=self.clock)
        self.nodes = [
            make_store(self.clock, log=log, arena_bytes=MIB, segment_bytes=MIB // 8) for _ in range(2)
        ]
        self.records = [add(node, SPACE) for node in self.nodes]
        self.computed: list[Computed] = []
        self.appended: list[tuple[int, Selector]] = []
        self.shelf: dict[PageKey, tuple[PageDescription, bytes]] = {}
        self.puts: list[Going] = []
        self.loads: list[Going] = []
        self.stored: list[list[int]] = [[], []]
        for node, stored in zip(self.nodes, self.stored, strict=True):
            node.on_stored = stored.extend
        self.gave_way: dict[int, int] = {}
        self.met: Counter[str] = Counter()

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    @staticmethod
    def keys(branch: Sequence[int]) -> list[PageKey]:
        parent, keys = b"root".ljust(32), []
        for turn in branch:
            (key,) = chain(1, root=parent + bytes([turn]))
            keys.append(key)
            parent = key
        return keys

    # --- puts ---

    def begin_put(self, at: int, branch: Sequence[int], producer: bytes, reuse: bool) -> None:
        """Computes what is missing; without `reuse` all of the chain, of which only what is missing is stored."""
        node, keys = self.nodes[at], self.keys(branch)
        stamp = node.stamp()
        with node.lease(SPACE.id, keys) as found:
            served = [int.from_bytes(page[:8], "little") for page in found]
            rests_on = found.instance if reuse else NO_INSTANCE
        below = (
            frozenset().union(*(self.computed[number].rests_on for number in served))
            if reuse
            else frozenset()
        )
        made: list[Computed] = []
        for index in range(len(served), len(keys)):
            number = len(self.computed)
            one = Computed(number, tuple(keys[: index + 1]), producer, stamp, below | {number})
            below = one.rests_on
            self.computed.append(one)
            made.append(one)
        rows = node.reserve(
            node.own_row,
            self.records[at],
            keys[len(served) - 1] if served else None,
            packed(keys[len(served) :]),
        )
        places = [
            (reservation, offset) for status, _, reservation, offset in rows if status == PutStatus.STORED
        ]
        first = next((i for i, row in enumerate(rows) if row[0] == PutStatus.STORED), 0)
        for (_, offset), one in zip(places, made[first:], strict=False):
            self._fill(node, offset, one.number.to_bytes(8, "little") + _rest_of(one.chain[-1]))
        if made:
            self.puts.append(Going(at, tuple(places), tuple(made[first:]), stamp, rests_on))

    def commit(self, which: int) -> None:
        put = self.puts.pop(which % len(self.puts))
        assert all(isinstance(one, Computed) for one in put.pages)
        producer = next((one.producer for one in put.pages if isinstance(one, Computed)), b"")
        self.nodes[put.node].commit(
            self.nodes[put.node].own_row, [reservation for reservation, _ in put.places],
            stamp=put.stamp, producer=producer, rests_on=put.rests_on,
        )  # fmt: skip

    def put(self, at: int, branch: Sequence[int], producer: bytes) -> None:
        before = len(self.puts)
        self.begin_put(at, branch, producer, True)
        if len(self.puts) > before:
            self.commit(len(self.puts) - 1)

    # --- sharing ---

    def write_behind(self, at: int) -> None:
        """Everything that was stored since; whatever is there is written over."""
        node = self.nodes[at]
        for instance in self.stored[at]:
            page, lease = node.describe(instance), node.pin(instance)
            assert (page is None) == (lease is None)
            if page is not None and lease is not None:
                with lease:
                    self.shelf[page.key] = page, bytes(lease[0])
        self.stored[at].clear()

    def begin_load(self, at: int, branch: Sequence[int], judged: bool) -> None:
        node, keys = self.nodes[at], self.keys(branch)
        resident, _ = node.reader.match(packed(keys), namespace=self.records[at].number)
        parent = keys[resident - 1] if resident else None
        run = []
        for key in keys[resident:]:
            if key not in self.shelf:
                break
            run.append(self.shelf[key])
        if judged:
            reasons = node.judge_probed(self.records[at], parent, [page for page, _ in run])
            run = [one for one, reason in zip(run, reasons, strict=True) if not reason]
        if not run:
            return
        rows = node.reserve_for_load(self.records[at], parent, packed([page.key for page, _ in run]))
        places = []
        for (status, _, reservation, offset), (_, payload) in zip(rows, run, strict=True):
            if status != PutStatus.STORED:
                break
            self._fill(node, offset, payload)
            places.append((reservation, offset))
        self.loads.append(Going(at, tuple(places), tuple(page for page, _ in run), node.stamp(), 0))

    def end_load(self, which: int, cancel: bool) -> None:
        load = self.loads.pop(which % len(self.loads))
        node = self.nodes[load.node]
        if cancel:
            node.abort(node.own_row, [reservation for reservation, _ in load.places])
            return
        for (reservation, _), page in zip(load.places, load.pages, strict=False):
            assert isinstance(page, PageDescription)
            status, reason = node.publish_loaded(reservation, page)
            assert (status == PutStatus.STORED) == (reason == RefuseReason.NONE)
            self.met["loads" if not reason else RefuseReason(reason).name] += 1
            if not reason:
                facts = node.inspect(page.key)
                assert facts is not None
                self.met["unknown"] += not facts.origin.lineage_known
                assert (facts.stamp, facts.origin.producer) == (page.stamp, page.producer), "its own, kept"

    def load(self, at: int, branch: Sequence[int]) -> None:
        before = len(self.loads)
        self.begin_load(at, branch, True)
        if len(self.loads) > before:
            self.end_load(len(self.loads) - 1, False)

    # --- the log, and room ---

    def invalidate(self, at: int, selector: Selector) -> None:
        """Applied by one node now, by the other when it catches up."""
        self.nodes[at].append(Selected(selector))
        self.appended.append((self.nodes[at].stamp().revision, selector))

    def evict(self, at: int, branch: Sequence[int]) -> None:
        """Takes a tail away, as for want of room: nobody else is told."""
        key = self.keys(branch)[-1]
        if self.nodes[at].inspect(key) is not None:
            list(self.nodes[at]._selecting.hiding([Selector(key=key)]))

    # --- a history ---

    def step(self) -> None:
        """One thing happens."""
        at, branch, producer = self.random.randrange(2), self._branch(), self.random.choice(PRODUCERS)
        what = self.random.choices(
            (
                "put",
                "begin_put",
                "commit",
                "load",
                "begin_load",
                "end_load",
                "invalidate",
                "catch_up",
                "evict",
            ),
            (10, 4, 4, 16, 6, 6, 2, 4, 8),
        )[0]
        match what:
            case "put":
                self.put(at, branch, producer)
            case "begin_put":
                self.begin_put(at, branch, producer, self.random.random() < 0.6)
            case "commit" if self.puts:
                self.commit(self.random.randrange(len(self.puts)))
            case "load":
                self.load(at, branch)
            case "begin_load":
                self.begin_load(at, branch, self.random.random() < 0.5)
            case "end_load" if self.loads:
                self.end_load(self.random.randrange(len(self.loads)), self.random.random() < 0.2)
            case "invalidate":
                self.invalidate(at, self._selector())
            case "catch_up":
                self.nodes[at].catch_up()
            case "evict":
                self.evict(at, branch)
        if self.random.random() < 0.5:
            self.write_behind(self.random.randrange(2))

    def _branch(self) -> Sequence[int]:
        path = self.random.choice(PATHS)
        return path[: self.random.randint(1, len(path))]

    def _selector(self) -> Selector:
        key, producer = self.keys(self._branch())[-1], self.random.choice(PRODUCERS)
        return self.random.choices(
            (
                Selector(producer=producer),
                Selector(key=key),
                Selector(key=key, producer=producer),
                EVERYTHING,
            ),
            (12, 4, 4, 1),
        )[0]

    def check(self) -> None:
        """All that must hold at any time."""
        self.what_is_served_rests_on_nothing_that_was_invalidated()
        self.the_arenas_hold_together()

    # --- what must hold ---

    def what_is_served_rests_on_nothing_that_was_invalidated(self) -> None:
        for node, record in zip(self.nodes, self.records, strict=True):
            applied = [one for one in self.appended if one[0] <= node.stamp().revision]
            for branch in PATHS:
                with node.lease(record.id, self.keys(branch)) as found:
                    for key, page in zip(self.keys(branch), found, strict=False):
                        one = self.computed[int.from_bytes(page[:8], "little")]
                        assert one.chain[-1] == key, "BrokeWhole"
                        assert bytes(page[8:]) == _rest_of(key), "BrokeWhole"
                        self._check_lineage(one, applied)

    def _check_lineage(self, served: Computed, applied: list[tuple[int, Selector]]) -> None:
        for number in served.rests_on:
            below = self.computed[number]
            for revision, selector in applied:
                is_selected = (selector.producer is None or selector.producer == below.producer) and (
                    selector.key is None or selector.key in below.chain
                )
                assert below.stamp.revision >= revision or not is_selected, (
                    f"{served} rests on {below}, which record {revision}, {selector}, selects"
                )

    def the_arenas_hold_together(self) -> None:
        for node in self.nodes:
            node.check_invariants()
            figures = node.statistics()
            missed = sum(pages for name, pages in figures.items() if name.startswith("missed_pages_"))
            assert (
                figures["requested_pages"]
                == figures["l1_pages"] + figures["l2_pages"] + figures["l3_pages"] + missed
            )
            self.met["gave_way"] += figures["gave_way"] - self.gave_way.get(id(node), 0)
            self.gave_way[id(node)] = figures["gave_way"]

    def _fill(self, node: FollowedStore, offset: int, payload: bytes) -> None:
        node.reader.fill([offset], [payload], page_bytes=SIZE)


def histories(first: int, last: int, *, steps: int = 60) -> Counter[str]:
    """Run these seeds; how often what was met that they are there to meet."""
    met: Counter[str] = Counter()
    for seed in range(first, last):
        sharing = Sharing(seed)
        try:
            for _ in range(steps):
                sharing.step()
                sharing.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        finally:
            sharing.close()
        met += sharing.met
    return met


def test_pages_that_nodes_share_rest_on_nothing_that_was_invalidated() -> None:
    met = histories(0, 60)
    assert min(met[what] for what in ("loads", "unknown", "INVALIDATED", "gave_way")) > 5, met


def _unjudged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PageIntake, "_judge_loaded", lambda *_: RefuseReason.NONE)


def _resting_on_nothing(patch: pytest.MonkeyPatch) -> None:
    def describe(*arguments: Any, **times: Any) -> PageDescription:
        return replace(page_description(*arguments, **times), rests_on=NO_INSTANCE)

    patch.setattr(intake, "page_description", describe)


def _on_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    judge = PageJudging.judge

    def lenient(self: PageJudging, page: Any, terms: Any, **rest: Any) -> RefuseReason:
        return judge(self, page, terms, **(rest | {"is_lineage_known": lambda: True}))

    patch.setattr(PageJudging, "judge", lenient)


def _by_its_own_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PageJudging, "_chain", lambda _, page: (page.key,))


def _vetted_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Vetted, "begin", lambda *_: None)


@pytest.mark.parametrize(
    "breach", [_unjudged, _resting_on_nothing, _on_whatever_is_there, _by_its_own_key, _vetted_for_ever]
)
def test_the_histories_find_what_would_break_that(
    breach: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    breach(monkeypatch)
    with pytest.raises(AssertionError, match="rests on"):
        histories(0, 60)
