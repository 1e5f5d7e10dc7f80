"""Fencing: appends records to the log and waits until what they promise holds for the whole fleet (rules R7, R10 to R12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b

from invalidation.fence import FenceEvaluation, NewIncarnation, Pending, Reached, Wait
from invalidation.log import FenceState, InvalidationLog, LogUnavailableError, MemberState
from invalidation.records import LogEntry
from invalidation.timing import Timing
from kv_types.clock import Clock, Pause
from kv_types.errors import LogUnreachableError
from kv_types.ids import Stamp
from kv_types.limits import (
    CALL_DEADLINE_S_DEFAULT,
    FENCE_INCARNATIONS_MAX,
    FENCE_POLL_S_MAX,
    MEMBERS_LISTED_MAX,
)
from sidecar.admin.looks import Looks
from sidecar.logs import logger

REQUEST_ID_BYTES = 16

_SECOND_NS = 1_000_000_000
_FIRST_PAUSE_S = 0.002
_PAUSE_GROWTH = 1.5
_LAST_LOOK_S = 0.25

_log = logger("fence")


class Unconfirmed(StrEnum):
    """Why a promise is not reached."""

    NOT_ASKED = "not_asked"
    MEMBERS = "members"
    REPLICATION = "replication"
    SETTLING = "settling"
    INCARNATION = "incarnation"
    LOG = "log"
    ENDING = "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceResult:
    """What became of records and of the wait for them. `unconfirmed` None: the promise is reached.

    `stamps` has one for each record that is known to stand, in order; `missing` and `gone` are members by id.
    """

    stamps: tuple[Stamp, ...]
    unconfirmed: Unconfirmed | None = None
    why: str = ""
    missing: Mapping[bytes, MemberState] = field(default_factory=dict)
    gone: Mapping[bytes, MemberState] = field(default_factory=dict)
    waited_ms: int = 0


@dataclass(frozen=True, slots=True)
class Append:
    """One entry and the id by which the log knows a repeated request for it.

    `is_after`: it means what it says only behind the one before it, as what replaced weights leave behind them does.
    """

    entry: LogEntry
    request_id: bytes
    is_after: bool = False


def derived_id(request_id: bytes, *what: bytes) -> bytes:
    """Request id of one part of a request: the same id is that of the same part again, and never of another part.

    So a list of selectors that has grown when it is repeated loses none, and an id that is used twice hides nothing.
    """
    named = b"".join(len(part).to_bytes(4, "little") + part for part in what)
    return blake2b(request_id + named, digest_size=REQUEST_ID_BYTES).digest()


@dataclass(frozen=True, slots=True)
class _Stop:
    """Why waiting ended without the promise."""

    unconfirmed: Unconfirmed
    why: str
    missing: Mapping[bytes, MemberState] = field(default_factory=dict)


class Fencing:
    """Evaluates fences on this sidecar's clock. Safe to use from many calls of one event loop at once."""

    def __init__(
        self,
        log: InvalidationLog,
        *,
        me: bytes,
        looks: Looks,
        timing: Timing,
        clock: Clock,
        pause: Pause = asyncio.sleep,
        call_s: float = CALL_DEADLINE_S_DEFAULT,
        appended: Callable[[], None] = lambda: None,
    ) -> None:
        """`me` is this sidecar's id in the fleet. `call_s` is what one call of the log may take. `appended` is called after
        each round of appends: whoever follows the log here need not wait to hear of it.
        """
        self._log = log
        self._me = me
        self._looks = looks
        self._timing = timing
        self._clock = clock
        self._pause = pause
        self._call_s = call_s
        self._appended = appended
        self._ending = False

    @property
    def ending(self) -> bool:
        """Whether waits are ended because the sidecar goes down."""
        return self._ending

    def end(self) -> None:
        """End every wait, now and later: the sidecar goes down. Records that were appended stand."""
        self._ending = True

    async def append(self, appends: Sequence[Append], *, wait: Wait | None, timeout_s: float) -> FenceResult:
        """Append entries in order, then wait; `wait` None: not at all.

        They are appended again under the same ids when the log begins a new incarnation meanwhile (rule R12). Raises
        LogUnreachableError when the log did not answer before anything was appended.
        """
        begun_ns = self._clock.now_ns()
        turn = self._turn(begun_ns, timeout_s)
        await self._probe(turn)
        for _ in range(FENCE_INCARNATIONS_MAX):
            stamps, stop = await self._append_all(appends, turn)
            self._appended()
            if stop is None and len({stamp.incarnation for stamp in stamps}) == 1:
                if wait is None:
                    stop = _Stop(Unconfirmed.NOT_ASKED, "the records were appended; nobody asked to wait")
                else:
                    ended = await self._wait(max(stamps, key=_revision), wait, turn)
                    if not isinstance(ended, NewIncarnation):
                        return self._result(stamps, ended, begun_ns)
            if stop is not None:
                return self._result(stamps, stop, begun_ns)
            _log.warning("the log began anew while records were appended; they are appended again")
            await turn.pause()
        return self._result((), await self._anew_stop(turn), begun_ns)

    async def wait(self, stamp: Stamp, *, wait: Wait, timeout_s: float) -> FenceResult:
        """Wait for what was appended before, up to `stamp`."""
        begun_ns = self._clock.now_ns()
        turn = self._turn(begun_ns, timeout_s)
        ended = await self._wait(stamp, wait, turn)
        if isinstance(ended, NewIncarnation):
            return self._result((), _unknown_stop(stamp, ended.tip), begun_ns)
        return self._result((stamp,), ended, begun_ns)

    def _turn(self, begun_ns: int, timeout_s: float) -> _Turn:
        until_ns = begun_ns + int(timeout_s * _SECOND_NS)
        return _Turn(self._clock, self._pause, until_ns=until_ns, call_s=self._call_s)

    async def _probe(self, turn: _Turn) -> None:
        """Ask the log for a sign of life: a failure here is sure to have appended nothing."""
        if self._ending:
            raise LogUnreachableError("the sidecar is shutting down; nothing was appended")
        while True:
            try:
                await self._looks.look(deadline_ns=self._clock.now_ns() + self._looks.look_ns)
            except LogUnavailableError as error:
                if turn.is_over() or self._ending:
                    raise LogUnreachableError(
                        f"the invalidation log does not answer ({error}); nothing was appended: see what "
                        "`stratakv status` says of the log, and try again"
                    ) from error
                await turn.pause()
            else:
                return

    async def _append_all(
        self, appends: Sequence[Append], turn: _Turn
    ) -> tuple[tuple[Stamp, ...], _Stop | None]:
        """Append all of them; whoever waits for the newest waits for all."""
        stamps: list[Stamp] = []
        for append in appends:
            before = stamps[-1] if stamps and append.is_after else None
            stamp = await self._append_behind(append, before, turn)
            if isinstance(stamp, _Stop):
                return tuple(one for one in stamps if one.incarnation == stamps[-1].incarnation), stamp
            stamps.append(stamp)
        return tuple(stamps), None

    async def _append_behind(self, append: Append, before: Stamp | None, turn: _Turn) -> Stamp | _Stop:
        """Append one entry; once more where it stands before the one that it was to follow.

        That happens when the log began anew between the two, or has forgotten the older one's request id. The id of one
        more follows from its own, so that a repeated call finds it; a new one stands behind all others, which ends this.
        """
        while True:
            stamp = await self._append_one(append, turn)
            if isinstance(stamp, _Stop) or before is None or stamp.incarnation != before.incarnation:
                return stamp
            if stamp.revision > before.revision:
                return stamp
            append = replace(append, request_id=derived_id(append.request_id, b"again"))

    async def _append_one(self, append: Append, turn: _Turn) -> Stamp | _Stop:
        """Append one entry; a call that failed may have done it, and the same id makes trying again harmless (R7)."""
        while True:
            try:
                appended = await self._log.append(
                    append.entry, request_id=append.request_id, deadline_ns=turn.verb_deadline_ns()
                )
            except LogUnavailableError as error:
                if self._ending:
                    return _ending_stop()
                if turn.is_over():
                    return _Stop(
                        Unconfirmed.LOG,
                        f"the log stopped answering while records were appended ({error}); the one that was under "
                        "way may stand",
                    )
                await turn.pause()
            else:
                return appended.stamp

    async def _wait(self, stamp: Stamp, wait: Wait, turn: _Turn) -> Reached | NewIncarnation | _Stop:
        evaluation = FenceEvaluation(stamp=stamp, wait=wait, timing=self._timing, me=self._me)
        turn.restart()
        while True:
            try:
                state = await self._looks.look(deadline_ns=turn.look_deadline_ns())
            except LogUnavailableError as error:
                stop = self._unanswered(error)
            else:
                now_ns = self._clock.now_ns()
                verdict = evaluation.observe(state, now_ns=now_ns)
                if not isinstance(verdict, Pending):
                    if isinstance(verdict, Reached):
                        await self._give_up(verdict.gone, turn)
                    return verdict
                stop = _stop_of(state, verdict)
            if self._ending:
                return _ending_stop()
            if turn.is_over():
                return stop
            await turn.pause()

    def _unanswered(self, error: LogUnavailableError) -> _Stop:
        """What to say when no look came back: looks that wait for replicas take the time of those behind them."""
        if self._looks.unconfirmed:
            return _Stop(Unconfirmed.REPLICATION, self._looks.unconfirmed)
        return _Stop(Unconfirmed.LOG, f"the log does not answer ({error}); the records stand")

    async def _anew_stop(self, turn: _Turn) -> _Stop:
        """Why records came to stand in one incarnation after the other.

        Where nobody confirms it, there may be two servers that each go on as the primary, and the log began anew on neither.
        """
        try:
            state = await self._looks.look(deadline_ns=turn.look_deadline_ns())
        except LogUnavailableError:
            unconfirmed = self._looks.unconfirmed
        else:
            unconfirmed = "" if state.confirmed else self._looks.unconfirmed
        return _Stop(Unconfirmed.REPLICATION, unconfirmed) if unconfirmed else _incarnation_stop()

    async def _give_up(self, gone: Mapping[bytes, MemberState], turn: _Turn) -> None:
        """List silent members as gone, so that no later fence waits for them; drained still asks for them."""
        fresh = [(member, state.number) for member, state in gone.items() if not state.gone]
        for member, number in fresh[:MEMBERS_LISTED_MAX]:
            try:
                await self._log.leave(
                    member, number=number, drained=False, deadline_ns=turn.verb_deadline_ns()
                )
            except LogUnavailableError as error:
                _log.warning("could not list a silent member as gone", member=member.hex(), reason=str(error))
                return
            _log.warning("gave up a silent member", member=member.hex(), renewal=number)

    def _result(self, stamps: tuple[Stamp, ...], ended: Reached | _Stop, begun_ns: int) -> FenceResult:
        waited_ms = (self._clock.now_ns() - begun_ns) // 1_000_000
        if isinstance(ended, Reached):
            return FenceResult(stamps=stamps, gone=ended.gone, waited_ms=waited_ms)
        return FenceResult(
            stamps=stamps,
            unconfirmed=ended.unconfirmed,
            why=ended.why,
            missing=ended.missing,
            waited_ms=waited_ms,
        )


