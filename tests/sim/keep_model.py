"""Freshness without limit as a model: what the log was told against who serves on when the sidecar dies (rule R18)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.sim.shared_memory_model import Move, Outcome, explore

ATTACHED_MAX = 3


class _Keep(NamedTuple):
    opened: int = 0
    living: int = 0
    granted: bool = False
    claims: bool = False  # somebody who lives serves without limit
    told: bool = False  # what the log has of this member
    sent: tuple[bool, int] | None = (
        None  # a renewal under way: what its note says, and who had attached by then
    )
    taken: bool = False  # whether the log has carried it out
    dead: bool = False


def keeping(*, attach: Sequence[str], end: Sequence[str], grant: Sequence[str]) -> Outcome:
    """Search for an engine that serves without limit below a dead sidecar of which the log doesn't know that.

    `attach` and `end`: take back. `grant`: same clients, some left, confirmed. Other names are other models' business.
    """

    def moves(state: _Keep) -> Iterator[Move[_Keep]]:
        if state.granted and state.living and not state.claims:
            yield "an engine claims without limit", state._replace(claims=True), None
        if state.dead:
            unknown = state.claims and not state.told
            yield (
                "it serves on",
                state,
                "an engine serves on below a sidecar that a fence gives up" if unknown else None,
            )
            return
        yield "the sidecar dies", state._replace(dead=True), None
        if state.opened < ATTACHED_MAX:
            opened = state._replace(opened=state.opened + 1, living=state.living + 1)
            yield "one attaches", opened._replace(granted=state.granted and "take back" not in attach), None
        if state.living:
            left = state.living - 1
            kept = state.granted and not ("take back" in end and not left)
            yield (
                "one ends",
                state._replace(living=left, granted=kept, claims=state.claims and left > 0),
                None,
            )
        if state.sent is None:
            sent = (state.living > 0, state.opened)
            yield f"a renewal is sent that says {sent}", state._replace(sent=sent, taken=False), None
            return
        says, opened_then = state.sent
        if not state.taken:
            yield "the log takes it", state._replace(taken=True, told=says), None
        yield "no answer", state._replace(sent=None), None
        if state.taken or "confirmed" not in grant:
            same = opened_then == state.opened or "same clients" not in grant
            some = state.living > 0 or "some left" not in grant
            yield "an answer", state._replace(sent=None, granted=state.granted or (same and some)), None

    return explore(_Keep(), moves)


_CLOSED, _CLAIM = range(2)


class _Leaving(NamedTuple):
    memory: tuple[int, int] = (0, 0)
    client: tuple[tuple[int, int], ...] = ()  # stores that nobody else sees yet
    sidecar: tuple[tuple[int, int], ...] = ()
    at: int = 0
    serves: bool = False
    sidecar_at: int = 0
    left: bool = False


def leaving(*, client: Sequence[str], close: Sequence[str], goodbye: Sequence[str]) -> Outcome:
    """Search for an engine that serves without limit below a sidecar that has taken leave of the fleet.

    With the store buffers of x86. `client`: claim, fence, closed (looks whether the header is, and gives up then). `close`:
    close, fence; `goodbye`: look for claims, leave. Other names are other models' business.
    """
    client = tuple(name for name in client if name in ("claim", "fence", "closed"))
    sidecar = (*close, *(name for name in goodbye if name in ("look", "leave")))

    def client_moves(state: _Leaving) -> Iterator[Move[_Leaving]]:
        if state.serves:
            broken = "an engine serves on below a sidecar that has left" if state.left else None
            yield "it serves", state, broken
            return
        if state.at == len(client):
            yield "it begins to serve", state._replace(serves=True), None
            return
        name, onwards = client[state.at], state._replace(at=state.at + 1)
        if name == "claim":
            yield "an engine claims", onwards._replace(client=(*state.client, (_CLAIM, 1))), None
        elif name == "fence":
            if not state.client:
                yield "its fence", onwards, None
        elif state.memory[_CLOSED]:
            gave_up = state._replace(at=0, client=(*state.client, (_CLAIM, 0)))
            yield "it finds the header closed", gave_up, None
        else:
            yield "it finds the header open", onwards, None

    def sidecar_moves(state: _Leaving) -> Iterator[Move[_Leaving]]:
        if state.sidecar_at == len(sidecar):
            return
        name, onwards = sidecar[state.sidecar_at], state._replace(sidecar_at=state.sidecar_at + 1)
        if name == "close":
            yield "the header is closed", onwards._replace(sidecar=(*state.sidecar, (_CLOSED, 1))), None
        elif name == "fence":
            if not state.sidecar:
                yield "the sidecar's fence", onwards, None
        elif name == "look":
            if not state.memory[_CLAIM]:
                yield "nobody claims", onwards, None
        else:
            yield "the sidecar leaves", onwards._replace(left=True), None

    def moves(state: _Leaving) -> Iterator[Move[_Leaving]]:
        for buffer, who in ((state.client, "client"), (state.sidecar, "sidecar")):
            if buffer:
                (place, value), rest = buffer[0], buffer[1:]
                memory = (value, state.memory[1]) if place == _CLOSED else (state.memory[0], value)
                after = state._replace(memory=memory)
                after = after._replace(client=rest) if who == "client" else after._replace(sidecar=rest)
                yield f"{who}'s store is seen", after, None
        yield from client_moves(state)
        yield from sidecar_moves(state)

    return explore(_Leaving(), moves)
