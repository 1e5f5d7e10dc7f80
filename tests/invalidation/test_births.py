"""Births in every reachable state of a small fleet: what travels through L3 stays known for what it was computed from.

Two nodes, a chain of two or three pages, two producers. Requests reuse what their node has, compute the rest and store it; pages
go to the shared store and come back on either node, are evicted and computed anew, in any order; then a producer's pages
are invalidated. The model holds, for each page, what its bytes truly rest on, which no rule may look at, and asks that no
page stays whose truth has a selected page in it.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import pytest

NODES = (0, 1)
PRODUCERS = ("x", "y")
Line: TypeAlias = tuple[int, ...]
"""The births of a page and of all that it stands on, from the root on; the product has them as one number."""
Truth: TypeAlias = frozenset[tuple[str, int]]
"""The (producer, stamp) of all computations that a page's bytes rest on."""
NOTHING: Line = ()
UNKNOWN: Line = (-1,)
"""What a page rests on when its request reused no page, or none that is known; else the line of one."""


class Page(NamedTuple):
    """A page in L2 or in L3."""

    producer: str
    stamp: int
    birth: int
    rests_on: Line
    truth: Truth
    is_lineage_known: bool = True
    """As its node sees it."""


Tier = tuple[Page | None, ...]
"""One place a depth."""


class Asking(NamedTuple):
    """A request that has reused and not yet stored."""

    node: int
    producer: str
    stamp: int
    reused: int
    rests_on: Line
    truth: Truth


class World(NamedTuple):
    """Everything there is. Nodes have applied every record: what is in between is the fence's to wait for."""

    nodes: tuple[Tier, Tier]
    shelf: Tier
    records: tuple[str, ...] = ()
    """The producer that each record of the log selects; its revision is its place, from 1 on."""
    request: Asking | None = None
    births: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """What this model can be run without, to see that it notices."""

    compares_births: bool = True
    """Else whatever is resident under the parent's key is taken for what the page was computed on."""
    compares_lines: bool = True
    """Else a page of the same birth is, whatever stands below it."""
    keeps_rests_on: bool = True
    """Else a record says that its page rests on nothing."""
    unknown_travels: bool = True
    """Else a page of unknown lineage is stored as one that rests on nothing."""
    judges_loads: bool = True
    """Else what the shelf has is published as it is."""


def is_selected(world: World, page: Page, *, lineage_known: bool) -> bool:
    """By a record newer than its stamp: of its producer, or of any where it is not known what else it rests on."""
    newer = world.records[page.stamp :]
    return any(not lineage_known or producer == page.producer for producer in newer)


def line(tier: Tier, depth: int) -> Line:
    """Of the last of so many pages."""
    return tuple(page.birth for page in tier[:depth] if page is not None)


def rests_on_resident(tier: Tier, depth: int, rests_on: Line, rules: Rules) -> bool:
    """Whether what a page of this depth was computed on is among what is resident above it."""
    above = line(tier, depth)
    if rules.compares_lines or rests_on in (NOTHING, UNKNOWN):
        return above[: len(rests_on)] == rests_on
    return rests_on[-1] in above


def put_in(tier: Tier, depth: int, page: Page | None) -> Tier:
    return (*tier[:depth], page, *tier[depth + 1 :])


def on_node(world: World, node: int, tier: Tier) -> World:
    nodes = (tier, world.nodes[1]) if node == 0 else (world.nodes[0], tier)
    return world._replace(nodes=nodes)


def empty(depth: int) -> World:
    tier: Tier = (None,) * depth
    return World((tier, tier), tier)


def length(tier: Tier) -> int:
    return next((depth for depth, page in enumerate(tier) if page is None), len(tier))


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far the model goes."""

    depth: int = 2
    requests: int = 3
    records: int = 1
    evicts: bool = True


def steps(world: World, rules: Rules, bounds: Bounds) -> Iterator[World]:
    if world.request is None and world.requests < bounds.requests:
        yield from beginnings(world)
    if world.request is not None:
        yield from commits(world, world.request, rules)
        yield world._replace(request=None)
    if len(world.records) < bounds.records:
        for producer in PRODUCERS:
            yield invalidated(world, producer)
    for node in NODES:
        depth = length(world.nodes[node])
        if depth and bounds.evicts:
            yield on_node(world, node, put_in(world.nodes[node], depth - 1, None))  # evicted, tail first
        yield from stores(world, node, rules)
        if depth < bounds.depth:
            yield from loads(world, node, depth, rules)


def beginnings(world: World) -> Iterator[World]:
    """A request reuses any part of what its node has. The second producer asks second: they differ by nothing else."""
    producers = PRODUCERS if world.requests else PRODUCERS[:1]
    for node in NODES if world.requests else NODES[:1]:
        tier = world.nodes[node]
        for reused in range(length(tier) + 1):
            for producer in producers:
                stamp = len(world.records)
                truth = frozenset({(producer, stamp)})
                for page in tier[:reused]:
                    assert page is not None
                    truth |= page.truth
                asking = Asking(node, producer, stamp, reused, line(tier, reused), truth)
                yield world._replace(request=asking, requests=world.requests + 1)


def commits(world: World, request: Asking, rules: Rules) -> Iterator[World]:
    """It stores the next page that its node lacks, from those that it computed."""
    tier = world.nodes[request.node]
    depth = length(tier)
    if not request.reused <= depth < len(tier):
        return
    lineage_known = rests_on_resident(tier, depth, request.rests_on, rules)
    page = Page(
        request.producer, request.stamp, world.births + 1,
        request.rests_on if lineage_known else UNKNOWN, request.truth, lineage_known,
    )  # fmt: skip
    if not is_selected(world, page, lineage_known=lineage_known):
        yield on_node(world, request.node, put_in(tier, depth, page))._replace(births=world.births + 1)


def stores(world: World, node: int, rules: Rules) -> Iterator[World]:
    """Write-behind: a page that the shelf lacks, or has in an invalid form. The page may be any of those that are resident."""
    for depth, page in enumerate(world.nodes[node]):
        if page is None:
            continue
        there = world.shelf[depth]
        if there is not None and not is_selected(world, there, lineage_known=there.rests_on == NOTHING):
            continue
        rests_on = page.rests_on
        if not rules.keeps_rests_on or (rests_on == UNKNOWN and not rules.unknown_travels):
            rests_on = NOTHING
        record = page._replace(rests_on=rests_on, is_lineage_known=True)
        if record != there:
            yield world._replace(shelf=put_in(world.shelf, depth, record))


def loads(world: World, node: int, depth: int, rules: Rules) -> Iterator[World]:
    """The page behind a node's chain comes from the shelf: judged by its own stamp and by what it rests on here."""
    record, tier = world.shelf[depth], world.nodes[node]
    if record is None:
        return
    lineage_known = rests_on_resident(tier, depth, record.rests_on, rules) or (
        not rules.compares_births and record.rests_on != UNKNOWN
    )
    if rules.judges_loads and is_selected(world, record, lineage_known=lineage_known):
        return
    yield on_node(world, node, put_in(tier, depth, record._replace(is_lineage_known=lineage_known)))