class _Turn:
    """The time that one call has, and its growing pauses."""

    def __init__(self, clock: Clock, pause: Pause, *, until_ns: int, call_s: float) -> None:
        self._clock = clock
        self._wait = pause
        self._until_ns = until_ns
        self._call_ns = int(call_s * _SECOND_NS)
        self._pause_s = _FIRST_PAUSE_S

    def verb_deadline_ns(self) -> int:
        """Deadline of one verb of the log; there is time for a last look even when the call's is up."""
        now_ns = self._clock.now_ns()
        last_ns = max(self._until_ns, now_ns + int(_LAST_LOOK_S * _SECOND_NS))
        return min(last_ns, now_ns + self._call_ns)

    def look_deadline_ns(self) -> int:
        """Deadline of one look, which may have to wait for the one under way."""
        now_ns = self._clock.now_ns()
        return min(max(self._until_ns, now_ns + int(_LAST_LOOK_S * _SECOND_NS)), now_ns + 2 * self._call_ns)

    def is_over(self) -> bool:
        return self._clock.now_ns() >= self._until_ns

    def restart(self) -> None:
        """Pause briefly again: something new is waited for."""
        self._pause_s = _FIRST_PAUSE_S

    async def pause(self) -> None:
        """Wait, longer each time, never past the end."""
        left_s = max(0.0, (self._until_ns - self._clock.now_ns()) / _SECOND_NS)
        await self._wait(min(self._pause_s, left_s))
        self._pause_s = min(self._pause_s * _PAUSE_GROWTH, FENCE_POLL_S_MAX)


