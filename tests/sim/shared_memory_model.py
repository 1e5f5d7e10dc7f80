"""The shared-memory protocol as explicit-state models: every interleaving of a few steps, searched for a broken promise.

Hazards have a model of their own, in hazard_model.py. The steps come as names in an order; shared_memory_steps.py reads
them from the sources. A name that is missing is a step that isn't taken. What breaks a promise is found with the shortest
way to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

_State = TypeVar("_State", bound=Hashable)
Move = tuple[str, _State, str | None]
"""What happens, the state after it, and the promise that it broke."""

STATES_MAX = 400_000


@dataclass(frozen=True)
class Outcome:
    """What a search found: the promise that was broken and how, or none over all `states` there are."""

    states: int
    broken: str | None = None
    trace: tuple[str, ...] = ()


def explore(start: _State, moves: Callable[[_State], Iterable[Move[_State]]]) -> Outcome:
    """Search breadth first; raises RuntimeError when there are more than STATES_MAX states."""
    came_from: dict[_State, tuple[_State, str] | None] = {start: None}
    frontier = [start]
    while frontier:
        following = []
        for state in frontier:
            for label, after, broken in moves(state):
                if broken is not None:
                    return Outcome(len(came_from), broken, (*_way(came_from, state), label))
                if after not in came_from:
                    came_from[after] = (state, label)
                    following.append(after)
            if len(came_from) > STATES_MAX:
                raise RuntimeError(
                    f"more than {STATES_MAX} states: the model is larger than it is meant to be"
                )
        frontier = following
    return Outcome(len(came_from))


def _way(came_from: dict[_State, tuple[_State, str] | None], state: _State) -> list[str]:
    labels = []
    step = came_from[state]
    while step is not None:
        state, label = step
        labels.append(label)
        step = came_from[state]
    return labels[::-1]


# --- header and ring (rules R14 and R16), sequentially consistent ---

LOOK_UPS = 3
LEASES = 3
RECORDS = 2
"""Record 1 selects the page that everybody has at the start, record 2 doesn't."""
_PER_RECORD = ("tag 0", "body", "tag", "view", "acknowledge")
_OF_SIDECAR = ("hide", *_PER_RECORD, "freshness")
_OF_LOOK = ("load F", "load view", "walk", "clock", "view again")


class _Look(NamedTuple):
    """A worker's look-up. `at`: the step that comes next, −1 between look-ups."""

    at: int = -1
    after_fence: bool = False
    freshness: int = 0
    view: int = 0
    found: str = ""
    ring_at: int = 0
    ring_step: int = 0
    ring_body: int = 0
    selected: bool = False
    torn: bool = False


class _Header(NamedTuple):
    appended: int = 0
    granted: int = 1  # leases that the log has granted; the last may still run
    over: int = 0  # leases that have run out
    fenced: bool = False
    # the sidecar
    of: tuple[int, int] = (0, 0)  # first and last revision of the batch at work
    pc: int = 0
    hidden: bool = False
    acknowledged: int = 0
    # the header
    tag: int = 0
    body: int = 0
    view: int = 0
    freshness: int = 1
    # the worker
    l1: bool = True
    l1_view: int = 0
    look_ups: int = LOOK_UPS
    look: _Look = _Look()


def header(*, sidecar: Sequence[str], look: Sequence[str], read: Sequence[str]) -> Outcome:
    """Search for a look-up that gets the page though it was invoked after the fence, or under a view that took it.

    `sidecar`: hide, (tag 0, body, tag, view, acknowledge) for each record, freshness. `look`: load F, load view, walk,
    clock, view again. `read`: tag, body, tag again, of one record of the ring, which has room for one. Other names are
    other models' business.
    """
    sidecar = tuple(name for name in sidecar if name in _OF_SIDECAR)
    look = tuple(name for name in look if name in _OF_LOOK)

    def work(state: _Header) -> tuple[tuple[str, int], ...]:
        return tuple(_plan(sidecar, *state.of))

    def moves(state: _Header) -> Iterator[Move[_Header]]:
        yield from _log_moves(state)
        yield from _sidecar_moves(state, work(state))
        yield from _worker_moves(state, look, read)

    return explore(_Header(pc=len(tuple(_plan(sidecar, 0, 0)))), moves)


