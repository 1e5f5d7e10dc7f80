"""FenceEvaluation in every reachable state of a small fleet: no page that it says is hidden can be served afterwards.

Time is whole; a lease lasts 2, and the member's clock may stand still for 1 in all. One member holds one page that the
record selects; messages take any time; the sidecar may die with its worker living on, say goodbye, or find the log
flushed, and an old primary may answer what it likes, unconfirmed. What is explored is the product's FenceEvaluation,
not a model of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from invalidation.fence import FenceEvaluation, NewIncarnation, Reached, Wait
from invalidation.log import FenceState, MemberState
from invalidation.notes import MemberNote
from invalidation.silence import Silence, _Seen
from invalidation.timing import Timing
from kv_types.ids import LogIncarnation, Stamp

LEASE, PAUSE, LAST_TIME = 2, 1, 5
RENEWALS_MAX = 2
NEVER = -100
TIMING = Timing(lease_ns=LEASE, pause_ns=PAUSE, drift=0.0)
NOTE = MemberNote(lease_ns=LEASE, engines_keep=0).encode()
MEMBER = b"m" * 16
START = MemberState(0, 0, 0, NOTE)
INCARNATIONS = (LogIncarnation(b"0" * 16), LogIncarnation(b"1" * 16))


@dataclass(frozen=True, slots=True)
class Call:
    """A renewal under way: sent at `sent` by the member's clock from a position, and answered or not yet."""

    sent: int
    incarnation: int
    applied: int
    answer: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class World:
    """Everything there is."""

    time: int = 0
    lag: int = 0
    # the log
    incarnation: int = 0
    born: int = NEVER
    tip: int = 0
    settled: bool = True
    entry: MemberState | None = START
    # the member
    is_alive: bool = True
    followed: int = 0
    applied: int = 0
    freshness: int = LEASE
    call: Call | None = None
    # the fence
    appended: int | None = None
    seen: _Seen | None = None
    is_reached: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that this model can be run without, to see that it notices."""

    timing: Timing = TIMING
    must_settle: bool = True
    from_sent: bool = True
    closes_first: bool = True


def _clock(world: World) -> World | None:
    return replace(world, time=world.time + 1) if world.time < LAST_TIME else None


def _serves(world: World) -> bool:
    """Whether the worker serves the page: fresh by its own clock, and not hidden."""
    return world.time - world.lag < world.freshness and world.followed == 0 and world.applied == 0


def _steps(world: World, rules: Rules) -> Iterator[World]:
    if (later := _clock(world)) is not None:
        yield later
        if world.lag < PAUSE:
            yield replace(later, lag=world.lag + 1)
    yield from _log_steps(world, rules)
    if world.is_alive:
        yield from _member_steps(world, rules)
    if world.appended is not None and not world.is_reached:
        yield _observed(world, rules)
        yield from (_misled(world, rules, incarnation) for incarnation in (0, 1))


def _log_steps(world: World, rules: Rules) -> Iterator[World]:
    if world.appended is None:
        yield replace(world, tip=1, appended=world.incarnation)
    if world.incarnation == 0 and not world.is_reached:
        yield replace(world, incarnation=1, born=world.time, tip=0, settled=not rules.must_settle, entry=None)
    if not world.settled and world.time - world.born >= rules.timing.window_ns():
        yield replace(world, settled=True)


def _member_steps(world: World, rules: Rules) -> Iterator[World]:
    call, number = world.call, world.entry.number if world.entry is not None else 0
    yield replace(world, is_alive=False, call=None)
    if rules.closes_first or world.freshness == NEVER:
        entry = None if world.entry is None else replace(world.entry, gone=True)
        yield replace(world, is_alive=False, call=None, freshness=NEVER, entry=entry)
    elif world.entry is not None:
        yield replace(world, is_alive=False, call=None, entry=replace(world.entry, gone=True))
    if call is None:
        if number < RENEWALS_MAX:
            yield replace(world, call=Call(world.time - world.lag, world.followed, world.applied))
    elif call.answer is None:
        answered = replace(call, answer=(world.incarnation, world.tip))
        if call.incarnation == world.incarnation:
            entry = MemberState(number + 1, call.applied, 0, NOTE)
            yield replace(world, entry=entry, call=answered)
        else:
            yield replace(world, call=answered)
    else:
        yield _answered(world, call, call.answer, rules)


def _answered(world: World, call: Call, answer: tuple[int, int], rules: Rules) -> World:
    incarnation, tip = answer
    if incarnation != world.followed:  # everything is hidden, and it starts from there
        return replace(world, followed=incarnation, applied=tip, call=None)
    sent = call.sent if rules.from_sent else world.time - world.lag
    freshness = max(world.freshness, sent + LEASE)
    return replace(world, applied=max(world.applied, tip), freshness=freshness, call=None)


def _observed(world: World, rules: Rules) -> World:
    members = {} if world.entry is None else {MEMBER: world.entry}
    tip = Stamp(INCARNATIONS[world.incarnation], world.tip)
    return _judged(
        world,
        rules,
        FenceState(tip=tip, settled=world.settled, members=members, confirmed=True, replicas=0),
    )


def _misled(world: World, rules: Rules, incarnation: int) -> World:
    """An old primary that lives on answers the look: it has any record, and knows of nobody."""
    tip = Stamp(INCARNATIONS[incarnation], 1)
    misled = _judged(world, rules, FenceState(tip=tip, settled=True, members={}, confirmed=False, replicas=0))
    assert misled.appended == world.appended, "it is no reason to append again"
    return misled


def _judged(world: World, rules: Rules, state: FenceState) -> World:
    assert world.appended is not None
    fence = FenceEvaluation(
        stamp=Stamp(INCARNATIONS[world.appended], 1), wait=Wait.HIDDEN, timing=rules.timing, me=MEMBER
    )
    if world.seen is not None:
        fence._silence._seen[MEMBER] = world.seen
    verdict = fence.observe(state, now_ns=world.time)
    if isinstance(verdict, NewIncarnation):
        return replace(world, appended=None, seen=None)
    return replace(world, seen=fence._silence._seen.get(MEMBER), is_reached=isinstance(verdict, Reached))


def _explore(rules: Rules) -> tuple[int, int, World | None]:
    """States reached, those of them where the fence is, and one where its promise is broken."""
    start = World()
    known, frontier, reached = {start}, [start], 0
    while frontier:
        following = []
        for world in frontier:
            reached += world.is_reached
            if world.is_reached and _serves(world):
                return len(known), reached, world
            for new in _steps(world, rules):
                if new not in known:
                    known.add(new)
                    following.append(new)
        frontier = following
    return len(known), reached, None


def test_no_page_is_served_once_the_fence_is_reached() -> None:
    states, reached, broken = _explore(Rules())
    assert broken is None
    assert reached > 1000, "it must be reached, in many ways"
    assert states > 10_000


@pytest.mark.parametrize(
    "rules",
    [
        Rules(timing=Timing(lease_ns=LEASE, pause_ns=0, drift=0.0)),
        Rules(must_settle=False),
        Rules(from_sent=False),
        Rules(closes_first=False),
    ],
    ids=["no margin for a pause", "no settling", "freshness from the answer", "goodbye before closing"],
)
def test_without_any_of_the_rules_one_is(rules: Rules) -> None:
    assert _explore(rules)[2] is not None


@pytest.mark.parametrize("name", ["_is_gone", "_watch"])
def test_a_fence_that_gives_up_too_early_is_found_out(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    careless: dict[str, Callable[..., object]] = {
        "_is_gone": lambda self, member, now, now_ns: now_ns - self._seen[member].first_ns >= LEASE,
        "_watch": lambda self, missing, now_ns: self._seen.update(
            {member: _Seen(now.number, NEVER) for member, now in missing.items()}
        ),
    }
    monkeypatch.setattr(Silence, name, careless[name])
    assert _explore(Rules())[2] is not None
