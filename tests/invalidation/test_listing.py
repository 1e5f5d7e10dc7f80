"""Listing in every reachable state of a small fleet: once a prefix was purged where the directory says, nothing older is left.

One sidecar, one worker with one page in one namespace, one administrator who reads the directory, appends, and reads it
again until it shows nothing new. Each step of each may come between any two of another's, and the log may begin anew once.
What is explored is the product's Listings and ListedJudge; the rest is as small as it can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from invalidation.listing import ListedJudge, Listings
from kv_types.ids import LogIncarnation, NamespaceId, Stamp
from kv_types.namespace import Namespace
from kv_types.outcomes import RefuseReason
from kv_types.selectors import Origin
from tests.support.pages import namespace_of

SPACE = namespace_of()
OTHER = NamespaceId(b"o" * 32)
LOGS = (LogIncarnation(b"0" * 16), LogIncarnation(b"1" * 16))
TIP_MAX = 3
ORIGIN = Origin(producer=b"", tags=(), from_ms=0, until_ms=0, revision=0)

Place = tuple[int, int]
"""Incarnation and revision."""


@dataclass(frozen=True, slots=True)
class World:
    """Everything there is."""

    # the log
    tip: Place = (0, 0)
    is_listed: bool = False
    selecting: frozenset[int] = frozenset()
    """Revisions of records that select the page."""
    # the sidecar
    position: Place = (0, 0)
    entered: Place | None = None
    # the worker
    is_told: bool = False
    stamp: Place | None = None
    page: Place | None = None
    """The stamp of the page that is stored."""
    # the administrator
    read: tuple[int, bool] | None = None
    appended: Place | None = None
    """The first record of the command."""
    selected: bool = False
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """What this model can be run without, to see that it notices."""

    reads_again: bool = True
    judges: bool = True
    tells_when_listed: bool = True
    begins_when_told: bool = True
    enters_before_boot: bool = True


class AtPosition:
    """The CommitJudge below: a stamp is valid in its incarnation, and no selecting record is newer."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def position(self) -> Stamp | None:
        return stamp_of(self._world.position)

    def judge(self, namespace: Namespace, stamp: Stamp, origin: Origin, chain: object) -> RefuseReason:
        del namespace, origin, chain
        position = self._world.position
        if stamp.incarnation != LOGS[position[0]] or stamp.revision > position[1]:
            return RefuseReason.STAMP_FOREIGN
        newer = any(stamp.revision < revision <= position[1] for revision in self._world.selecting)
        return RefuseReason.INVALIDATED if newer else RefuseReason.NONE

    judge_loaded = judge


def stamp_of(place: Place | None) -> Stamp | None:
    return None if place is None else Stamp(LOGS[place[0]], place[1])


def listings_of(world: World) -> Listings:
    listings = Listings()
    entered = stamp_of(world.entered)
    if entered is not None:
        listings.enter([SPACE.id], entered)
    return listings


def may_commit(world: World, rules: Rules) -> bool:
    stamp = stamp_of(world.stamp)
    assert stamp is not None
    below = AtPosition(world)
    judge = ListedJudge(below, listings_of(world)) if rules.judges else below
    return judge.judge(SPACE, stamp, ORIGIN, lambda: None) is RefuseReason.NONE


def steps(world: World, rules: Rules) -> Iterator[World]:
    yield from log_steps(world)
    yield from sidecar_steps(world, rules)
    yield from worker_steps(world, rules)
    if not world.is_done:
        yield from administrator_steps(world, rules)


def log_steps(world: World) -> Iterator[World]:
    incarnation, revision = world.tip
    if revision < TIP_MAX - 1:
        yield replace(world, tip=(incarnation, revision + 1))  # somebody's record of something else
    if not incarnation and not world.is_done:
        yield replace(world, tip=(1, 0), is_listed=False, selecting=frozenset())


def sidecar_steps(world: World, rules: Rules) -> Iterator[World]:
    listings = listings_of(world)
    if world.position[0] != world.tip[0]:
        yield from joining_steps(world, rules)
        return
    if not listings.has(SPACE.id, LOGS[world.tip[0]]):
        yield replace(world, is_listed=True, entered=world.tip)
    if world.position < world.tip:
        position = (world.position[0], world.position[1] + 1)
        hidden = world.page is not None and position[1] in world.selecting and world.page[1] < position[1]
        yield replace(world, position=position, page=None if hidden else world.page)
    if not world.is_told and (
        not rules.tells_when_listed or listings.lists(SPACE.id, stamp_of(world.position))
    ):
        yield replace(world, is_told=True)


