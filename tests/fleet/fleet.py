"""A fleet of real processes on one machine: redis-servers, sidecars, workers under load, and the history of what these got."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from kv_types.clock import BoottimeClock
from tests.fleet.accounts import Account
from tests.fleet.checker import (
    Broken,
    Span,
    broke_accounts,
    broke_deadline,
    broke_fail_closed,
    broke_fence,
    broke_sharing,
    broke_sparing,
    broke_whole,
)
from tests.fleet.history import HistoryFile, LookUp
from tests.fleet.invalidating import invalidate
from tests.fleet.metronome import Metronome, Pause
from tests.fleet.purges import Purge, Purged
from tests.fleet.worker import WorkerPlan
from tests.support.daemon import ROOT, clean_environment
from tests.support.fault_relay import FaultRelay
from tests.support.polling import wait_until
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_servers import RedisServers, redis_servers
from tests.support.sidecar_process import SidecarProcess

LEASE_S = 1.0
PAUSE_S = 0.2
WINDOW_S = (LEASE_S + PAUSE_S) * 1.001
"""How long a fence waits for who is silent (rule R11)."""
ARENA_BYTES = 16 * 2**20
HISTORY_BYTES_MAX = 64 * 2**20
SHARED_NS = 2_000_000_000
"""So long after a worker has got a page, every node is due to have it through L3, on a machine that is busy with all this."""
SIDECAR_FLAGS = (
    "--freshness-lease", f"{LEASE_S}s", "--pause-bound", f"{PAUSE_S}s", "--skew-bound", "0",
    "--log-deadline", "500ms", "--copy-kernel", "memcpy", "--metrics-port", "off", "--no-prefault",
)  # fmt: skip

_CLOCK = BoottimeClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What each worker does; see WorkerPlan. The last worker of the last sidecar uses gRPC alone."""

    tenants: int = 2
    chains: int = 5
    pages: int = 6
    tags: int = 4
    per_s: float = 60.0
    compute_ms_max: float = 200.0
    l1_share: float = 0.5
    units: Sequence[int] = (1,)
    deadlines_ms: tuple[float, ...] = ()


class WorkerProcess:
    """One worker and its lives; each life writes a history of its own."""

    def __init__(
        self, name: str, directory: Path, *, sidecar: int, plan: WorkerPlan, program: tuple[str, ...]
    ) -> None:
        """`program`: what Python runs, given the plan as its last argument."""
        self.name = name
        self.sidecar = sidecar
        self.files: list[HistoryFile] = []
        self._directory = directory
        self._plan = plan
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the worker was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def output(self) -> str:
        """What it printed last, in all its lives."""
        log = self._directory / f"{self.name}.log"
        return log.read_text(errors="replace")[-2000:] if log.exists() else ""

    def start(self) -> None:
        life = len(self.files)
        path = self._directory / f"{self.name}-{life}.jsonl"
        plan = {**asdict(self._plan), "history": str(path), "seed": self._plan.seed * 1000 + life}
        with (self._directory / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._program, json.dumps(plan)],
                cwd=ROOT, env=clean_environment(), stdin=subprocess.PIPE, stdout=log, stderr=log,
            )  # fmt: skip
        self.files.append(HistoryFile(path, worker=self.name, sidecar=self.sidecar))

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def stop(self) -> int:
        """Have it end by itself; returns its exit status."""
        assert self._process is not None
        self._process.communicate(timeout=20)
        return self._process.returncode