def _plan(template: Sequence[str], after: int, last: int) -> Iterator[tuple[str, int]]:
    """The steps of one batch: neighbouring steps of a record are taken for one record after the other."""
    run: list[str] = []
    for name in (*template, ""):
        if name in _PER_RECORD:
            run.append(name)
            continue
        for revision in range(after + 1, last + 1):
            yield from ((one, revision) for one in run)
        run = []
        if name in ("hide", "freshness"):
            yield name, last


def _log_moves(state: _Header) -> Iterator[Move[_Header]]:
    if state.appended < RECORDS:
        yield f"record {state.appended + 1} appended", state._replace(appended=state.appended + 1), None
    if state.over < state.granted:
        yield f"lease {state.over + 1} runs out", state._replace(over=state.over + 1), None
    is_gone = state.over >= state.granted
    if not state.fenced and state.appended and (state.acknowledged or is_gone):
        yield "the fence of record 1 returns", state._replace(fenced=True), None


def _sidecar_moves(state: _Header, work: Sequence[tuple[str, int]]) -> Iterator[Move[_Header]]:
    if state.pc == len(work):
        if state.granted < LEASES:
            batch = (state.of[1], state.appended)
            yield "a renewal is granted", state._replace(granted=state.granted + 1, of=batch, pc=0), None
        return
    name, revision = work[state.pc]
    after = state._replace(pc=state.pc + 1)
    if name == "hide":
        after = after._replace(hidden=state.hidden or revision >= 1)
    elif name == "tag 0":
        after = after._replace(tag=0)
    elif name == "body":
        after = after._replace(body=revision)
    elif name == "tag":
        after = after._replace(tag=revision)
    elif name == "view":
        after = after._replace(view=revision)
    elif name == "acknowledge":
        after = after._replace(acknowledged=revision)
    else:
        after = after._replace(freshness=state.granted)
    yield f"sidecar: {name} {revision}", after, None


def _worker_moves(state: _Header, look: Sequence[str], read: Sequence[str]) -> Iterator[Move[_Header]]:
    now = state.look
    if now.at == -1:
        if state.look_ups:
            begun = state._replace(look_ups=state.look_ups - 1, look=_Look(at=0, after_fence=state.fenced))
            yield "a look-up is invoked", begun, None
        return
    if now.at == len(look):
        yield from _returned(state)
        return
    name = look[now.at]
    onwards = now._replace(at=now.at + 1)
    over = state._replace(look=_Look())
    if name == "load F":
        yield (
            f"worker: F is {state.freshness}",
            state._replace(look=onwards._replace(freshness=state.freshness)),
            None,
        )
    elif name == "load view":
        yield f"worker: view is {state.view}", state._replace(look=onwards._replace(view=state.view)), None
    elif name == "walk":
        yield from _followed_and_walked(state, read)
    elif name == "clock":
        fresh = now.freshness > state.over
        yield f"worker: fresh {fresh}", state._replace(look=onwards) if fresh else over, None
    else:
        same = state.view == now.view
        yield f"worker: same view {same}", state._replace(look=onwards) if same else over, None


def _followed_and_walked(state: _Header, read: Sequence[str]) -> Iterator[Move[_Header]]:
    """L1 follows the ring up to the view that was loaded, then L1 or L2 has the page or has it not."""
    now = state.look
    if state.l1_view < now.view:
        yield from _follow(state, read)
        return
    if not state.l1 and state.hidden:
        yield "worker: misses", state._replace(look=_Look()), None
        return
    found = "L1" if state.l1 else "L2"
    yield (
        f"worker: finds the page in {found}",
        state._replace(look=now._replace(at=now.at + 1, found=found)),
        None,
    )


def _follow(state: _Header, read: Sequence[str]) -> Iterator[Move[_Header]]:
    now = state.look
    if now.view - state.l1_view > 1:
        yield "worker: overrun, drops L1", state._replace(l1=False, l1_view=now.view), None
        return
    if now.ring_step == len(read):
        gone = now.torn or now.ring_body == 1
        caught_up = state._replace(
            l1=state.l1 and not gone,
            l1_view=now.view,
            look=now._replace(ring_step=0, ring_body=0, torn=False),
        )
        yield f"worker: applies record {now.ring_body}, torn {now.torn}", caught_up, None
        return
    if read[now.ring_step] == "body":
        seen = now._replace(ring_body=state.body)
    else:
        seen = now._replace(torn=now.torn or state.tag != now.view)
    stepped = seen._replace(ring_step=now.ring_step + 1)
    yield f"worker: reads the {read[now.ring_step]} of the ring", state._replace(look=stepped), None


