"""What happens around a fork: gRPC calls are let end first, and in the child every client starts anew.

gRPC cannot be used in a child that was forked while another thread was inside it: its background threads are gone
and its locks stay held. So calls pass a gate that a fork closes. A process that spawns (exec) needs none of this.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from inference_worker.deadlines import Deadline
from kv_types.limits import FORK_WAIT_S_MAX


class Forkable(Protocol):
    """Something with state that a forked child must not share with its parent."""

    def reset_in_child(self) -> None:
        """Drop what belongs to the parent, without touching it; runs in the child, on its only thread."""
        ...


class CallGate:
    """Counts gRPC calls in flight; a fork waits for them to end, bounded, and holds new ones back meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._calls = 0
        self._forking = 0

    def enter(self, deadline: Deadline) -> bool:
        """Begin a call; False when a fork held it back until its deadline. Pair with `leave`."""
        with self._changed:
            if self._forking and not self._changed.wait_for(
                lambda: not self._forking, deadline.remaining_s()
            ):
                return False
            self._calls += 1
            return True

    def leave(self) -> None:
        """End a call that entered."""
        with self._changed:
            self._calls = max(0, self._calls - 1)  # a child forgot the calls that its parent had in flight
            self._changed.notify_all()

    @property
    def calls(self) -> int:
        """Calls in flight."""
        return self._calls

    @property
    def forking(self) -> bool:
        """Whether a fork is under way."""
        return bool(self._forking)

    def before_fork(self) -> None:
        """Hold back new calls and wait for those in flight."""
        with self._changed:
            self._forking += 1
            self._changed.wait_for(lambda: not self._calls, FORK_WAIT_S_MAX)

    def after_in_parent(self) -> None:
        """Let calls through again."""
        with self._changed:
            self._forking -= 1
            self._changed.notify_all()

    def after_in_child(self) -> None:
        """Open the gate of a process in which no other thread exists."""
        self._changed = threading.Condition(threading.Lock())
        self._calls = 0
        self._forking = 0


GATE = CallGate()
"""Every gRPC call of this process's clients passes here."""

_members: weakref.WeakSet[Forkable] = weakref.WeakSet()
_inherited: list[object] = []


def reset_after_fork(member: Forkable) -> None:
    """Have `member` reset in every child forked from now on, for as long as it lives."""
    _members.add(member)


def keep_untouched(inherited: object) -> None:
    """Keep something of the parent's for the life of this child, so that no finaliser runs on it."""
    _inherited.append(inherited)


def _in_child() -> None:
    GATE.after_in_child()
    for member in list(_members):
        member.reset_in_child()


os.register_at_fork(before=GATE.before_fork, after_in_parent=GATE.after_in_parent, after_in_child=_in_child)