class Fleet:
    """Sidecars, workers and servers, the invalidations that were tried, and stretches of time that tests have marked."""

    def __init__(
        self,
        directory: Path,
        servers: RedisServers,
        *,
        sidecars: int,
        workers: int,
        load: Load,
        program: tuple[str, ...],
        worker_program: tuple[str, ...],
        arena_bytes: int,
    ) -> None:
        """`workers` a sidecar; programs: see SidecarProcess, WorkerProcess. Nothing but a primary with one replica is started."""
        self.servers = servers
        self.flags: tuple[str, ...] = SIDECAR_FLAGS
        """Those of every sidecar that is started from now on, but for those of its log."""
        self.cluster: RedisCluster | None = None
        """What holds the pages, where that is a cluster of its own."""
        self.line: FaultRelay | None = None
        """What lies between the sidecars and their pages, where that is a line that can be bad."""
        self.draw = random.Random(0)
        """Which of several alike a fault takes."""
        self.primary = servers.start()
        self.replica = servers.start_replica(self.primary)
        self.load = load
        self.calm: list[Span] = []
        self.dark: list[Span] = []
        self._directory = directory
        self._worker_program = worker_program
        self._purged: list[Purged] = []
        self._calm_judged = 0
        self._stopped: dict[str, list[Pause]] = defaultdict(list)
        self._metronome = Metronome(directory / "pauses")
        self.descriptors_at_first: list[int] = []
        """Open files of each sidecar when all had begun to serve."""
        self._lock = threading.Lock()
        self.sidecars = [
            SidecarProcess(directory / f"s{number}", arena_bytes=arena_bytes, program=program)
            for number in range(sidecars)
        ]
        self._remote = (sidecars - 1, workers - 1)
        self.workers = [
            self._worker(sidecar, number) for sidecar in range(sidecars) for number in range(workers)
        ]

    def _worker(self, sidecar: int, number: int) -> WorkerProcess:
        producer = 10 * sidecar + number
        is_remote = (sidecar, number) == self._remote
        plan = WorkerPlan(
            endpoint=str(self.sidecars[sidecar].runtime), history="", history_bytes_max=HISTORY_BYTES_MAX,
            producer=producer, seed=producer, shared_memory=not is_remote, **asdict(self.load),
        )  # fmt: skip
        return WorkerProcess(
            f"w{producer}", self._directory, sidecar=sidecar, plan=plan, program=self._worker_program
        )

    # --- processes ---

    def start_sidecar(self, number: int, *urls: str, replicas: int) -> None:
        """Start a sidecar, in another life, whose log is on the first of these servers that works."""
        sidecar = self.sidecars[number]
        sidecar.flags = (*self.flags, "--log-url", ",".join(urls), "--log-replicas", str(replicas))
        sidecar.start()

    def start(self, *urls: str, replicas: int) -> None:
        """Start everything, and wait until every worker gets hits."""
        for sidecar in self.sidecars:
            sidecar.flags = (*self.flags, "--log-url", ",".join(urls), "--log-replicas", str(replicas))
            sidecar.start(wait=False)
        for sidecar in self.sidecars:
            sidecar.wait_up()
        for worker in self.workers:
            worker.start()
        self.await_hits(timeout_s=20.0)
        self.descriptors_at_first = self.descriptors()

    def descriptors(self) -> list[int]:
        """Open files of each sidecar."""
        return [psutil.Process(sidecar.pid).num_fds() for sidecar in self.sidecars]

    def end(self) -> None:
        """Leave nothing running."""
        for worker in self.workers:
            if worker.is_running:
                worker.kill()
        for sidecar in self.sidecars:
            sidecar.end()
        self._metronome.end()

    # --- invalidations ---

    def purge(
        self,
        purge: Purge,
        *,
        via: int = 0,
        wait: str = "hidden",
        timeout_s: float = 10.0,
        by_command: bool = False,
    ) -> Purged:
        """Invalidate through a sidecar, over its gRPC or by the command; what came of it is part of the history."""
        runtime = self.sidecars[via].runtime
        purged = invalidate(purge, runtime, wait=wait, timeout_s=timeout_s, by_command=by_command)
        with self._lock:
            self._purged.append(purged)
        return purged

    @property
    def purged(self) -> Sequence[Purged]:
        with self._lock:
            return tuple(self._purged)

    # --- the history ---

    def read(self) -> None:
        """Take in what the workers have written since."""
        for worker in self.workers:
            for file in worker.files:
                file.read()

    def look_ups(self) -> list[LookUp]:
        """All look-ups up to now."""
        self.read()
        return [look_up for worker in self.workers for file in worker.files for look_up in file.look_ups]

    def accounts(self) -> list[Account]:
        """The newest account of each life of a worker, as far as there is one."""
        self.read()
        return [file.accounts[-1] for worker in self.workers for file in worker.files if file.accounts]

    @property
    def _remote_workers(self) -> frozenset[str]:
        sidecar, number = self._remote
        return frozenset({f"w{10 * sidecar + number}"})

    def was_stopped(self, worker: WorkerProcess, since_ns: int, until_ns: int) -> None:
        """A worker stood still between these times, by the test's will."""
        self._stopped[worker.name].append(Pause(since_ns, until_ns))

    def await_l3_hits(self, *, timeout_s: float, sidecars: Sequence[int] | None = None) -> float:
        """Wait until a worker of each of these sidecars has got pages through L3, from now on; returns the seconds it took."""
        since_ns = _CLOCK.now_ns()
        wanted = range(len(self.sidecars)) if sidecars is None else sidecars

        def is_shared(number: int) -> bool:
            for worker in self.workers:
                if worker.sidecar == number and worker.is_running:
                    worker.files[-1].read()
                    later = [one for one in worker.files[-1].accounts if one.at_ns >= since_ns]
                    if len(later) > 1 and later[-1].l3_pages > later[0].l3_pages:
                        return True
            return False

        wait_until(
            lambda: all(map(is_shared, wanted)),
            timeout_s=timeout_s,
            what=f"L3 hits on sidecars {list(wanted)}",
        )
        return (_CLOCK.now_ns() - since_ns) / 1e9

    def await_hits(
        self, *, timeout_s: float, since_ns: int | None = None, sidecars: Sequence[int] | None = None
    ) -> float:
        """Wait until each worker of these sidecars has had a look-up served wholly; returns the seconds it took.

        Only look-ups that were invoked since `since_ns` count, None: from now on.
        """
        since_ns = _CLOCK.now_ns() if since_ns is None else since_ns
        waiting = [worker for worker in self.workers if sidecars is None or worker.sidecar in sidecars]

        def is_served(worker: WorkerProcess) -> bool:
            assert worker.is_running, f"{worker.name} has ended ({worker.exit_status}): {worker.output()}"
            worker.files[-1].read()
            return any(
                look_up.is_full and look_up.invoked_ns >= since_ns
                for look_up in reversed(worker.files[-1].look_ups[-200:])
            )

        wait_until(
            lambda: all(is_served(worker) for worker in waiting),
            timeout_s=timeout_s,
            what="hits of every worker",
        )
        return (_CLOCK.now_ns() - since_ns) / 1e9

    @contextlib.contextmanager
    def calmly(self) -> Iterator[None]:
        """Nothing is done to anybody within the block: what is not invalidated stays."""
        since_ns = _CLOCK.now_ns()
        yield
        self.calm.append(Span(since_ns, _CLOCK.now_ns()))

    def is_dark(self, since_ns: int, until_ns: int, *, sidecars: Sequence[int] | None = None) -> None:
        """No log vouched for anything between these times, a lease after the loss of it."""
        begin_ns = since_ns + int(LEASE_S * 1e9)
        assert begin_ns < until_ns, "this darkness is shorter than the lease"
        self.dark.append(Span(begin_ns, until_ns, None if sidecars is None else frozenset(sidecars)))

    def newly_broken(self) -> list[Broken]:
        """Every promise that did not hold since the last call. Nothing may be invalidating, and no calm time go on."""
        self.read()
        files = [file for worker in self.workers for file in worker.files]
        fresh = [look_up for file in files for look_up in file.look_ups[file.judged :]]
        breaches = [breach for file in files for breach in file.breaches[file.breaches_judged :]]
        calm, self._calm_judged = self.calm[self._calm_judged :], len(self.calm)
        accounts = [account for file in files for account in file.accounts[file.accounts_judged :]]
        for file in files:
            file.judged, file.breaches_judged = len(file.look_ups), len(file.breaches)
            file.accounts_judged = len(file.accounts)
        return [
            *broke_fence(fresh, self.purged),
            *broke_fail_closed(fresh, self.dark),
            *broke_sparing(fresh, self.purged, calm, remote=self._remote_workers),
            *broke_sharing(fresh, self.purged, calm, shared_after_ns=SHARED_NS),
            *broke_deadline(fresh, self._metronome.pauses(), self._stopped),
            *broke_accounts(accounts),
            *broke_whole(breaches),
        ]