def _returned(state: _Header) -> Iterator[Move[_Header]]:
    now = state.look
    broken = None
    if now.after_fence:
        broken = "a look-up invoked after the fence got the page"
    elif now.view >= 1:
        broken = "a look-up got the page under the view that had taken it"
    yield f"worker: returns the page from {now.found}", state._replace(l1=True, look=_Look()), broken


# --- freshness that an engine claims for itself (rule R18), with the store buffers of x86 ---

_VIEW, _CLAIM, _APPLIED = range(3)
Buffer = tuple[tuple[int, int], ...]


class _Claim(NamedTuple):
    memory: tuple[int, int, int] = (0, 0, 0)
    client: Buffer = ()
    sidecar: Buffer = ()
    at: int = 0
    seen: int = 0
    sidecar_at: int = 0
    is_over: bool = False  # the freshness that the client claims


def claims(*, client: Sequence[str], sidecar: Sequence[str]) -> Outcome:
    """Search for an engine that serves what was hidden though its sidecar has acknowledged.

    `client`: claim, fence, load view; then it applies and serves. `sidecar`: view, fence; then it looks at the row. Other
    names are other models' business.
    """
    steps = (*(name for name in client if name in ("claim", "fence", "load view")), "apply", "serve")
    orders = (*(name for name in sidecar if name in ("view", "fence")), "acknowledge")

    def stored(buffer: Buffer, place: int, value: int) -> Buffer:
        return (*buffer, (place, value))

    def seen(state: _Claim, buffer: Buffer, place: int) -> int:
        own = [value for where, value in buffer if where == place]
        return own[-1] if own else state.memory[place]

    def client_moves(state: _Claim) -> Iterator[Move[_Claim]]:
        name, onwards = steps[state.at], state._replace(at=state.at + 1)
        if name == "claim":
            yield "client: claims", onwards._replace(client=stored(state.client, _CLAIM, 1)), None
        elif name == "fence":
            if not state.client:
                yield "client: fence", onwards, None
        elif name == "load view":
            view = seen(state, state.client, _VIEW)
            yield f"client: view is {view}", onwards._replace(seen=view), None
        elif name == "apply":
            yield "client: applied", onwards._replace(client=stored(state.client, _APPLIED, state.seen)), None
        elif not state.is_over:
            broken = state.sidecar_at > len(orders) - 1 and not state.seen
            yield (
                "client: serves",
                state,
                "an engine served what was hidden after the acknowledgement" if broken else None,
            )

    def sidecar_moves(state: _Claim) -> Iterator[Move[_Claim]]:
        if state.sidecar_at == len(orders):
            return
        name, onwards = orders[state.sidecar_at], state._replace(sidecar_at=state.sidecar_at + 1)
        if name == "view":
            yield (
                "sidecar: publishes the view",
                onwards._replace(sidecar=stored(state.sidecar, _VIEW, 1)),
                None,
            )
        elif name == "fence":
            if not state.sidecar:
                yield "sidecar: fence", onwards, None
        elif state.memory[_APPLIED] or not state.memory[_CLAIM] or state.is_over:
            yield "sidecar: acknowledges", onwards, None

    def moves(state: _Claim) -> Iterator[Move[_Claim]]:
        for buffer, who in ((state.client, "client"), (state.sidecar, "sidecar")):
            if buffer:
                (place, value), rest = buffer[0], buffer[1:]
                memory = (*state.memory[:place], value, *state.memory[place + 1 :])
                after = state._replace(memory=memory)  # type: ignore[arg-type]  # three words stay three
                after = after._replace(client=rest) if who == "client" else after._replace(sidecar=rest)
                yield f"{who}'s store is seen", after, None
        if not state.is_over:
            yield "the claimed time passes", state._replace(is_over=True), None
        yield from client_moves(state)
        yield from sidecar_moves(state)

    return explore(_Claim(), moves)
