"""Soak: 50 workers on one sidecar read and write stamped pages of several sizes, and are killed in the midst of what they do.

`python -m tests.fleet.soak --minutes 30 --seed 1` for a long run; prints a report, and exits 1 where something is not as it
should be. Beside it pages are invalidated, and evicted, since the arena is small.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from kv_types.outcomes import MissReason
from tests.fleet.checker import Broken, broke_accounts, broke_fence, broke_whole
from tests.fleet.churn import GROWTH_BYTES_MAX, SAMPLE_S, Watched, go_on_while_growing, grown
from tests.fleet.doings import Activity, Doings
from tests.fleet.fleet import Load
from tests.fleet.history import HistoryFile
from tests.fleet.invalidating import invalidate
from tests.fleet.nursery import Nursery
from tests.fleet.purges import Purged
from tests.fleet.purging import draw_purge
from tests.fleet.worker import WorkerPlan
from tests.support.daemon import read_status
from tests.support.polling import wait_until
from tests.support.sidecar_process import SidecarProcess, sidecar_process

WORKERS = 50
REMOTE_EVERY = 10
"""One in so many workers has no shared memory and uses gRPC alone."""
ARENA_BYTES = 16 * 2**20
LOAD = Load(tenants=6, chains=8, pages=6, units=(1, 5, 64), per_s=8.0, compute_ms_max=300.0)
KILL_EVERY_S = 1.0
KILLED_MIN = 10
PURGE_EVERY_S = 0.4
JUDGE_EVERY_S = 2.0
SOUGHT_S, LOOK_EVERY_S = 0.5, 0.0002
"""How long somebody is looked for who is in the midst of what is to be interrupted, and how often they are looked at."""
START_S_MAX = 60.0
END_S_MAX = 30.0
FLAGS = ("--no-l3", "--copy-kernel", "memcpy", "--metrics-port", "off", "--no-prefault", "--skew-bound", "0")
GRPC_THREADS_MAX = 8
"""Threads that gRPC keeps ready once it has had calls."""
LOG_RECORD_BYTES = 2048
"""What the log of a sidecar without a fleet takes in its own memory for a record, of which it keeps 10,000."""
_INTERRUPTED = (Activity.PUT, Activity.GET, Activity.LEASE)
_HISTORY_BYTES_MAX = 1 << 40


@dataclass(slots=True)
class _Life:
    """One life of a worker."""

    pid: int
    file: HistoryFile


@dataclass(slots=True)
class Soaked:
    """What came of it."""

    seconds: float = 0.0
    killed: Counter[Activity] = field(default_factory=Counter)
    """By what they were in the midst of."""
    look_ups: Counter[str] = field(default_factory=Counter)
    """By what ended them: "full", or a reason."""
    pages: int = 0
    purges: int = 0
    purges_watched: int = 0
    """Of these, since memory was watched anew."""
    broken: list[Broken] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    watched: list[Watched] = field(default_factory=list)
    arena: Mapping[str, int] = field(default_factory=dict)

    def report(self) -> str:
        kills = ", ".join(f"{self.killed[one]} in {one.name.lower()}" for one in Activity)
        lines = [
            f"{self.seconds:.0f} s, {WORKERS} workers, {self.killed.total()} killed ({kills}), {self.purges} invalidations",
            f"{self.look_ups.total()} look-ups, {self.pages} pages checked; {dict(self.look_ups)}",
            *(one.told() for one in self.watched),
            "the arena: " + ", ".join(f"{name} {number}" for name, number in self.arena.items() if number),
        ]
        return "\n".join(lines)

    def grown(self) -> list[str]:
        """What grew by more than it may, the log left aside."""
        return grown(self.watched, bytes_max=GROWTH_BYTES_MAX + self.purges_watched * LOG_RECORD_BYTES)

    def judge(self) -> list[str]:
        """What is not as it should be."""
        wrong = [f"{one.promise}: {one.what}" for one in self.broken[:10]] + self.wrong
        wrong += self.grown()
        wrong += [
            f"nobody was killed in mid-{one.name.lower()}" for one in _INTERRUPTED if not self.killed[one]
        ]
        if self.killed.total() < KILLED_MIN:
            wrong.append(f"only {self.killed.total()} were killed")
        # What was not exercised was not tested.
        wrong += [
            f"{name} is 0" for name in ("evictions_capacity", "evictions_invalidated") if not self.arena[name]
        ]
        if not self.look_ups["full"]:
            wrong.append("no look-up was served wholly")
        return wrong


class Soak:
    """One run: all that happens is drawn from one seed, and done by one thread."""

    def __init__(self, sidecar: SidecarProcess, nursery: Nursery, directory: Path, *, seed: int) -> None:
        self._sidecar = sidecar
        self._nursery = nursery
        self._directory = directory
        self._seed = seed
        self._draw = random.Random(seed)
        self._doings = Doings(directory / "doings", WORKERS)
        self._lives: dict[int, _Life] = {}
        self._ended: list[HistoryFile] = []
        self._begun = 0
        self._purged: list[Purged] = []
        self._requested = 0
        self._pace = threading.Event()  # never set
        self.soaked = Soaked()

    def run(self, seconds: float) -> Soaked:
        process = psutil.Process(self._sidecar.pid)
        idle = (process.num_fds(), process.num_threads())
        for worker in range(WORKERS):
            self._start(worker)
        wait_until(self._all_serve, timeout_s=START_S_MAX, what="look-ups of every worker")
        self.soaked.watched.append(Watched("memory of the sidecar", partial(_anonymous_bytes, process.pid)))
        go_on_while_growing(self.soaked.watched, partial(self._load, seconds), self.soaked.grown)
        for pid, status in self._nursery.end().items():
            if status:
                self.soaked.wrong.append(f"worker {pid} ended with {status}")
        self._judge()
        self._count_last()
        wait_until(
            self._is_idle, timeout_s=END_S_MAX, what="all leases, reservations and rows to be given back"
        )
        self._check_status(read_status(self._sidecar.runtime))
        wait_until(
            lambda: process.num_fds() <= idle[0],
            timeout_s=END_S_MAX,
            what="the sidecar's descriptors to be closed",
        )
        if process.num_threads() > idle[1] + GRPC_THREADS_MAX:
            self.soaked.wrong.append(f"the sidecar has {process.num_threads()} threads; it had {idle[1]}")
        return self.soaked

    # --- workers ---

    def _start(self, worker: int) -> None:
        is_remote = worker % REMOTE_EVERY == REMOTE_EVERY - 1
        history = self._directory / f"w{worker}-{self._begun}.jsonl"
        load = {**asdict(LOAD), "l1_share": 0.0 if is_remote else LOAD.l1_share}
        plan = WorkerPlan(
            endpoint=str(self._sidecar.runtime), history=str(history), history_bytes_max=_HISTORY_BYTES_MAX,
            producer=worker, seed=self._seed * 1_000_000 + self._begun, shared_memory=not is_remote,
            doing=str(self._directory / "doings"), **load,
        )  # fmt: skip
        self._begun += 1
        pid = self._nursery.start(plan, log=self._directory / f"w{worker}.log")
        self._lives[worker] = _Life(pid, HistoryFile(history, worker=f"w{worker}", sidecar=0))

    def _all_serve(self) -> bool:
        """Whether each worker has looked something up; what they print when they can't is told."""
        for worker, life in self._lives.items():
            if not psutil.pid_exists(life.pid) or psutil.Process(life.pid).status() == psutil.STATUS_ZOMBIE:
                raise AssertionError((self._directory / f"w{worker}.log").read_text()[-2000:])
            life.file.read()
        return all(life.file.look_ups for life in self._lives.values())

    def _kill_one(self) -> None:
        """SIGKILL to somebody in the midst of what was killed in least; who it was gets a successor."""
        sought = min(_INTERRUPTED, key=lambda one: self.soaked.killed[one])
        workers = self._draw.sample(sorted(self._lives), k=WORKERS)
        victim = workers[0]
        end_s = time.monotonic() + SOUGHT_S
        while time.monotonic() < end_s:
            found = next((worker for worker in workers if self._doings[worker] is sought), None)
            if found is not None:
                victim = found
                break
            self._pace.wait(LOOK_EVERY_S)
        life = self._lives.pop(victim)
        os.kill(life.pid, signal.SIGKILL)
        status = self._nursery.reap(life.pid)
        if status != -signal.SIGKILL:
            self.soaked.wrong.append(f"worker {life.pid} had ended with {status} before it was killed")
        self.soaked.killed[self._doings[victim]] += 1
        self._doings.forget(victim)
        self._ended.append(life.file)
        self._start(victim)

    # --- the load ---

    def _load(self, seconds: float) -> None:
        self.soaked.purges_watched = 0
        began_s = time.monotonic()
        duties = {
            self._kill_one: KILL_EVERY_S, self._purge: PURGE_EVERY_S, self._judge: JUDGE_EVERY_S,
            self.soaked.watched[0].sample: SAMPLE_S,
        }  # fmt: skip
        due_s = dict.fromkeys(duties, began_s)
        while (now_s := time.monotonic()) < began_s + seconds:
            duty = min(due_s, key=lambda one: due_s[one])
            if due_s[duty] > now_s:
                self._pace.wait(due_s[duty] - now_s)
                continue
            duty()
            due_s[duty] = max(due_s[duty] + duties[duty], now_s)
        self.soaked.seconds += time.monotonic() - began_s

    def _purge(self) -> None:
        purge = draw_purge(self._draw, LOAD, range(WORKERS), self.soaked.purges)
        purged = invalidate(purge, self._sidecar.runtime)
        self.soaked.purges += 1
        self.soaked.purges_watched += 1
        self._purged.append(purged)
        if not purged.is_confirmed:
            self.soaked.wrong.append(f"an invalidation was not confirmed: {purged}")

    # --- the history ---

    def _judge(self) -> None:
        """Hold what workers got since against what was promised, then forget it.

        Whatever was invalidated before one of these look-ups is known by now, so none of them has to be judged again.
        """
        for file in (*self._ended, *(life.file for life in self._lives.values())):
            file.read()
            broken = [*broke_fence(file.look_ups, self._purged), *broke_whole(file.breaches)]
            self.soaked.broken += [*broken, *broke_accounts(file.accounts)]
            for look_up in file.look_ups:
                self.soaked.look_ups["full" if look_up.is_full else look_up.reason.name.lower()] += 1
                self.soaked.pages += len(look_up.pages)
            file.look_ups.clear()
            file.breaches.clear()
            del file.accounts[:-1]
        for file in self._ended:
            self._requested += _requested(file)
        self._ended.clear()

    def _count_last(self) -> None:
        for life in self._lives.values():
            self._requested += _requested(life.file)

    # --- the end ---

    def _is_idle(self) -> bool:
        status = read_status(self._sidecar.runtime)
        arena = status["arena"]
        held = ("leases", "reservations", "entries_reserved", "entries_quarantined", "entries_hidden_leased")
        return not any(int(arena[name]) for name in held) and len(status["clients"]) == 1

    def _check_status(self, status: Mapping[str, Any]) -> None:
        arena = {name: int(number) for name, number in status["arena"].items()}
        self.soaked.arena = arena
        self.soaked.wrong += [
            f"{name} is {arena[name]}" for name in ("leased_bytes", "reserved_bytes") if arena[name]
        ]
        self.soaked.wrong += _unbalanced(status, least=self._requested)
        gone = sum(number for name, number in arena.items() if name.startswith("evictions_"))
        if arena["stored"] - gone != arena["entries_visible"]:
            self.soaked.wrong.append(
                f"{arena['stored']} stored less {gone} evicted are not {arena['entries_visible']}"
            )
        for name in ("handler_errors", "garbage", "dropped_slow"):
            if int(status["attach"][name]):
                self.soaked.wrong.append(f"{status['attach'][name]} {name} on the attach socket")


