"""The one background thread of a client: executes what the session machine decides, and nothing else."""

from __future__ import annotations

import os
import random
import select
import threading
import time
from typing import Protocol

from inference_worker.session import (
    Action,
    Attached,
    AttachFailed,
    BeginAttach,
    CloseRequested,
    Discard,
    Event,
    Finish,
    Lost,
    Publish,
    Session,
    Started,
    UseRemote,
    Wait,
    WaitElapsed,
    Withdraw,
)
from kv_types.errors import HandshakeError, StrataError

_JOIN_S = 1.0
_WATCH_S = 0.2
"""How often the header is looked at: a draining sidecar closes it first, and waits for its clients to leave."""


class Connection(Protocol):
    """An attached arena, as far as its life goes."""

    def fileno(self) -> int:
        """Return the descriptor that hangs up when the sidecar ends."""
        ...

    def is_ending(self) -> bool:
        """Whether the sidecar has closed its header, or the connection broke."""
        ...

    def close(self) -> None:
        """Detach."""
        ...


class Host(Protocol):
    """What the thread acts on."""

    def attach(self) -> Connection:
        """Make one attempt, within its own deadline. Raises StrataError."""
        ...

    def publish(self, connection: Connection) -> None:
        """Serve from it. Raises StrataError when it broke meanwhile."""
        ...

    def withdraw(self, connection: Connection) -> None:
        """Stop serving from it, and close it."""
        ...

    def use_remote(self) -> None:
        """Serve over gRPC meanwhile."""
        ...

    def attempted(self) -> None:
        """Take note that an attempt is over, and its outcome in place."""
        ...

    def attend(self) -> None:
        """Do what waits to be done while the published arena serves, within a bounded time."""
        ...


class Supervisor:
    """Runs a Session against a Host on a daemon thread until `stop`.

    The session is stepped on that thread alone. A stop is seen at once in every wait, and after the attempt that is
    under way, whose arena is then discarded.
    """

    def __init__(self, session: Session, host: Host) -> None:
        self.session = session
        self._host = host
        self._connection: Connection | None = None
        self._stopping = False
        self._wake_lock = threading.RLock()  # a stop may come from a finaliser on the thread that holds it
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="stratakv-session", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end and wait for it a bounded time; safe to call again, and from any thread."""
        self._stopping = True
        self.poke()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def poke(self) -> None:
        """Have the host attend soon, if an arena serves; from any thread, and again at no cost."""
        with self._wake_lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def abandon_in_child(self) -> None:
        """Close this process's copy of the descriptor; the thread and its locks exist in the parent only."""
        self._close_wake()

    def _close_wake(self) -> None:
        descriptor, self._wake = self._wake, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _run(self) -> None:
        event: Event | None = Started()
        try:
            while event is not None:
                event = self._execute(self.session.step(event))
        finally:
            # Whatever ended the thread: nobody may go on waiting for an attempt that will not come.
            self._host.attempted()
            with self._wake_lock:
                self._close_wake()

    def _execute(self, actions: tuple[Action, ...]) -> Event | None:
        following: Event | None = None
        for action in actions:
            following = self._perform(action)
        return following

    def _perform(self, action: Action) -> Event | None:
        match action:
            case BeginAttach():
                return self._attach()
            case Publish():
                return self._publish_and_watch()
            case Withdraw():
                self._withdraw()
            case UseRemote():
                self._host.use_remote()
            case Wait(delay_s):
                self._host.attempted()
                self._pause(delay_s)
                return CloseRequested() if self._stopping else WaitElapsed()
            case Discard():
                self._discard()
            case Finish():
                pass
        return None

    def _attach(self) -> Event:
        if self._stopping:
            return CloseRequested()
        try:
            self._connection = self._host.attach()
        except HandshakeError as error:
            return AttachFailed(str(error), refused=True, jitter=_jitter())
        except (StrataError, OSError) as error:
            return AttachFailed(str(error), refused=False, jitter=_jitter())
        return Attached()

    def _publish_and_watch(self) -> Event:
        assert self._connection is not None, "Publish follows Attached"
        try:
            self._host.publish(self._connection)
        except (StrataError, OSError) as error:
            return Lost(str(error), jitter=_jitter())
        self._host.attempted()
        while not self._stopping:
            self._host.attend()
            if self._wait(watch=self._connection.fileno(), timeout_s=_WATCH_S):
                return Lost("the sidecar closed the attach connection", jitter=_jitter())
            if self._connection.is_ending():
                return Lost("the sidecar is draining", jitter=_jitter())
        return CloseRequested()

    def _withdraw(self) -> None:
        assert self._connection is not None, "Withdraw follows Publish"
        connection, self._connection = self._connection, None
        self._host.withdraw(connection)

    def _discard(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _pause(self, delay_s: float) -> None:
        """Wait for a stop or the delay; nobody's poke makes the next attempt come sooner."""
        until = time.monotonic() + delay_s
        while not self._stopping and (left_s := until - time.monotonic()) > 0:
            self._wait(watch=None, timeout_s=left_s)

    def _wait(self, *, watch: int | None, timeout_s: float) -> bool:
        """Wait for a poke, the timeout, or `watch` to hang up; returns whether it did."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if watch is not None:
            # Replies are read by callers on their own threads: only the end of the connection is of interest here.
            poll.register(watch, select.POLLRDHUP)
        ready = [descriptor for descriptor, _ in poll.poll(max(1, round(timeout_s * 1000)))]
        if self._wake in ready:
            os.eventfd_read(self._wake)
        return watch in ready


def _jitter() -> float:
    return random.random()  # noqa: S311 (spreads reconnections; no secret)
