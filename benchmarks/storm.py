"""A storm of records, 1,000 a second, in slices between calm ones: what it takes from the look-ups of one node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.board import BAD, CPU_NS, MATCHES, Mode
from benchmarks.fleet import BenchFleet, cpu_s
from benchmarks.fleet_worker import PAGE_BYTES
from benchmarks.workload import namespace_of
from invalidation.records import LogEntry
from invalidation.redis.log import RedisLog
from kv_types.clock import BoottimeClock
from kv_types.events import Selected
from kv_types.ids import KEY_BYTES, PageKey
from kv_types.selectors import Selector

RECORDS_PER_S = 1000
SLICE_S = 2.0
SETTLE_S = 0.25
"""At the begin of each slice, before anything is counted."""
_BURST_S = 0.005
_DEADLINE_S = 5.0

_clock = BoottimeClock()


Numbers: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Slice:
    """Of each worker: look-ups, and the seconds of processor time that it had; the seconds of the slice, and the sidecar's."""

    matches: Numbers
    cpu_s: Numbers
    took_s: float
    sidecar_cpu_s: float


def slowdown(stormy: Slice, calm: Slice) -> float:
    """What a storm takes of a processor from a worker that has one: the mean of workers.

    Processor time that the look-ups of the storm would have cost without it is taken off what they did cost. For a worker
    that has a whole processor that is 1 − its look-ups ÷ those without. On a crowded machine, which gives it less,
    whatever it does for each record would weigh more in that quotient than it does where a worker has its own.
    """
    each_s = calm.cpu_s / calm.matches
    return float(np.mean(stormy.cpu_s - stormy.matches * each_s)) / stormy.took_s


class Storm:
    """Lets some workers of one node look up without a pause, with and without a storm by turns."""

    def __init__(self, fleet: BenchFleet, log: RedisLog, workers: Sequence[int]) -> None:
        self._fleet = fleet
        self._log = log
        self._workers = list(workers)
        self._namespace = namespace_of(PAGE_BYTES).id
        self.records = 0

    async def slice(self, *, is_stormy: bool) -> Slice:
        """Count one slice."""
        storm = asyncio.create_task(self._append_for(SETTLE_S + SLICE_S)) if is_stormy else None
        await asyncio.sleep(SETTLE_S)
        sidecar = self._fleet.nodes[0].pid
        before, began, sidecar_s = self._counted(), time.perf_counter(), cpu_s(sidecar)
        await asyncio.sleep(SLICE_S)
        matches, cpu_ns = self._counted() - before
        counted = Slice(matches, cpu_ns / 1e9, time.perf_counter() - began, cpu_s(sidecar) - sidecar_s)
        if storm is not None:
            self.records += await storm
        self._fleet.check()
        return counted

    def _counted(self) -> Numbers:
        """Look-ups and processor time of each worker: [2, workers]."""
        state = self._fleet.board.state[self._workers]
        return state[:, [MATCHES, CPU_NS]].T.astype(np.float64)

    def bad(self) -> int:
        """Look-ups that were not served wholly: nothing that is looked up was invalidated."""
        return int(self._fleet.board.state[self._workers, BAD].sum())

    async def _append_for(self, seconds: float) -> int:
        """Append at the rate, a few at a time; each selects a prefix that nobody has. Returns how many."""
        began, count = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < seconds:
            while count < passed * RECORDS_PER_S:
                selector = Selector(namespace=self._namespace, key=PageKey(os.urandom(KEY_BYTES)))
                await self._log.append(
                    LogEntry(event=Selected(selector), reason="measured"),
                    request_id=os.urandom(16),
                    deadline_ns=_clock.now_ns() + int(_DEADLINE_S * 1e9),
                )
                count += 1
            await asyncio.sleep(_BURST_S)
        return count


def _processors(fleet: BenchFleet) -> tuple[list[int], frozenset[int], frozenset[int]]:
    """Workers of the first node that look up flat out, those with an L1 first, their processors, and all the others'.

    A processor each, and at most half of what the machine has.
    """
    cpus = sorted(os.sched_getaffinity(0))
    node = sorted(fleet.of_node(0), key=lambda worker: not fleet.plans[worker].has_l1)
    count = max(1, min(len(node), len(cpus) // 2))
    return node[:count], frozenset(cpus[-count:]), frozenset(cpus[:-count] or cpus)


@contextlib.contextmanager
def _placed(
    fleet: BenchFleet, workers: Sequence[int], own: frozenset[int], rest: frozenset[int]
) -> Iterator[None]:
    """Give some workers processors of their own, and the rest to everybody else."""
    before = frozenset(os.sched_getaffinity(0))
    everybody = [worker.pid for number, worker in enumerate(fleet.workers) if number not in workers]
    everybody += [*(node.pid for node in fleet.nodes), fleet.server.pid]
    try:
        for number in workers:
            _move(fleet.workers[number].pid, own)
        for pid in (*everybody, os.getpid()):
            _move(pid, rest)
        yield
    finally:
        for pid in (*everybody, *(fleet.workers[number].pid for number in workers), os.getpid()):
            _move(pid, before)


def _move(pid: int, cpus: frozenset[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cpus)


async def run_storm(
    fleet: BenchFleet, log: RedisLog, *, storm_s: float, tell: Callable[[str], None]
) -> dict[str, float]:
    """Measure slices with and without a storm by turns, each pair in the other order than the one before."""
    workers, own, rest = _processors(fleet)
    storm = Storm(fleet, log, workers)
    pairs = max(2, round(storm_s / SLICE_S))
    stormy: list[Slice] = []
    calm: list[Slice] = []
    with _placed(fleet, workers, own, rest):
        fleet.board.begin(Mode.FLAT_OUT, sum(1 << worker for worker in workers))
        for pair in range(pairs):
            for is_stormy in (True, False) if pair % 2 else (False, True):
                (stormy if is_stormy else calm).append(await storm.slice(is_stormy=is_stormy))
            tell(f"pair of slices {pair + 1} of {pairs}")
        fleet.board.begin(Mode.REST)
    each = [slowdown(one, other) for one, other in zip(stormy, calm, strict=True)]
    return {
        "storm_match_slowdown": float(np.median(each)),
        "storm_records_per_s": storm.records / (pairs * (SETTLE_S + SLICE_S)),
        "storm_slices": float(pairs),
        "storm_workers": float(len(workers)),
        "storm_worker_processor_share": float(np.mean([one.cpu_s.mean() / one.took_s for one in stormy])),
        "storm_sidecar_cores": _cores(stormy),
        "storm_calm_sidecar_cores": _cores(calm),
        "storm_matches_per_cpu_s": float(np.median([(one.matches / one.cpu_s).mean() for one in calm])),
        "storm_look_ups_not_served": float(storm.bad()),
    }


def _cores(slices: Sequence[Slice]) -> float:
    """Processors that the sidecar kept busy."""
    return sum(one.sidecar_cpu_s for one in slices) / sum(one.took_s for one in slices)