def invalidated(world: World, producer: str) -> World:
    """A record: every node hides what it selects, with what stands on it."""
    world = world._replace(records=(*world.records, producer))
    for node in NODES:
        tier = world.nodes[node]
        for depth, page in enumerate(tier):
            if page is not None and is_selected(world, page, lineage_known=page.is_lineage_known):
                world = on_node(world, node, (*tier[:depth], *(None for _ in tier[depth:])))
                break
    return world


def is_broken(world: World) -> bool:
    """Whether a page is served that rests on one that was selected since that was computed."""
    return any(
        producer in world.records[stamp:]
        for tier in world.nodes
        for page in tier
        if page is not None
        for producer, stamp in page.truth
    )


def like_it(world: World, bounds: Bounds) -> World:
    """One world for many that will go on alike.

    Names say nothing: those of births, which are numbered as they are met, and those of the two nodes. Nor does who computed
    what no record will select any more.
    """
    nodes, request, records = world.nodes, world.request, world.records
    if length(nodes[0]) < length(nodes[1]):
        nodes = (nodes[1], nodes[0])
        request = request and request._replace(node=1 - request.node)
    numbers = {-1: -1}
    for tier in (*nodes, world.shelf):
        for page in tier:
            if page is not None:
                numbers.setdefault(page.birth, len(numbers))
    gone = len(numbers)  # a birth that no page has any more: all that matters is that it is none of these
    is_last = len(records) == bounds.records

    def line_anew(rests_on: Line) -> Line:
        """One that has a birth of these no more, or that no page can have, is as good as any other such."""
        named = tuple([numbers.get(birth, gone) for birth in rests_on])
        return (gone,) * len(named) if gone in named else named

    def truth_anew(truth: Truth) -> Truth:
        return frozenset([one for one in truth if one[0] in records[one[1] :]]) if is_last else truth

    def anew(page: Page | None) -> Page | None:
        return page and Page(
            page.producer if page.stamp < bounds.records else PRODUCERS[0], page.stamp, numbers[page.birth],
            line_anew(page.rests_on), truth_anew(page.truth), page.is_lineage_known,
        )  # fmt: skip

    if request is not None:
        producer = request.producer if request.stamp < bounds.records else PRODUCERS[0]
        request = request._replace(
            producer=producer, rests_on=line_anew(request.rests_on), truth=truth_anew(request.truth)
        )
    first, second, shelf = (tuple(map(anew, tier)) for tier in (*nodes, world.shelf))
    return World((first, second), shelf, records, request, gone, world.requests)


def explore(rules: Rules, bounds: Bounds) -> tuple[int, bool]:
    """(states, whether one of them is broken); ends at the first broken one, nearest first, or with all of them seen."""
    start = empty(bounds.depth)
    seen, waiting = {start}, deque([start])
    while waiting:
        world = waiting.popleft()
        for raw in steps(world, rules, bounds):
            following = like_it(raw, bounds)
            if following in seen:
                continue
            if is_broken(following):
                return len(seen), True
            seen.add(following)
            waiting.append(following)
    return len(seen), False


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    """None of the many worlds lies in a cycle; to look for such takes longer than all else."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(depth=2, requests=3, records=1),
        Bounds(depth=3, requests=2, records=1),
        Bounds(depth=3, requests=3, records=1, evicts=False),
    ],
)
def test_nothing_is_served_that_rests_on_what_was_invalidated(bounds: Bounds) -> None:
    states, broken = explore(Rules(), bounds)
    assert states > 10_000
    assert not broken


@pytest.mark.parametrize(
    "rules",
    [
        Rules(compares_births=False),
        Rules(keeps_rests_on=False),
        Rules(unknown_travels=False),
        Rules(judges_loads=False),
    ],
)
def test_the_model_notices_what_is_taken_away(rules: Rules) -> None:
    assert explore(rules, Bounds())[1]


def test_births_alone_lose_what_stood_below_a_page_elsewhere() -> None:
    """A page that rests on nothing is computed above one's root and loaded above another's; what both gave is stored."""
    bounds = Bounds(depth=3, requests=3, records=1, evicts=False)
    assert explore(Rules(compares_lines=False), bounds)[1]
