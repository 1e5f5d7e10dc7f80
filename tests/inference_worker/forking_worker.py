"""A worker that forks, as a program: `python -m tests.inference_worker.forking_worker <scenario> <runtime> <transport>`.

It runs in a process of its own, since a fork of the test runner would take the runner's threads into the question.
Prints one JSON object.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inference_worker.client import Client, ClientSettings, RegisteredNamespace
from kv_types.errors import ClosedError
from kv_types.outcomes import Hit
from tests.inference_worker.worlds import all_stored, chain, namespace, pages_under, room_for
from tests.support.puts import put_fresh

CHILD_S_MAX = 20.0
Report = dict[str, Any]


def connected(runtime: str, transport: str) -> tuple[Client, RegisteredNamespace, bytes]:
    """A client with three pages stored."""
    settings = ClientSettings(shared_memory=transport == "shared_memory", deadline_s=5.0)
    client = Client.connect(runtime, settings=settings)
    assert client.wait_ready(deadline_s=10.0)
    ns = client.register(namespace("forks", layers=4))
    keys = chain(ns.identified, 3)
    put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes))
    return client, ns, keys


def answers(client: Client, ns: RegisteredNamespace, keys: bytes) -> Report:
    """Use the client for everything once; what came of it, and how long it took."""
    began = time.monotonic()
    room = room_for(keys, ns.page_bytes)
    outcome = client.get(ns, keys, room)
    right = [bytes(page) for page in room] == pages_under(keys, ns.page_bytes)
    fresh = chain(ns.identified, 2, seed=int.from_bytes(os.urandom(8)))
    stored = all_stored(put_fresh(client, ns, fresh, pages_under(fresh, ns.page_bytes)))
    with client.lease(ns, keys) as lease:
        leased = [bytes(page) for page in lease] == pages_under(keys, ns.page_bytes)
    with client.begin(ns) as request:
        stamped = request.stamp is not None
    statistics = client.statistics()
    return {
        "hit": outcome == Hit(3, outcome.tier) if isinstance(outcome, Hit) else repr(outcome),
        "right": right,
        "stored": stored,
        "leased": leased,
        "stamped": stamped,
        "took_s": time.monotonic() - began,
        "transport": statistics["transport"],
        "forks": statistics["forks"],
        "look_ups": statistics["look_ups"],
    }


def in_child(work: Callable[[], Report]) -> Report:
    """Fork, work there, and return the child's report with its exit status; the child ends as a program ends."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            report = work()
        except Exception as error:
            report = {"error": repr(error)}
        os.write(writing, json.dumps(report).encode())
        os.close(writing)
        sys.exit(0)
    os.close(writing)
    status = _await(pid)
    with os.fdopen(reading, "rb") as pipe:
        report = json.loads(pipe.read() or b"{}")
    return {**report, "status": status}


def _await(pid: int) -> int | str:
    deadline = time.monotonic() + CHILD_S_MAX
    pidfd = os.pidfd_open(pid)
    try:
        import select

        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll((deadline - time.monotonic()) * 1000):
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            return "hung"
    finally:
        os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _spawned(runtime: str, transport: str, sending: Any) -> None:
    client, ns, keys = connected(runtime, transport)
    sending.send(answers(client, ns, keys))
    client.close()


def both_kinds(runtime: str, transport: str) -> Report:
    """Fork and spawn after the client was used; the parent goes on after it."""
    client, ns, keys = connected(runtime, transport)
    before = answers(client, ns, keys)
    forked = in_child(lambda: answers(client, ns, keys))
    receiving, sending = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=_spawned, args=(runtime, transport, sending)
    )
    process.start()
    spawned = receiving.recv() if receiving.poll(CHILD_S_MAX) else {"error": "hung"}
    process.join(CHILD_S_MAX)
    parent = answers(client, ns, keys)
    grandchild = in_child(lambda: in_child(lambda: answers(client, ns, keys)))
    client.close()
    return {
        "before": before,
        "forked": forked,
        "spawned": spawned,
        "parent": parent,
        "grandchild": grandchild,
    }


@contextmanager
def busy_threads(client: Client, ns: RegisteredNamespace, keys: bytes) -> Iterator[list[str]]:
    """Four threads that use the client without a pause."""
    enough = threading.Event()
    failures: list[str] = []

    def work(number: int) -> None:
        room = room_for(keys, ns.page_bytes)
        while not enough.is_set():
            if not isinstance(client.get(ns, keys, room), Hit):
                failures.append("a get missed")
            client.register(namespace(f"busy-{number}"))
            client.statistics()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        enough.set()
        for thread in threads:
            thread.join()


def under_load(runtime: str, transport: str) -> Report:
    """Fork again and again while threads are inside the client."""
    client, ns, keys = connected(runtime, transport)
    with busy_threads(client, ns, keys) as failures:
        children = [in_child(lambda: answers(client, ns, keys)) for _ in range(8)]
    parent = answers(client, ns, keys)
    client.close()
    return {"children": children, "parent": parent, "failures": failures}


def held_over(runtime: str, transport: str) -> Report:
    """What the parent held when it forked, touched in the child."""
    client, ns, keys = connected(runtime, transport)
    lease = client.lease(ns, keys)
    request = client.begin(ns)

    def touch() -> Report:
        def attempt(call: Callable[[], object]) -> str:
            try:
                return repr(call())
            except ClosedError:
                return "ClosedError"

        report: Report = {
            "pages": attempt(lambda: lease.pages),
            "index": attempt(lambda: bytes(lease[0])[:1]),
            "iterate": attempt(lambda: len(list(lease))),
            "put": attempt(lambda: request.put(keys, pages_under(keys, ns.page_bytes))),
            "match": attempt(lambda: request.match(keys)),
        }
        with lease, request:
            pass
        lease.release()
        request.end()
        return {**report, **answers(client, ns, keys)}

    child = in_child(touch)
    readable = [bytes(page) for page in lease] == pages_under(keys, ns.page_bytes)
    held = client.statistics()["leases_held"]
    stored = all_stored(
        request.put(chain(ns.identified, 1, seed=int.from_bytes(os.urandom(8))), [bytes(ns.page_bytes)])
    )
    request.end()
    lease.release()
    released = client.statistics()["leases_held"]
    client.close()
    return {"child": child, "readable": readable, "held": held, "released": released, "stored": stored}


def descriptors(runtime: str, transport: str) -> Report:
    """Descriptors that a child has more than its parent had before it connected, once its client is closed."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    client, ns, keys = connected(runtime, transport)

    def work() -> Report:
        report = answers(client, ns, keys)
        client.close()
        return {**report, "left": len(list(Path("/proc/self/fd").iterdir())) - before}

    child = in_child(work)
    client.close()
    return {"child": child, "parent_left": len(list(Path("/proc/self/fd").iterdir())) - before}


SCENARIOS = {one.__name__: one for one in (both_kinds, under_load, held_over, descriptors)}

if __name__ == "__main__":
    print(json.dumps(SCENARIOS[sys.argv[1]](sys.argv[2], sys.argv[3])))
