"""Hazards and generations as a model (rule R17): one hazard over a page and its parent, against hiding, freeing and reuse.

Two processes take steps that are loads, stores and fences. A step may be carried out as soon as nothing before it in its
program holds it back: on x86 only a load overtakes, and only stores; `Order.WEAK` knows no order but that of fences,
acquire, release and of one word, and even carries out stores before the loads that decide whether they are made. For that
a process guesses what its loads will find, and an execution in which they find something else is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import product
from typing import NamedTuple

from tests.sim.shared_memory_model import Move, Outcome, explore
from tests.sim.shared_memory_steps import Steps

PARENT, CHILD = 0, 1
"""The entries. At first a chain of two pages; later each may carry a page of another chain."""
_GENERATION, _KEY, _BYTES = (0, 1), (2, 3), (4, 5)
_HAZARD, _OTHER = 6, 7
_NAMES = (
    "parent's generation", "child's generation", "parent's key", "child's key", "parent's bytes", "child's bytes",
    "hazard", "other hazard",
)  # fmt: skip
_NONE, _OF_PARENT, _OF_CHILD, _OF_BOTH = range(4)
"""What a hazard says: nothing, either page alone, or the child and one page below it."""
_HAZARDS = ("no hazard", "the parent's", "the child's", "that of both")
BROKEN = "foreign or torn bytes"
GENERATIONS = 64


class Order(StrEnum):
    """What a processor keeps in order."""

    X86 = "x86"
    WEAK = "weak"


class Protocol(NamedTuple):
    """The steps of both sides in their order, and the memory order of each, as the sources have them."""

    look: Sequence[str]
    """walk, store hazard, fence, re-check; again: what has not passed is published and looked at anew, or narrow. move: a
    smaller cover is stored in another word, that scans look at before."""
    copy: Sequence[str]
    """fence, check: behind the bytes of a copy."""
    match: Sequence[str]
    """load, fields, fence, load again: of an entry."""
    reuse: Sequence[str]
    """hide, fence, scan, towards the root."""
    orders: Mapping[str, str]
    """walk, store hazard, narrow, clear, scan, hide, publish: relaxed, acquire or release."""


@dataclass(frozen=True, eq=False, slots=True)
class _Step:
    """Made by `_step` alone: equal ones are the same."""

    kind: str  # load, unlike, bytes, store, fence, scan
    place: int
    value: int  # that is stored, or found; of `unlike` what is not found, of `bytes` what would be right
    order: str


@cache
def _step(kind: str, place: int, value: int, order: str) -> _Step:
    return _Step(kind, place, value, order)


class _Entry(NamedTuple):
    """What the sidecar knows of an entry."""

    generation: int = 0
    is_linked: bool = True  # carries a page of the first chain


class _State(NamedTuple):
    memory: tuple[int, ...] = (0,) * 8
    reader: tuple[_Step, ...] = ()  # under way, in the order of the program
    sidecar: tuple[_Step, ...] = ()
    reader_at: str = "start"
    hides: int = 0
    scans: int = 0
    entries: tuple[_Entry, _Entry] = (_Entry(), _Entry())
    is_wrong: bool = False
    is_revoked: bool = False


def protocol_of(steps: Steps) -> Protocol:
    """What the sources do."""
    return Protocol(steps.look, steps.copy, steps.match, steps.reuse, steps.orders)


def views_and_copies(protocol: Protocol, order: Order, *, scans: int = 2) -> Outcome:
    """Search both kinds of readers, up to what breaks the promise."""
    views = hazards(protocol, order, scans=scans)
    if views.broken is not None:
        return views
    copies = hazards(protocol, order, scans=scans, revocable=True)
    return Outcome(views.states + copies.states, copies.broken, copies.trace)


def hazards(
    protocol: Protocol,
    order: Order,
    *,
    hides: int = 2,
    scans: int = 3,
    generations: int = GENERATIONS,
    revocable: bool = False,
) -> Outcome:
    """Search for a reader that takes bytes for its page's that are not.

    `hides` and `scans` are how many there may be; `generations` how many there are before they come round. `revocable`: it
    copies, under a lease that runs out at any time; else it looks at pages until it lets go of them.
    """

    def moves(state: _State) -> Iterator[Move[_State]]:
        yield from _fetched(state, protocol, order, (hides, scans, generations), revocable=revocable)

    return explore(_State(), moves)


def _fetched(
    state: _State, protocol: Protocol, order: Order, bounds: tuple[int, int, int], *, revocable: bool
) -> Iterator[Move[_State]]:
    is_over = state.reader_at == "end" and not state.reader
    if is_over and not state.is_wrong:
        return
    if is_over and not any(step.kind == "scan" for step in state.sidecar):
        yield "the reader returns", state, BROKEN
        return
    if state.reader_at != "end" and not _is_held_up(state.reader, order):
        for steps, at in _reader(state.reader_at, protocol, revocable=revocable):
            yield "", state._replace(reader=state.reader + steps, reader_at=at), None
        return
    if _may_go_on(state, bounds) and not _is_held_up(state.sidecar, order):
        yield from _rounds(state, protocol, bounds)
        if state.reader or state.sidecar:
            yield "", state._replace(scans=bounds[1]), None  # it rests from here on
        return
    yield from _carried_out(state, order, mine=True)
    yield from _carried_out(state, order, mine=False)
    if revocable and not state.is_revoked:
        yield "the copy's lease runs out", state._replace(is_revoked=True), None


# --- what may overtake what ---


@cache
def _waits(later: _Step, earlier: _Step, order: Order) -> bool:
    """Whether a step is not carried out before one that comes before it in the program."""
    if order is Order.X86:
        overtaken = earlier.kind == "store" and (later.kind != "store" and later.order != "seq_cst")
        return not overtaken or (later.kind != "fence" and later.place == earlier.place)
    if earlier.kind == "fence" or earlier.order == "acquire" or later.order in ("release", "seq_cst"):
        return True
    if later.kind == "fence":  # acquire
        return earlier.kind != "store"
    return later.place == earlier.place


@cache
def _is_held_up(steps: tuple[_Step, ...], order: Order) -> bool:
    """Whether nothing that comes later in the program can be carried out yet."""
    free = _step("load", -1, 0, "relaxed"), _step("store", -1, 0, "relaxed")
    return all(any(_waits(one, step, order) for step in steps) for one in free)


@cache
def _ready(steps: tuple[_Step, ...], order: Order) -> tuple[int, ...]:
    """Places of the steps that may be carried out now; a fence before anything else, since nobody sees it."""
    ready = tuple(
        at for at, step in enumerate(steps) if not any(_waits(step, one, order) for one in steps[:at])
    )
    fences = tuple(at for at in ready if steps[at].kind == "fence")
    return fences[:1] or ready


def _carried_out(state: _State, order: Order, *, mine: bool) -> Iterator[Move[_State]]:
    steps = state.reader if mine else state.sidecar
    for at in _ready(steps, order):
        step = steps[at]
        rest = steps[:at] + steps[at + 1 :]
        after = state._replace(reader=rest) if mine else state._replace(sidecar=rest)
        if step.kind == "fence":
            yield "", after, None
            continue
        found = state.memory[step.place]
        if step.kind == "scan" and state.is_revoked:
            found = _NONE
        if step.kind == "store":
            memory = (*state.memory[: step.place], step.value, *state.memory[step.place + 1 :])
            yield _told(step, step.value, mine=mine), after._replace(memory=memory), None
        elif step.kind == "bytes":
            wrong = state.is_wrong or found != step.value
            yield _told(step, found, mine=mine), after._replace(is_wrong=wrong), None
        elif (found == step.value) == (step.kind != "unlike"):
            yield _told(step, found, mine=mine), after, None


def _told(step: _Step, value: int, *, mine: bool) -> str:
    what = _HAZARDS[value] if step.place in (_HAZARD, _OTHER) else value
    verb = "stores" if step.kind == "store" else "finds"
    return f"{'reader' if mine else 'sidecar'} {verb} {_NAMES[step.place]}: {what}"


# --- the reader ---


def _reader(at: str, protocol: Protocol, *, revocable: bool) -> Iterator[tuple[tuple[_Step, ...], str]]:
    """What it may do next, with what it will find."""
    walk = protocol.orders["walk"]
    if at == "start":
        both = (_step("load", _GENERATION[PARENT], 0, walk), _step("load", _GENERATION[CHILD], 0, walk))
        yield both, "pin both"
        for entry in (PARENT, CHILD):
            for generation in (0, 2):
                yield (_step("load", _GENERATION[entry], generation, walk),), f"pin {entry} {generation}"
                yield _match(protocol, entry, generation), "end"
    elif at == "pin both":
        yield from _pinned_both(protocol)
    elif at.startswith("pin"):
        entry, generation = map(int, at.split()[1:])
        hazard = _OF_PARENT if entry == PARENT else _OF_CHILD
        found = (_step("load", _GENERATION[entry], generation, "relaxed"),)
        yield _pin(protocol, hazard, found), f"use {entry} {generation}"
    elif at == "use both":
        yield from _used_both(protocol, revocable=revocable)
    else:
        entry, generation = map(int, at.split()[1:])
        yield (_bytes(entry, generation), *_after(protocol, {entry: generation}, revocable=revocable)), "end"


def _match(protocol: Protocol, entry: int, generation: int) -> tuple[_Step, ...]:
    """An entry read between two loads of its generation: what is taken for its key belongs to that."""
    steps = {
        "load": _step("load", _GENERATION[entry], generation, protocol.orders["walk"]),
        "fields": _step("bytes", _KEY[entry], generation // 2, "relaxed"),
        "fence": _step("fence", -1, 0, "acquire"),
        "load again": _step("load", _GENERATION[entry], generation, "relaxed"),
    }
    return tuple(steps[name] for name in protocol.match)


def _pin(protocol: Protocol, hazard: int, found: tuple[_Step, ...]) -> tuple[_Step, ...]:
    steps = {
        "store hazard": (_step("store", _HAZARD, hazard, protocol.orders["store hazard"]),),
        "fence": (_step("fence", -1, 0, "seq_cst"),),
        "re-check": found,
    }
    return tuple(step for name in protocol.look if name in steps for step in steps[name])


def _pinned_both(protocol: Protocol) -> Iterator[tuple[tuple[_Step, ...], str]]:
    stands = _step("load", _GENERATION[PARENT], 0, "relaxed")
    yield (
        _pin(protocol, _OF_BOTH, (stands, _step("load", _GENERATION[CHILD], 0, "relaxed"))),
        "use both",
    )
    if "re-check" not in protocol.look:
        return
    first = _pin(protocol, _OF_BOTH, (stands, _step("unlike", _GENERATION[CHILD], 0, "relaxed")))
    if "again" in protocol.look:
        yield first + _pin(protocol, _OF_PARENT, (stands,)), "use 0 0"
    elif "narrow" in protocol.look:
        yield (*first, _step("store", _HAZARD, _OF_PARENT, protocol.orders["narrow"])), "use 0 0"


def _bytes(entry: int, generation: int) -> _Step:
    return _step("bytes", _BYTES[entry], generation // 2, "relaxed")


def _after(
    protocol: Protocol, pages: Mapping[int, int], *, revocable: bool, hazard: int = _HAZARD
) -> tuple[_Step, ...]:
    """What follows the last look at pages of these generations."""
    steps = {
        "fence": (_step("fence", -1, 0, "acquire"),),
        "check": tuple(
            _step("load", _GENERATION[entry], generation, "relaxed") for entry, generation in pages.items()
        ),
    }
    checks = [step for name in protocol.copy if name in steps for step in steps[name]] if revocable else []
    return (*checks, _step("store", hazard, _NONE, protocol.orders["clear"]))


def _used_both(protocol: Protocol, *, revocable: bool) -> Iterator[tuple[tuple[_Step, ...], str]]:
    both = (_bytes(PARENT, 0), _bytes(CHILD, 0))
    if revocable:
        yield (*both, *_after(protocol, {PARENT: 0, CHILD: 0}, revocable=True)), "end"
        return
    place = _OTHER if "move" in protocol.look else _HAZARD
    cleared = (_step("store", _HAZARD, _NONE, protocol.orders["clear"]),) if place == _OTHER else ()
    for entry, hazard in ((PARENT, _OF_PARENT), (CHILD, _OF_CHILD)):
        kept = _step("store", place, hazard, protocol.orders["narrow"])
        after = _after(protocol, {}, revocable=False, hazard=place)
        yield (*both, kept, *cleared, _bytes(entry, 0), *after), "end"


# --- the sidecar ---


def _may_go_on(state: _State, bounds: tuple[int, int, int]) -> bool:
    is_waiting = any(entry.generation % 2 for entry in state.entries)
    return state.scans < bounds[1] and (state.hides < bounds[0] or is_waiting)


def _rounds(state: _State, protocol: Protocol, bounds: tuple[int, int, int]) -> Iterator[Move[_State]]:
    """Hide the child, or the parent with what stands on it, or nothing more; look for hazards; reuse what is free."""
    for top in (CHILD, PARENT, None):
        hidden = _subtree(state.entries, top)
        if (top is not None and (not hidden or state.hides == bounds[0])) or (
            top is None and not any(entry.generation % 2 for entry in state.entries)
        ):
            continue
        entries = tuple(
            one._replace(generation=one.generation + 1) if entry in hidden else one
            for entry, one in enumerate(state.entries)
        )
        others = (_NONE, _OF_PARENT, _OF_CHILD) if "move" in protocol.look else (_NONE,)
        for found in product(others, (_NONE, _OF_PARENT, _OF_CHILD, _OF_BOTH)):
            steps, reused = _round(protocol, hidden, entries, found, bounds[2])
            after = state._replace(
                sidecar=state.sidecar + steps, entries=reused, scans=state.scans + 1,
                hides=state.hides + (top is not None),
            )  # fmt: skip
            yield (
                f"sidecar sets out to hide {'nothing more' if top is None else _NAMES[top].split(chr(39))[0]}",
                after,
                None,
            )
            if "scan" not in protocol.reuse:
                break


def _subtree(entries: Sequence[_Entry], top: int | None) -> tuple[int, ...]:
    visible = [entry for entry in (PARENT, CHILD) if entries[entry].generation % 2 == 0]
    if top is None or top not in visible:
        return ()
    is_whole = top == PARENT and CHILD in visible and all(one.is_linked for one in entries)
    return (PARENT, CHILD) if is_whole else (top,)


def _round(
    protocol: Protocol,
    hidden: Sequence[int],
    entries: Sequence[_Entry],
    found: tuple[int, int],
    generations: int,
) -> tuple[tuple[_Step, ...], tuple[_Entry, _Entry]]:
    orders = protocol.orders
    steps = {
        "hide": tuple(
            _step("store", _GENERATION[entry], entries[entry].generation % generations, orders["hide"])
            for entry in hidden
        ),
        "fence": (_step("fence", -1, 0, "seq_cst"),),
        "scan": tuple(
            _step("scan", place, hazard, orders["scan"])
            for place, hazard in zip((_OTHER, _HAZARD), found, strict=True)
            if place == _HAZARD or "move" in protocol.look
        ),
    }
    taken = [step for name in protocol.reuse if name in steps for step in steps[name]]
    walks = "towards the root" in protocol.reuse
    held = {entry for hazard in found for entry in _covered(entries, hazard, walks=walks)}
    if "scan" not in protocol.reuse:
        held = set()
    after = list(entries)
    for entry, one in enumerate(entries):
        if one.generation % 2 == 0 or entry in held:
            continue
        after[entry] = _Entry(one.generation + 1, is_linked=False)
        fill = after[entry].generation // 2
        taken += [
            _step("store", _KEY[entry], fill, "relaxed"),
            _step("store", _BYTES[entry], fill, "relaxed"),
            _step("store", _GENERATION[entry], after[entry].generation % generations, orders["publish"]),
        ]
    return tuple(taken), (after[PARENT], after[CHILD])


def _covered(entries: Sequence[_Entry], hazard: int, *, walks: bool) -> set[int]:
    """What a hazard holds, as a scan understands it: the page that its entry carries now, and what that stands on."""
    if hazard == _NONE:
        return set()
    deepest = PARENT if hazard == _OF_PARENT else CHILD
    goes_on = walks and hazard == _OF_BOTH and all(one.is_linked for one in entries)
    return {deepest, PARENT} if goes_on else {deepest}
