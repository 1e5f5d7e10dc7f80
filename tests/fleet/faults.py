"""What can happen to a fleet: faults that begin and end with a block, and leave all as it was but for what was lost."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeAlias

from redis.exceptions import OutOfMemoryError

from kv_types.clock import BoottimeClock
from tests.fleet.fleet import Fleet, WorkerProcess
from tests.support.processes import wait_until_running, wait_until_stopped

_CLOCK = BoottimeClock()

Fault: TypeAlias = Callable[[Fleet], AbstractContextManager[None]]


@contextlib.contextmanager
def redis_killed(fleet: Fleet) -> Iterator[None]:
    fleet.primary.kill()
    yield
    fleet.primary.start()


@contextlib.contextmanager
def redis_stopped(fleet: Fleet) -> Iterator[None]:
    fleet.primary.freeze()
    yield
    fleet.primary.thaw()


@contextlib.contextmanager
def redis_flushed(fleet: Fleet) -> Iterator[None]:
    fleet.primary.client.flushall()
    yield


@contextlib.contextmanager
def old_dump_loaded(fleet: Fleet) -> Iterator[None]:
    """What is invalidated within the block is lost with the server's end."""
    fleet.primary.save()
    yield
    fleet.primary.restart()


@contextlib.contextmanager
def replica_stopped(fleet: Fleet) -> Iterator[None]:
    fleet.replica.freeze()
    yield
    fleet.replica.thaw()


@contextlib.contextmanager
def redis_full(fleet: Fleet) -> Iterator[None]:
    """Something else has filled the server's memory, to the last byte that it may take."""
    client = fleet.primary.client
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + (1 << 20))
    with contextlib.suppress(OutOfMemoryError):
        for number in range(1000):
            client.set(f"filler:{number}", bytes(64 * 1024))
    yield
    client.config_set("maxmemory", 0)
    client.delete(*(f"filler:{number}" for number in range(1000)))


@contextlib.contextmanager
def roles_swapped(fleet: Fleet) -> Iterator[None]:
    """The replica is promoted; until the block ends the old primary lives on beside it, then it follows."""
    old, new = fleet.primary, fleet.replica
    new.promote()
    fleet.primary, fleet.replica = new, old
    yield
    old.follow(new)


@contextlib.contextmanager
def sidecar_killed(fleet: Fleet) -> Iterator[None]:
    fleet.sidecars[2].kill()
    yield
    fleet.sidecars[2].start()


@contextlib.contextmanager
def sidecar_stopped(fleet: Fleet) -> Iterator[None]:
    fleet.sidecars[1].pause()
    yield
    fleet.sidecars[1].signal(signal.SIGCONT)


@contextlib.contextmanager
def worker_killed(fleet: Fleet) -> Iterator[None]:
    fleet.workers[0].kill()
    yield
    fleet.workers[0].start()


@contextlib.contextmanager
def worker_stopped(fleet: Fleet) -> Iterator[None]:
    with one_stopped(fleet, fleet.workers[3]):
        yield


@contextlib.contextmanager
def one_stopped(fleet: Fleet, worker: WorkerProcess) -> Iterator[None]:
    """A worker stands still for the block; how long its look-up under way then takes is nobody's fault."""
    since_ns = _CLOCK.now_ns()
    worker.send(signal.SIGSTOP)
    wait_until_stopped(worker.pid)
    yield
    worker.send(signal.SIGCONT)
    wait_until_running(worker.pid)
    fleet.was_stopped(worker, since_ns, _CLOCK.now_ns())


FAULTS_OF_LOG: tuple[Fault, ...] = (
    redis_killed, redis_stopped, redis_flushed, old_dump_loaded, redis_full, replica_stopped, roles_swapped,
)  # fmt: skip
FAULTS_OF_NODES: tuple[Fault, ...] = (sidecar_killed, sidecar_stopped, worker_killed, worker_stopped)