@contextlib.contextmanager
def fleet_of(
    *,
    sidecars: int = 3,
    workers: int = 2,
    load: Load | None = None,
    program: tuple[str, ...] = ("-m", "stratakv"),
    worker_program: tuple[str, ...] = ("-m", "tests.fleet.worker"),
    arena_bytes: int = ARENA_BYTES,
    l3: Callable[[Fleet], str] | None = None,
    log: Callable[[Fleet], str] | None = None,
    flags: tuple[str, ...] = (),
) -> Iterator[Fleet]:
    """A fleet whose sidecars have a log on a server with one replica (k = 1), and know both; `l3` gives the URL of its L3.

    `log`: the URL of a log elsewhere, with one replica too.
    """
    with redis_servers() as servers, tempfile.TemporaryDirectory(prefix="skv-fleet-") as directory:
        fleet = Fleet(
            Path(directory), servers, sidecars=sidecars, workers=workers, load=load or Load(), program=program,
            worker_program=worker_program, arena_bytes=arena_bytes,
        )  # fmt: skip
        fleet.flags = (*fleet.flags, *flags)
        if l3 is not None:
            fleet.flags = (*fleet.flags, "--l3-url", l3(fleet))
        try:
            named = [log(fleet)] if log is not None else [fleet.primary.url, fleet.replica.url]
            fleet.start(*named, replicas=1)
            yield fleet
        finally:
            fleet.end()
