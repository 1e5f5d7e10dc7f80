"""A fleet of one's own for a measurement: Redis, sidecars and workers as processes, led through a board."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc

from benchmarks.board import READY, Board, Mode, Words
from benchmarks.daemon import own_sidecar
from benchmarks.fleet_worker import WorkerPlan
from benchmarks.own_redis import OwnRedis, own_redis
from benchmarks.timed_sidecar import notes
from kv_wire.channel import CacheCalls, open_channel
from kv_wire.gen import cache_pb2

ARENA_BYTES = 64 * 1024 * 1024
START_S_MAX = 60.0
END_S_MAX = 10.0


@dataclass(frozen=True)
class Node:
    """One sidecar: its directory, its process, when it published what, and the channel for administration."""

    runtime: Path
    pid: int
    published: Words
    channel: grpc.Channel


@dataclass(frozen=True)
class BenchFleet:
    """Everything that runs. Worker w belongs to node w ÷ (workers a node); every second one has an L1."""

    server: OwnRedis
    nodes: Sequence[Node]
    workers: Sequence[subprocess.Popen[bytes]]
    plans: Sequence[WorkerPlan]
    board: Board

    def with_l1(self) -> list[int]:
        """Numbers of the workers that keep pages themselves."""
        return [plan.number for plan in self.plans if plan.has_l1]

    def of_node(self, node: int) -> list[int]:
        """Numbers of a node's workers."""
        return [plan.number for plan in self.plans if plan.node == node]

    def check(self) -> None:
        """Raise RuntimeError when a worker has ended."""
        for plan, worker in zip(self.plans, self.workers, strict=True):
            if worker.poll() is not None:
                raise RuntimeError(f"worker {plan.number} ended with {worker.returncode}")


@contextlib.contextmanager
def bench_fleet(*, nodes: int, workers_per_node: int) -> Iterator[BenchFleet]:
    """Start a fleet whose workers are ready; raises RuntimeError when something does not come up."""
    with contextlib.ExitStack() as held:
        directory = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="stratakv-fleet-")))
        server = held.enter_context(own_redis())
        made = [_node(held, directory, number, server) for number in range(nodes)]
        count = nodes * workers_per_node
        plans = [
            WorkerPlan(
                board=str(directory / "board"), workers=count, number=number, node=number // workers_per_node,
                is_first=number % workers_per_node == 0, has_l1=number % 2 == 1,
                endpoint=str(made[number // workers_per_node].runtime),
            )
            for number in range(count)
        ]  # fmt: skip
        board = Board(directory / "board", workers=count)
        workers = [held.enter_context(_worker(plan)) for plan in plans]
        held.callback(board.begin, Mode.END)
        fleet = BenchFleet(server, made, workers, plans, board)
        board.wait(READY, 1, timeout_s=START_S_MAX, what="the workers' start")
        yield fleet


def _node(held: contextlib.ExitStack, directory: Path, number: int, server: OwnRedis) -> Node:
    file = directory / f"published-{number}"
    sidecar = own_sidecar(
        arena_bytes=ARENA_BYTES,
        flags=("--log-url", server.url, "--copy-kernel", "memcpy", "--metrics-port", "off"),
        program=("-m", "benchmarks.timed_sidecar", str(file)),
    )
    runtime = held.enter_context(sidecar)
    channel = held.enter_context(open_channel(f"unix:{runtime / 'grpc.sock'}"))
    status = CacheCalls(channel).status(cache_pb2.StatusRequest(), timeout=START_S_MAX)
    return Node(runtime, status.pid, notes(file), channel)


@contextlib.contextmanager
def _worker(plan: WorkerPlan) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "benchmarks.fleet_worker", json.dumps(asdict(plan))]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield worker
    finally:
        assert worker.stdin is not None
        worker.stdin.close()
        try:
            worker.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def cpu_s(pid: int) -> float:
    """Processor time of a process up to now, in the kernel too, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