def _revision(stamp: Stamp) -> int:
    return stamp.revision


def _stop_of(state: FenceState, verdict: Pending) -> _Stop:
    return _Stop(_unconfirmed(state), verdict.why, verdict.missing)


def _unconfirmed(state: FenceState) -> Unconfirmed:
    if not state.confirmed:
        return Unconfirmed.REPLICATION
    return Unconfirmed.MEMBERS if state.settled else Unconfirmed.SETTLING


def _ending_stop() -> _Stop:
    return _Stop(Unconfirmed.ENDING, "this sidecar is shutting down; records that were appended stand")


def _incarnation_stop() -> _Stop:
    return _Stop(
        Unconfirmed.INCARNATION,
        "the log began a new incarnation, which holds none of these records; invalidate again",
    )


def _unknown_stop(stamp: Stamp, tip: Stamp) -> _Stop:
    if stamp.incarnation == tip.incarnation:
        return _Stop(
            Unconfirmed.INCARNATION,
            f"revision {stamp.revision} is ahead of the log, which is at {tip.revision}: name a record that it holds",
        )
    return _Stop(
        Unconfirmed.INCARNATION,
        f"the log holds no record {stamp.revision} of incarnation {stamp.incarnation.hex()}: it has begun anew since, or "
        "never had it; invalidate again",
    )
