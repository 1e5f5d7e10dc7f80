"""Worker processes that tests kill, stop and fork: one function a behaviour, and the handle that tests hold.

A behaviour prints lines of JSON as it goes on, and waits where it says so until a line comes on stdin.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from cache_l2.attach_loads import Wanted
from cache_l2.attach_registrations import Registration
from cache_l2.reader import AttachedArena, Reserved
from kv_types.ids import PageKey, Stamp, log_incarnation
from kv_types.outcomes import STORED
from tests.support.pages import buffers, chain, namespace_of, packed, page_bytes_of, page_of, pages_of


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def wait_for_line() -> str:
    return sys.stdin.readline().strip()


def attach(path: str, units: int = 1) -> tuple[AttachedArena, Registration]:
    arena = AttachedArena.connect(path, name="test worker", prefault=False, deadline_s=10.0)
    namespace = namespace_of(units=units)
    return arena, arena.register(namespace.canonical, page_bytes_of(namespace), deadline_s=10.0)


def stamp_of(arena: AttachedArena) -> Stamp:
    _, incarnation, revision = arena.reader.stamp()
    return Stamp(log_incarnation(incarnation), revision)


def put(arena: AttachedArena, registration: Registration, keys: list[PageKey]) -> None:
    reserved = arena.reserve(registration, None, packed(keys), deadline_s=10.0)
    places = [place for place in reserved if isinstance(place, Reserved)]
    assert len(places) == len(keys), reserved
    arena.reader.fill(
        [place.offset for place in places], pages_of(keys, registration.page_bytes),
        page_bytes=registration.page_bytes, counter=registration.counter,
    )  # fmt: skip
    outcomes = arena.commit([place.id for place in places], stamp=stamp_of(arena), deadline_s=10.0)
    assert outcomes == [STORED] * len(keys), outcomes


def check(arena: AttachedArena, registration: Registration, keys: list[PageKey]) -> int:
    """Get the chain and compare every byte; returns the pages hit."""
    destinations = buffers(len(keys), registration.page_bytes)
    pages, _, _ = arena.reader.get(
        registration.counter,
        packed(keys),
        destinations,
        page_bytes=registration.page_bytes,
        namespace=registration.number,
    )
    for key, destination in zip(keys[:pages], destinations, strict=False):
        assert bytes(destination) == page_of(key, registration.page_bytes), "foreign or torn bytes"
    return pages


def puts(path: str, root: str, pages: int, units: int = 1) -> None:
    """Store a chain, then wait."""
    arena, registration = attach(path, units)
    put(arena, registration, chain(pages, root=bytes.fromhex(root)))
    say(stored=pages)
    wait_for_line()
    arena.close()


def gets(path: str, root: str, pages: int, units: int = 1) -> None:
    """Read a chain and compare bytes."""
    arena, registration = attach(path, units)
    say(pages=check(arena, registration, chain(pages, root=bytes.fromhex(root))))
    arena.close()


def dies_writing(path: str, root: str, pages: int, stage: str) -> None:
    """Come as far as `stage` with a put, then wait to be killed."""
    arena, registration = attach(path)
    keys = chain(pages, root=bytes.fromhex(root))
    places = arena.reserve(registration, None, packed(keys), deadline_s=10.0)
    if stage != "reserved":
        for key, place in zip(keys, places, strict=True):
            assert isinstance(place, Reserved)
            view = memoryview(arena.reader.slot(place.offset, registration.page_bytes)).cast("B")
            size = registration.page_bytes // (2 if stage == "half" else 1)
            view[:size] = page_of(key, registration.page_bytes)[:size]
    say(stage=stage)
    wait_for_line()


def crowds(path: str, root: str, connections: int) -> None:
    """Keep so many connections open that say nothing, each opened anew when it is closed, until a line comes."""
    open_: list[socket.socket] = []
    poller = select.poll()
    poller.register(sys.stdin, select.POLLIN)
    while True:
        while len(open_) < connections:
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.connect(path)
            poller.register(one, select.POLLIN)
            open_.append(one)
            if len(open_) == connections:
                say(open=connections)
        ended = {descriptor for descriptor, _ in poller.poll()}
        if sys.stdin.fileno() in ended:
            return
        for one in [one for one in open_ if one.fileno() in ended]:
            poller.unregister(one)
            open_.remove(one)
            one.close()


def leases(path: str, root: str, pages: int, times: int) -> None:
    """Look a chain up `times` times and never let go."""
    arena, registration = attach(path)
    keys = packed(chain(pages, root=bytes.fromhex(root)))
    held = [
        arena.reader.lease(registration.counter, keys, namespace=registration.number) for _ in range(times)
    ]
    say(leased=sum(lease.pages for lease in held))
    if wait_for_line() == "return":
        say(kept=len(held))


def loads(path: str, root: str) -> None:
    """Ask for two loads, one of which is waited for; a child keeps the socket."""
    arena, registration = attach(path)
    keys = chain(2, root=bytes.fromhex(root))
    wanted = [Wanted(registration.number, None, packed(keys))]
    arena.begin_load(wanted, deadline_s=60.0)
    duplicate = socket.socket(fileno=os.dup(arena.fileno()))
    child = os.fork()
    if child == 0:
        signal.pause()
    threading.Thread(target=arena.load, args=(wanted,), kwargs={"deadline_s": 60.0}, daemon=True).start()
    say(asked=2, child=child, socket=duplicate.fileno())
    wait_for_line()


def holds_socket_in_child(path: str, root: str) -> None:
    """Leave a forked child behind that holds the attach socket, its pid said, and wait to be killed."""
    arena, registration = attach(path)
    keys = chain(2, root=bytes.fromhex(root))
    put(arena, registration, keys)
    lease = arena.reader.lease(registration.counter, packed(keys), namespace=registration.number)
    duplicate = socket.socket(fileno=os.dup(arena._channel._socket.fileno()))
    child = os.fork()
    if child == 0:
        signal.pause()
    say(child=child, leased=lease.pages, socket=duplicate.fileno())
    wait_for_line()


def forks(path: str, root: str) -> None:
    """Fork after attaching: the child finds its copy closed and attaches itself; the parent goes on."""
    arena, registration = attach(path)
    keys = chain(3, root=bytes.fromhex(root))
    put(arena, registration, keys)
    child = os.fork()
    if child == 0:
        os._exit(_in_child(arena, path, keys))
    _, status = os.waitpid(child, 0)
    again = check(arena, registration, keys)
    arena.reserve(registration, None, packed(chain(1)), deadline_s=10.0)
    say(child=os.waitstatus_to_exitcode(status), parent_pages=again, alive=arena.alive)
    arena.close()


def _in_child(arena: AttachedArena, path: str, keys: list[PageKey]) -> int:
    from kv_types.errors import ClosedError

    if arena.alive:
        return 1
    for touch in (lambda: arena.reader, lambda: arena.ping(deadline_s=1.0)):
        try:
            touch()
        except ClosedError as error:
            if "forked" not in str(error):
                return 2
        else:
            return 3
    arena.close()
    own, registration = attach(path)
    arena._reader = None  # as garbage collection does: the new mapping may stand where the parent's stood
    pages = check(own, registration, keys)
    own.close()
    return 0 if pages == len(keys) else 4


def copies_slowly(path: str, root: str, pages: int, units: int) -> None:
    """Copy a chain under a lease of 50 ms again and again, each time saying how it ended."""
    arena, registration = attach(path, units)
    keys = packed(chain(pages, root=bytes.fromhex(root)))
    destination = bytearray(pages * registration.page_bytes)
    say(row=arena.row)
    while True:
        begun = time.monotonic()
        got, reason, _ = arena.reader.get(
            registration.counter,
            keys,
            destination,
            page_bytes=registration.page_bytes,
            lease_ns=50_000_000,
            namespace=registration.number,
        )
        say(pages=got, reason=reason, seconds=time.monotonic() - begun)


class Worker:
    """A worker process running one of the functions above, ended with the `with` block."""

    def __init__(self, behaviour: str, path: Path, *arguments: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.attach_worker", behaviour, json.dumps([str(path), *arguments])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def hear(self) -> dict[str, Any]:
        """The next line that it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the worker ended with {self._process.wait(10)} instead of answering"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def tell(self, line: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def wait(self) -> int:
        return self._process.wait(20)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*json.loads(sys.argv[2]))
