"""BlockingConnection: a thread that carries out one request at a time over a socket that blocks, TLS or not."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from typing_extensions import Buffer

from cache_l3.blocking_replies import ReplyStream, raise_refusal, skip_asking
from cache_l3.data_path import Lost, Malformed, ServerRefused, TransferError


class Verb(IntEnum):
    """In the order in which connections take them."""

    GET = 0
    ASK = 1
    SET = 2


@dataclass(slots=True, eq=False)
class Job:
    """One request: what is sent, and how its reply is read; both are called in the connection's thread."""

    verb: Verb
    deadline_ns: int
    parts: Callable[[], Iterable[Buffer]]
    read: Callable[[ReplyStream], object]
    asking: bool
    was_sent: bool = False
    connection: BlockingConnection | None = None
    ended_as: type[TransferError] | None = None
    """Why its connection was shut while it was under way."""


class Shard(Protocol):
    """Who gives a connection its jobs; called in the connection's thread."""

    def done(self, connection: BlockingConnection, job: Job, outcome: object) -> None:
        """Nothing of the job is under way any more; the outcome may be an exception. The connection may have another."""
        ...

    def gone(self, connection: BlockingConnection, why: str) -> None:
        """The connection has ended, with nothing under way."""
        ...


class BlockingConnection(threading.Thread):
    """Waits for a job, or for the end of its socket, which it owns."""

    def __init__(self, connection: socket.socket, shard: Shard) -> None:
        super().__init__(name="stratakv-l3-connection", daemon=True)
        self._socket = connection
        self._shard = shard
        self._stream = ReplyStream(connection)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._job: Job | None = None
        self._is_sending = False
        self.bytes_out = 0

    @property
    def bytes_in(self) -> int:
        """Received so far."""
        return self._stream.bytes_in

    def give(self, job: Job) -> None:
        """One job, to a connection that has none and is not gone."""
        self._job = job
        os.eventfd_write(self._wake, 1)

    def take_back(self) -> Job | None:
        """What it was given and has not begun; it will not begin it any more."""
        job, self._job = self._job, None
        return job

    def shut(self) -> None:
        """From any thread, before it is gone: whatever it waits for ends now, and it with that."""
        with contextlib.suppress(OSError):
            # That of the plain socket: the TLS object's own would leave its reader with bytes that nobody deciphers.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def run(self) -> None:
        """Until the socket ends, or what comes over it makes no sense."""
        why = ""
        try:
            while not why:
                why = self._turn()
        finally:
            self._shard.gone(self, why or "an error in the data path itself")
            self._socket.close()
            os.close(self._wake)

    def _turn(self) -> str:
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        ready.register(self._wake, select.POLLIN)
        if self._wake not in {descriptor for descriptor, _ in ready.poll()}:
            return self._look_at_idle_socket()
        os.eventfd_read(self._wake)
        job = self.take_back()
        return "" if job is None else self._carry_out(job)

    def _carry_out(self, job: Job) -> str:
        why = ""
        try:
            outcome = self._exchange(job)
        except ServerRefused as refused:
            outcome = refused
            why = str(refused) if self._is_sending or refused.error.hangs_up else ""
        except TransferError as error:
            why, outcome = str(error), error
        except Exception as error:  # noqa: BLE001 - whatever it is, the job has to end, and nobody else could end it
            why = _said(error)
            outcome = Lost(why, was_sent=job.was_sent)
        if why and job.ended_as is not None:
            outcome = job.ended_as("given up while it was under way", was_sent=job.was_sent)
        if why:
            self._shard.gone(self, why)
        self._shard.done(self, job, outcome)
        return why

    def _exchange(self, job: Job) -> object:
        self._is_sending = True
        try:
            self._send(job)
        except OSError:  # it takes no more; what it said before it hung up may tell why
            raise_refusal(self._stream.line())
            raise
        self._is_sending = False
        if job.asking:
            skip_asking(self._stream)
        outcome = job.read(self._stream)
        if self._stream.waiting:
            raise Malformed("the server said more than it was asked", was_sent=True)
        return outcome

    def _send(self, job: Job) -> None:
        for part in job.parts():
            job.was_sent = True
            self._socket.sendall(part)
            self.bytes_out += memoryview(part).nbytes

    def _look_at_idle_socket(self) -> str:
        """Something came unasked: the end, mostly; over TLS it may be a record that is for TLS alone."""
        self._socket.setblocking(False)
        try:
            if not self._socket.recv(1):
                return "the server closed the connection"
        except (BlockingIOError, ssl.SSLWantReadError):
            self._socket.setblocking(True)
            return ""
        except OSError as error:
            return _said(error)
        return "the server spoke unasked"


def _said(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
