"""The life of a client's connection as a pure state machine: `step(event)` returns the actions to execute.

It holds no clock, no socket, no thread and no random source: failures bring their own jitter, delays go out as
actions. `inference_worker.supervisor` executes what is decided here, on one background thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kv_types.limits import RECONNECT_BACKOFF_S_MAX

BACKOFF_S_MIN = 0.02
"""First delay after a loss: long enough not to spin, short enough that a quick restart costs few misses."""


class Phase(StrEnum):
    """Where the connection stands."""

    NEW = "new"
    CONNECTING = "connecting"
    ATTACHED = "attached"
    BACKING_OFF = "backing_off"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Started:
    """The background thread runs."""


@dataclass(frozen=True, slots=True)
class Attached:
    """An attempt succeeded; its arena waits to be published."""


@dataclass(frozen=True, slots=True)
class AttachFailed:
    """An attempt failed. `refused`: the sidecar answered, and shared memory cannot be had from it now.

    `jitter` is drawn from [0, 1) by the shell.
    """

    reason: str
    refused: bool
    jitter: float


@dataclass(frozen=True, slots=True)
class Lost:
    """The published arena's connection broke or its header closed. `jitter` as above."""

    reason: str
    jitter: float


@dataclass(frozen=True, slots=True)
class WaitElapsed:
    """The delay of the last Wait is over."""


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """The owner closed the client."""


Event = Started | Attached | AttachFailed | Lost | WaitElapsed | CloseRequested


@dataclass(frozen=True, slots=True)
class BeginAttach:
    """Try to attach; answer with Attached or AttachFailed."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Make the new arena serve all namespaces, then watch it; answer with Lost when it ends."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Stop serving from the published arena and close it; leases on it stay readable until released."""


@dataclass(frozen=True, slots=True)
class UseRemote:
    """Serve over gRPC meanwhile, and say why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for so long; answer with WaitElapsed."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Discard:
    """Close an arena that arrived after the end; nobody may see it."""


@dataclass(frozen=True, slots=True)
class Finish:
    """End the background thread."""


Action = BeginAttach | Publish | Withdraw | UseRemote | Wait | Discard | Finish


class Session:
    """The machine. Events that do not fit the phase (late ones) change nothing and ask for nothing but clean-up."""

    def __init__(self, *, reattach_s: float) -> None:
        self._reattach_s = reattach_s
        self._failures = 0
        self.phase = Phase.NEW
        self.reason = ""
        """Why the connection is not attached, for people; empty while it is."""
        self.attaches = 0
        self.losses = 0

    def step(self, event: Event) -> tuple[Action, ...]:
        """Take one event; returns what to do, in order."""
        actions: tuple[Action, ...] = ()
        match event:
            case Attached() if self.phase is Phase.CLOSED:
                actions = (Discard(),)
            case CloseRequested() if self.phase is not Phase.CLOSED:
                actions = self._close()
            case Started() if self.phase is Phase.NEW:
                actions = self._connect()
            case WaitElapsed() if self.phase is Phase.BACKING_OFF:
                actions = self._connect()
            case Attached() if self.phase is Phase.CONNECTING:
                actions = self._attached()
            case AttachFailed() if self.phase is Phase.CONNECTING:
                actions = self._failed(event)
            case Lost() if self.phase is Phase.ATTACHED:
                actions = self._lost(event)
            case _:
                pass
        return actions

    def backoff_s(self, *, failures: int, jitter: float) -> float:
        """Seconds to wait after so many failures in a row: doubling, bounded, between half and all of the bound.

        The spread keeps a node's workers from knocking all at once when the sidecar returns.
        """
        doublings = min(max(failures - 1, 0), 32)
        ceiling = min(BACKOFF_S_MIN * 2.0**doublings, RECONNECT_BACKOFF_S_MAX)
        return ceiling * (0.5 + 0.5 * jitter)

    def _connect(self) -> tuple[Action, ...]:
        self.phase = Phase.CONNECTING
        return (BeginAttach(),)

    def _attached(self) -> tuple[Action, ...]:
        self.phase = Phase.ATTACHED
        self.reason = ""
        self.attaches += 1
        self._failures = 0
        return (Publish(),)

    def _failed(self, event: AttachFailed) -> tuple[Action, ...]:
        self.phase = Phase.BACKING_OFF
        self.reason = event.reason
        self._failures += 1
        if event.refused:
            # Asking again at once cannot help: what refuses us (a foreign namespace, no free row) changes slowly,
            # and gRPC serves meanwhile.
            return (UseRemote(event.reason), Wait(self._reattach_s * (0.5 + 0.5 * event.jitter)))
        return (Wait(self.backoff_s(failures=self._failures, jitter=event.jitter)),)

    def _lost(self, event: Lost) -> tuple[Action, ...]:
        self.phase = Phase.BACKING_OFF
        self.reason = event.reason
        self.losses += 1
        self._failures = 1
        return (Withdraw(), Wait(self.backoff_s(failures=1, jitter=event.jitter)))

    def _close(self) -> tuple[Action, ...]:
        published = self.phase is Phase.ATTACHED
        self.phase = Phase.CLOSED
        self.reason = "closed by its owner"
        return (Withdraw(), Finish()) if published else (Finish(),)
