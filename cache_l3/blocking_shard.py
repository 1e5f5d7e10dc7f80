"""BlockingShard: connections with a thread each that share a queue; the most urgent job goes to whichever is idle."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable

from cache_l3.blocking_connection import BlockingConnection, Job, Verb
from cache_l3.data_path import Cancelled, TransferError
from kv_types.limits import L3_PASSED_OVER_MAX

OnLost = Callable[[str], None]


class BlockingShard:
    """Every job that it was given is told to `on_done` once, every connection that has ended to `on_gone`, from any thread."""

    def __init__(
        self,
        *,
        on_done: Callable[[Job, object], None],
        on_gone: Callable[[BlockingConnection, OnLost | None, str], None],
    ) -> None:
        self._on_done = on_done
        self._on_gone = on_gone
        self._lock = threading.Lock()
        self._queues: tuple[deque[Job], ...] = tuple(deque() for _ in Verb)
        self._passed_over = [0 for _ in Verb]
        self._storing = 0
        """Connections that carry out a SET."""
        self._idle: list[BlockingConnection] = []
        self._connections: dict[BlockingConnection, OnLost | None] = {}
        """Each with whom to tell of its end; None once the shard is closed."""
        self._is_closed = False

    @property
    def queued(self) -> int:
        """Jobs that wait for a connection."""
        return sum(len(queue) for queue in self._queues)

    def connections(self) -> list[BlockingConnection]:
        """Those that live."""
        with self._lock:
            return list(self._connections)

    def add(self, connection: socket.socket, on_lost: OnLost) -> BlockingConnection:
        """Own one more socket."""
        made = BlockingConnection(connection, self)
        with self._lock:
            self._connections[made] = on_lost
            self._idle.append(made)
            made.start()
            self._assign()
        return made

    def submit(self, job: Job) -> None:
        """Queue a job."""
        with self._lock:
            self._queues[job.verb].append(job)
            self._assign()

    def end(self, job: Job, how: type[TransferError]) -> None:
        """Nobody waits for a job any more: it ends as this unless it is ending already. Its connection goes with it."""
        with self._lock:
            if job.connection is not None:
                job.ended_as = job.ended_as or how
                job.connection.shut()
                return
            if job not in self._queues[job.verb]:
                return
            self._queues[job.verb].remove(job)
        self._on_done(job, how("given up while it waited", was_sent=False))

    def close(self) -> None:
        """End all jobs as Cancelled, and all connections, without telling `on_lost`."""
        with self._lock:
            self._is_closed = True
            waiting = [job for queue in self._queues for job in queue]
            for queue in self._queues:
                queue.clear()
            for connection in self._connections:
                self._connections[connection] = None
                connection.shut()
        for job in waiting:
            self._on_done(job, Cancelled("the shard is closed", was_sent=False))

    def done(self, connection: BlockingConnection, job: Job, outcome: object) -> None:
        """A connection is through with a job."""
        with self._lock:
            job.connection = None
            self._storing -= job.verb is Verb.SET
            if connection in self._connections and job.ended_as is None:
                self._idle.append(connection)
                self._assign()
        if self._is_closed and isinstance(outcome, TransferError):
            outcome = Cancelled("the shard is closed", was_sent=job.was_sent)
        self._on_done(job, outcome)

    def gone(self, connection: BlockingConnection, why: str) -> None:
        """A connection is of no use any more; told once or twice. A job that it was just given waits again."""
        with self._lock:
            if connection not in self._connections:
                return
            on_lost = self._connections.pop(connection)
            if connection in self._idle:
                self._idle.remove(connection)
            given = connection.take_back()
            if given is not None and not self._is_closed:
                given.connection = None
                self._storing -= given.verb is Verb.SET
                self._queues[given.verb].appendleft(given)
                given = None
            self._assign()
        if given is not None:
            self._on_done(given, Cancelled("the shard is closed", was_sent=False))
        self._on_gone(connection, on_lost, why)

    def _assign(self) -> None:
        while self._idle and (job := self._next()) is not None:
            self._storing += job.verb is Verb.SET
            job.connection = self._idle.pop()
            job.connection.give(job)

    def _next(self) -> Job | None:
        # One connection is left to loads and questions where there are others.
        may_store = self._storing + 1 < len(self._connections) or len(self._connections) == 1
        verbs = [verb for verb in Verb if may_store or verb is not Verb.SET]
        chosen: Verb | None = None
        for verb in verbs:
            if not self._queues[verb]:
                self._passed_over[verb] = 0
            elif chosen is None or self._passed_over[verb] >= L3_PASSED_OVER_MAX:
                chosen = verb
        if chosen is None:
            return None
        for verb in verbs:
            self._passed_over[verb] += 1 if self._queues[verb] else 0
        self._passed_over[chosen] = 0
        return self._queues[chosen].popleft()