def _requested(file: HistoryFile) -> int:
    """Pages that a worker's client had counted when it was last asked."""
    return file.accounts[-1].client["requested_pages"] if file.accounts else 0


def _unbalanced(status: Mapping[str, Any], *, least: int) -> Iterator[str]:
    """Where the sidecar's accounts don't add up; all workers together are known to have asked for `least` pages."""
    requested = 0
    for space in status["namespaces"]:
        missed = {MissReason[name.upper()]: int(pages) for name, pages in space["missed_pages"].items()}
        tiers = [int(space[f"{tier}_pages"]) for tier in ("l1", "l2", "l3")]
        if int(space["requested_pages"]) != sum(tiers) + sum(missed.values()):
            yield f"{space['requested_pages']} pages asked for are not {tiers} and {missed}"
        requested += int(space["requested_pages"])
    if requested < least:
        yield f"the sidecar has counted {requested} pages, its workers {least}"


def _anonymous_bytes(pid: int) -> int:
    """The process's own memory: what it shares with others, the arena above all, left aside."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel tells no RssAnon")


def soak(seconds: float, *, seed: int) -> Soaked:
    """Let 50 workers live and die for so long."""
    with (
        tempfile.TemporaryDirectory(prefix="skv-soak-") as directory,
        sidecar_process(arena_bytes=ARENA_BYTES, flags=FLAGS) as sidecar,
        Nursery() as nursery,
    ):
        return Soak(sidecar, nursery, Path(directory), seed=seed).run(seconds)


def told(soaked: Soaked, *, seed: int) -> Sequence[str]:
    """Print the report; returns what is not as it should be."""
    print(f"seed {seed}: {soaked.report()}")
    return soaked.judge()


def main(
    minutes: Annotated[float, typer.Option(help="How long.")] = 30.0,
    seed: Annotated[int, typer.Option(help="What all is drawn from.")] = 1,
) -> None:
    """Soak, and say what came of it."""
    wrong = told(soak(minutes * 60, seed=seed), seed=seed)
    for one in wrong:
        print(f"WRONG: {one}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
