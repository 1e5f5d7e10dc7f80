"""The attach socket: workers get the arena's descriptors here, reserve and commit, and are followed until they end.

Nothing that a client sends may raise out of a handler, wait, or touch another client. A client's row ends with its
process (pidfd); with its connection alone it becomes an orphan (rule R17).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

from cache_l2.attach_messages import (
    CancelLoad,
    Detach,
    Done,
    Failed,
    Hello,
    Load,
    LoadedPages,
    Looked,
    Refusal,
    Refused,
    Register,
    SidecarMessage,
)
from cache_l2.attach_socket import Datagram, DatagramReceiver, close_all, peer_of
from cache_l2.attach_wire import HELLO_DESCRIPTORS, PROTOCOL_VERSION, decode_client_message
from cache_l2.namespaces import NamespaceRecord
from cache_l2.store import ArenaStore
from kv_types.clock import Clock
from kv_types.errors import LimitExceededError, OverloadedError, ProtocolError, StrataError
from kv_types.limits import CLIENT_ROWS_PER_PROCESS_MAX, LISTINGS_IN_FLIGHT_PER_CLIENT_MAX
from kv_types.validity import EngineMode
from sidecar.attach.connection import (
    Asked,
    AttachedProcess,
    Connection,
    ReceiverTooSlowError,
    stop_watching,
    take_rings,
)
from sidecar.attach.endpoint import listen_on, unlink_own
from sidecar.attach.loads import ClientLoads
from sidecar.attach.requests import Request, carry_out
from sidecar.attach.strangers import Strangers
from sidecar.attach.welcome import Refusing, judge_hello, welcome
from sidecar.l3.loads import Loads
from sidecar.log.directory import ListsNamespaces
from sidecar.logs import SeldomLogger, logger

_BACKLOG = 128
_ACCEPTS_PER_WAKE = 16
_MESSAGES_PER_WAKE = 8
_TURN_S = 0.002
"""A client whose messages have kept the event loop for so long lets others have their turn."""
_ACCEPT_PAUSE_S = 0.2

Observer: TypeAlias = Callable[[str, float], None]

_log = logger("attach")


class AttachServer:
    """Serves one ArenaStore on one socket path, in the event loop that calls `start`."""

    def __init__(
        self,
        store: ArenaStore,
        path: Path,
        *,
        clock: Clock,
        directory: ListsNamespaces,
        loads: Loads,
        observe: Observer | None = None,
        engine_came: Callable[[], object] = lambda: None,
        looked: Callable[[Looked], None] = lambda message: None,
    ) -> None:
        """`directory` must list a namespace before its registration is answered: what a client begins then may be stored.
        `loads` brings what clients ask for from L3.
        `observe` is told the name and the seconds of each request that was carried out.
        `engine_came` is called when a client has attached whose engine keeps its pages: the log is to know of it soon.
        `looked` hears of look-ups that clients tell of, if they may use the namespace.
        """
        self._store = store
        self._directory = directory
        self._loads = ClientLoads(store, loads, clock=clock)
        self._observe = observe
        self._engine_came, self._looked = engine_came, looked
        self._path = path
        self._clock = clock
        self._seldom = SeldomLogger(_log, clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: socket.socket | None = None
        self._inode = 0
        self._receiver = DatagramReceiver()
        self._connections: set[Connection] = set()
        self._strangers = Strangers(self._on_silence)
        self._processes: dict[int, AttachedProcess] = {}
        self._counts: Counter[str] = Counter()
        self._is_settling = False
        self._empty = asyncio.Event()
        self._listing: set[asyncio.Task[None]] = set()

    @property
    def path(self) -> Path:
        """Where clients connect."""
        return self._path

    async def start(self) -> None:
        """Listen, for this user alone (0600). A stale path is taken over.

        Raises EndpointInUseError naming the holder when somebody listens there, ConfigError when it is no usable path.
        """
        self._loop = asyncio.get_running_loop()
        self._listener, self._inode = listen_on(self._path, backlog=_BACKLOG)
        self._loop.add_reader(self._listener, self._on_accept)

    async def stop(self, drain_s: float) -> None:
        """Stop listening, let clients leave for `drain_s` at most, then close every connection. Idempotent.

        Close the store's header first (`ArenaStore.drain`): it is what tells clients to leave.
        """
        loop = self._running_loop()
        if self._listener is not None:
            loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            unlink_own(self._path, self._inode)
        for process in list(self._processes.values()):
            self._loads.close(process)
        if self._connections and drain_s > 0:
            self._empty.clear()
            try:
                await asyncio.wait_for(self._empty.wait(), drain_s)
            except TimeoutError:
                _log.info("clients stay attached to a sidecar that ends", clients=len(self._connections))
        for task in list(self._listing):
            task.cancel()
        for connection in list(self._connections):
            self._close(connection)
        for process in list(self._processes.values()):
            stop_watching(process, loop)
        self._processes.clear()

    def statistics(self) -> Mapping[str, int]:
        """Counters since start, and `connections` and `processes` now."""
        names = (
            "accepted", "attached", "detached", "ended", "orphaned", "refused", "garbage", "dropped_slow",
            "handshakes_timed_out", "shed", "failed_requests", "handler_errors", "messages",
        )  # fmt: skip
        return {
            **{name: self._counts[name] for name in names},
            "connections": len(self._connections),
            "processes": len(self._processes),
        }

    def processes(self) -> list[AttachedProcess]:
        """Clients whose processes live, in the order of their rows."""
        return [self._processes[row] for row in sorted(self._processes)]

    # --- connections ---

    def _on_accept(self) -> None:
        assert self._listener is not None
        loop = self._running_loop()
        for _ in range(_ACCEPTS_PER_WAKE):
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # out of descriptors, most likely: a level-triggered loop would spin on the waiting connection
                self._seldom.warning("accepting failed", error=str(error))
                loop.remove_reader(self._listener)
                loop.call_later(_ACCEPT_PAUSE_S, self._resume_accepting)
                return
            self._take_in(accepted)

    def _resume_accepting(self) -> None:
        if self._listener is not None:
            self._running_loop().add_reader(self._listener, self._on_accept)

    def _take_in(self, accepted: socket.socket) -> None:
        loop = self._running_loop()
        self._counts["accepted"] += 1
        accepted.setblocking(False)
        connection = Connection(accepted, peer_of(accepted), loop)
        self._connections.add(connection)
        loop.add_reader(accepted, self._on_readable, connection)
        shed = self._strangers.admit(connection, loop)
        if shed is not None:
            self._counts["shed"] += 1
            self._close(shed)

    def _on_silence(self, connection: Connection) -> None:
        self._counts["handshakes_timed_out"] += 1
        self._close(connection)

    def _on_readable(self, connection: Connection) -> None:
        turn_ends = time.perf_counter() + _TURN_S
        try:
            for _ in range(_MESSAGES_PER_WAKE):
                if connection.is_closed or not self._take_message(connection):
                    return
                if time.perf_counter() > turn_ends:
                    return
        except Exception:  # noqa: BLE001  (the boundary to what clients send: one of them must not stop the loop)
            self._drop_unhandled(connection)

    def _drop_unhandled(self, connection: Connection, error: BaseException | None = None) -> None:
        """`error`: None is the one that is being handled."""
        self._counts["handler_errors"] += 1
        self._seldom.error(
            "a client's message could not be handled; it is dropped",
            pid=connection.pid,
            exc_info=error or True,
        )
        self._close(connection)

    def _drop_slow(self, connection: Connection) -> None:
        self._counts["dropped_slow"] += 1
        self._seldom.warning("a client does not read its replies; it is dropped", pid=connection.pid)
        self._close(connection)

    def _take_message(self, connection: Connection) -> bool:
        """Handle one message; False when none is there or the connection has ended."""
        is_stranger = connection.process is None
        try:
            datagram = self._receiver.receive(
                connection.socket, descriptors=HELLO_DESCRIPTORS if is_stranger else 0
            )
        except BlockingIOError:
            return False
        except OSError:
            # said once, when a client left replies unread; what it had sent before it left comes after it
            if connection.was_reset:
                self._close(connection)
            connection.was_reset = True
            return not connection.is_closed
        if datagram is None:
            self._close(connection)
            return False
        self._counts["messages"] += 1
        descriptors = list(datagram.descriptors)
        try:
            self._handle(connection, datagram, descriptors)
        except ProtocolError as error:
            self._counts["garbage"] += 1
            self._seldom.warning(
                "garbage on the attach socket", pid=connection.pid, uid=connection.peer.uid, error=str(error)
            )
            self._close(connection)
        except ReceiverTooSlowError:
            self._drop_slow(connection)
        except OSError:
            self._close(connection)
        finally:
            close_all(descriptors)
        return not connection.is_closed

    def _handle(self, connection: Connection, datagram: Datagram, descriptors: list[int]) -> None:
        if datagram.problem is not None:
            raise ProtocolError(datagram.problem)
        request, message = decode_client_message(datagram.data)
        process = connection.process
        if process is None:
            if not isinstance(message, Hello):
                raise ProtocolError(f"{type(message).__name__} before the handshake")
            self._shake_hands(connection, request, message, descriptors)
            return
        if isinstance(message, Hello):
            raise ProtocolError("a second handshake on one connection")
        if isinstance(message, Detach):
            self._detach(connection, request, process)
            return
        asked = Asked(connection, process, request, type(message).__name__.lower(), time.perf_counter())
        reply: SidecarMessage | None
        try:
            reply = self._reply_to(asked, message)
        except StrataError as error:
            reply = self._failed(error)
        if reply is not None:
            self._answer(asked, reply)

    def _reply_to(self, asked: Asked, message: Request | Load | CancelLoad | Looked) -> SidecarMessage | None:
        """Carry out a request; None where it is answered later. Raises StrataError."""
        if isinstance(message, Looked):
            if message.namespace_number in asked.process.registered:
                self._looked(message)
            return None
        if isinstance(message, Load):
            return self._loads.begin(asked.process, asked.request, message, partial(self._answer_load, asked))
        if isinstance(message, CancelLoad):
            self._loads.cancel(asked.process, message.request)
            return Done()
        if isinstance(message, Register) and self._is_put_off(asked, message):
            return None
        return carry_out(self._store, self._clock, asked.process, message)

    def _answer_load(self, asked: Asked, outcome: LoadedPages | BaseException) -> None:
        """Answer a load whose turn it is."""
        if isinstance(outcome, LoadedPages):
            self._answer_later(asked, outcome)
        elif isinstance(outcome, StrataError):
            self._answer_later(asked, self._failed(outcome))
        else:
            self._drop_unhandled(asked.connection, outcome)

    def _answer_later(self, asked: Asked, reply: SidecarMessage) -> None:
        """Answer when the client sends nothing: it may have gone meanwhile, and is dropped where it does not listen."""
        if asked.connection.process is not asked.process:
            return
        try:
            self._answer(asked, reply)
        except ReceiverTooSlowError:
            self._drop_slow(asked.connection)
        except OSError:
            self._close(asked.connection)

    def _answer(self, asked: Asked, reply: SidecarMessage) -> None:
        asked.connection.send(reply, asked.request, version=PROTOCOL_VERSION)
        if self._observe is not None:
            self._observe(asked.kind, time.perf_counter() - asked.began)

    def _failed(self, error: StrataError) -> Failed:
        self._counts["failed_requests"] += 1
        return Failed(error.code, str(error))

    # --- registrations that wait for the fleet's directory ---

    def _is_put_off(self, asked: Asked, message: Register) -> bool:
        """Whether the registration is answered later, because the directory does not list the namespace yet."""
        record = self._store.register(message.canonical, message.page_bytes)
        if self._directory.is_listed(record.id):
            return False
        if asked.process.listing >= LISTINGS_IN_FLIGHT_PER_CLIENT_MAX:
            raise OverloadedError(
                f"{asked.process.listing} registrations of this client wait already; try again"
            )
        asked.process.listing += 1
        task = self._running_loop().create_task(
            self._register_listed(asked, message, record), name="registration"
        )
        self._listing.add(task)
        task.add_done_callback(self._listing.discard)
        return True

    async def _register_listed(self, asked: Asked, message: Register, record: NamespaceRecord) -> None:
        reply: SidecarMessage
        try:
            try:
                await self._directory.list_namespace(record)
                if asked.connection.process is not asked.process:  # gone meanwhile, and its row with it
                    return
                reply = carry_out(self._store, self._clock, asked.process, message)
            except StrataError as error:
                reply = self._failed(error)
            finally:
                asked.process.listing -= 1
            self._answer_later(asked, reply)
        except Exception:  # noqa: BLE001  (as in _on_readable)
            self._drop_unhandled(asked.connection)

    def _close(self, connection: Connection) -> None:
        """The connection is over. Its process, if it attached, becomes an orphan until its pidfd fires."""
        if connection.is_closed:
            return
        connection.close()
        self._connections.discard(connection)
        self._strangers.leave(connection)
        process, connection.process = connection.process, None  # no cycle that only the collector ends
        if process is not None:
            self._loads.abandon(process)
        if process is not None and self._processes.get(process.row) is process:
            process.connection = None
            self._counts["orphaned"] += 1
            self._store.orphan_client(process.row)
        if not self._connections:
            self._empty.set()

    # --- lives ---

    def _shake_hands(
        self, connection: Connection, request: int, hello: Hello, descriptors: list[int]
    ) -> None:
        refusal = judge_hello(hello, connection.peer, descriptors, now_ns=self._clock.now_ns())
        if refusal is None and self._store.is_draining:
            refusal = Refusing(Refusal.CLOSING, "this sidecar is ending")
        if refusal is not None:
            self._refuse(connection, request, refusal)
            return
        self._end_gone(connection, hello)
        rows = sum(bool(one.pid) and one.pid == connection.pid for one in self._processes.values())
        if rows >= CLIENT_ROWS_PER_PROCESS_MAX:
            text = f"process {connection.pid} has {rows} client rows, all that one may have: share a client, or close some"
            self._refuse(connection, request, Refusing(Refusal.ROWS_FULL, text))
            return
        try:
            row = self._store.open_client(connection.pid, engine=hello.engine, name=hello.name)
        except LimitExceededError as error:
            self._refuse(connection, request, Refusing(Refusal.ROWS_FULL, str(error)))
            return
        process = AttachedProcess(
            row=row, pid=connection.pid, pidfd=descriptors[0], name=hello.name, writable=bool(hello.role),
            connection=connection, attachment=secrets.randbits(64), engine=hello.engine,
        )  # fmt: skip
        descriptors.clear()  # the pidfd is the process's now
        try:
            process.doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._running_loop().add_reader(process.pidfd, self._on_exit, process)
            self._running_loop().add_reader(process.doorbell, self._on_doorbell, process)
        except OSError:
            stop_watching(process, self._running_loop())
            self._store.end_client(row)
            raise
        connection.process = process
        self._strangers.leave(connection)
        self._processes[row] = process
        self._counts["attached"] += 1
        try:
            has_l3 = self._loads.is_available
            welcome(self._store, self._clock, connection, request, process, has_l3=has_l3)
        except BaseException:
            self._end(process)  # nobody has heard of this row: a client that gave up must not leave an orphan
            raise
        self._seldom.info(
            "client attached", about=process.pid, pid=process.pid, row=row, name=process.name, writable=process.writable,
            engine=process.engine.name.lower(),
        )  # fmt: skip
        if process.engine is EngineMode.KEEP:
            self._engine_came()

    def _on_doorbell(self, process: AttachedProcess) -> None:
        take_rings(process.doorbell)
        self._settle_posts()

    def _settle_posts(self) -> None:
        """Carry out a part of what was posted; the rest when others have had their turn, however often it rings meanwhile."""
        if not self._is_settling and self._store.settle_some_posts():
            self._is_settling = True
            self._running_loop().call_soon(self._settle_more_posts)

    def _settle_more_posts(self) -> None:
        self._is_settling = False
        self._settle_posts()

    def _end_gone(self, connection: Connection, hello: Hello) -> None:
        """End what this process says it has unmapped; its connections may not be seen broken yet."""
        gone = set(hello.gone)
        for process in [one for one in self._processes.values() if one.attachment in gone]:
            if process.pid == connection.pid:
                self._on_exit(process)

    def _refuse(self, connection: Connection, request: int, refusal: Refusing) -> None:
        self._counts["refused"] += 1
        self._seldom.warning(
            "handshake refused",
            pid=connection.pid,
            uid=connection.peer.uid,
            why=refusal.code.name,
            text=refusal.text,
        )
        connection.send(Refused(refusal.code, refusal.text), request, version=PROTOCOL_VERSION)
        self._close(connection)

    def _detach(self, connection: Connection, request: int, process: AttachedProcess) -> None:
        self._counts["detached"] += 1
        if not self._store.client_leases(process.row):
            self._end(process)  # with whatever it had reserved: who detaches has finished writing
        # ended before it is told: a client that does not wait for the answer must not leave an orphan
        connection.send(Done(), request, version=PROTOCOL_VERSION)
        self._close(connection)

    def _on_exit(self, process: AttachedProcess) -> None:
        """The process ended: so do its leases and reservations, even if a child still holds the socket."""
        self._end(process)
        if process.connection is not None:
            self._close(process.connection)

    def _end(self, process: AttachedProcess) -> None:
        if self._processes.pop(process.row, None) is None:
            return
        stop_watching(process, self._running_loop())
        self._loads.abandon(process)
        self._counts["ended"] += 1
        self._store.end_client(process.row)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the server was not started"
        return self._loop
