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