def joining_steps(world: World, rules: Rules) -> Iterator[World]:
    """Another incarnation: enter what is registered and read the log, in the order of the rule; every page goes."""
    tip = world.tip
    if rules.enters_before_boot:
        if world.entered is None or world.entered[0] != tip[0]:
            yield replace(world, is_listed=True, entered=tip)
        else:
            yield replace(world, position=tip, page=None)
    else:
        yield replace(world, position=tip, page=None)


def worker_steps(world: World, rules: Rules) -> Iterator[World]:
    if world.is_told or not rules.begins_when_told:
        yield replace(world, stamp=world.position)
    if world.stamp is not None and world.page is None and may_commit(world, rules):
        yield replace(world, page=world.stamp)


def administrator_steps(world: World, rules: Rules) -> Iterator[World]:
    yield replace(world, read=(world.tip[0], world.is_listed))
    if world.read is None:
        return
    incarnation, saw = world.read
    if incarnation != world.tip[0] or (world.appended is not None and world.appended[0] != world.tip[0]):
        yield replace(world, read=None, appended=None, selected=False)  # exits 3, and is repeated
    elif world.appended is None or (saw and not world.selected):
        if world.tip[1] < TIP_MAX:
            tip = (world.tip[0], world.tip[1] + 1)
            selecting = world.selecting | {tip[1]} if saw else world.selecting
            appended = world.appended or tip
            read = None if rules.reads_again else world.read
            yield replace(
                world,
                tip=tip,
                selecting=selecting,
                appended=appended,
                selected=saw or world.selected,
                read=read,
            )
    elif world.position >= world.tip:  # the fence
        yield replace(world, is_done=True)


def is_broken(world: World) -> bool:
    """Whether something that began before the purge is served after it."""
    return (
        world.is_done
        and world.page is not None
        and world.appended is not None
        and world.page[0] == world.appended[0]
        and world.page[1] < world.appended[1]
    )


def explore(rules: Rules) -> tuple[int, int]:
    """(states, broken ones)."""
    seen, waiting, broken = {World()}, [World()], 0
    while waiting:
        world = waiting.pop()
        broken += is_broken(world)
        for following in steps(world, rules):
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return len(seen), broken


def test_after_a_purge_by_prefix_nothing_older_is_left_whatever_came_between() -> None:
    states, broken = explore(Rules())
    assert states > 1000
    assert not broken


def test_what_begins_without_being_told_is_caught_at_commit() -> None:
    assert not explore(Rules(begins_when_told=False))[1]
    assert not explore(Rules(tells_when_listed=False))[1]


def test_what_begins_when_told_needs_no_judge() -> None:
    """So an L1, which has none, keeps nothing older either."""
    assert not explore(Rules(judges=False))[1]


@pytest.mark.parametrize(
    "rules",
    [
        Rules(reads_again=False),
        Rules(judges=False, tells_when_listed=False),
        Rules(judges=False, begins_when_told=False),
        Rules(judges=False, enters_before_boot=False),
    ],
)
def test_the_model_notices_what_is_taken_away(rules: Rules) -> None:
    assert explore(rules)[1]


# --- Listings ---

A_LOG, ANOTHER_LOG = LOGS


def test_the_first_time_counts_and_each_incarnation_by_itself() -> None:
    listings = Listings()
    listings.enter([SPACE.id], Stamp(A_LOG, 5))
    listings.enter([SPACE.id], Stamp(A_LOG, 9))
    assert listings.lists(SPACE.id, Stamp(A_LOG, 5))
    assert not listings.lists(SPACE.id, Stamp(A_LOG, 4))
    assert not listings.lists(SPACE.id, None)
    assert not listings.lists(SPACE.id, Stamp(ANOTHER_LOG, 7))
    listings.enter([SPACE.id], Stamp(ANOTHER_LOG, 2))
    assert listings.lists(SPACE.id, Stamp(ANOTHER_LOG, 2))
    assert not listings.has(SPACE.id, A_LOG)


def test_only_what_is_registered_is_remembered() -> None:
    listings = Listings()
    listings.enter([SPACE.id, OTHER], Stamp(A_LOG, 0))
    listings.forget_others({OTHER})
    assert len(listings) == 1
    assert listings.has(OTHER, A_LOG)
    assert not listings.has(SPACE.id, A_LOG)


def test_the_reason_of_the_judge_below_comes_first() -> None:
    world = World(position=(0, 3), selecting=frozenset({2}))
    judge = ListedJudge(AtPosition(world), Listings())
    stamps = [Stamp(A_LOG, revision) for revision in (1, 2, 4)]
    assert [judge.judge(SPACE, stamp, ORIGIN, lambda: None) for stamp in stamps] == [
        RefuseReason.INVALIDATED, RefuseReason.UNLISTED, RefuseReason.STAMP_FOREIGN,
    ]  # fmt: skip
