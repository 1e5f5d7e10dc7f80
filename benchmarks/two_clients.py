"""Two clients at once: throughput of gets by two processes against one, beside two plain copies against one."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.synchronize import Barrier as BarrierType
from pathlib import Path

import numpy as np

from benchmarks.daemon import attached_client
from benchmarks.workload import Chains, ColdBuffers, namespace_of, place
from inference_worker.client import Client
from kv_types.outcomes import Hit

SECONDS = 1.0
CHAINS = 128
RING_BYTES = 128 * 1024 * 1024
ROUNDS = 3


def _copy_loop(page_bytes: int) -> float:
    source = ColdBuffers(batch_bytes=page_bytes, ring_bytes=RING_BYTES, shared=True)
    destination = ColdBuffers(batch_bytes=page_bytes, ring_bytes=RING_BYTES)
    number, ends = 0, time.perf_counter() + SECONDS
    while time.perf_counter() < ends:
        np.copyto(destination.batch(number), source.batch(place(number, 0, source.count)))
        number += 1
    return number * page_bytes / SECONDS


def _get_loop(client: Client, page_bytes: int, chains: list[bytes], seed: int) -> float:
    namespace = client.register(namespace_of(page_bytes))
    destination = ColdBuffers(batch_bytes=page_bytes, ring_bytes=RING_BYTES)
    number, ends = seed, time.perf_counter() + SECONDS
    while time.perf_counter() < ends:
        outcome = client.get(namespace, chains[place(number, 0, len(chains))], destination.batch(number))
        if not isinstance(outcome, Hit):
            raise RuntimeError(f"a measured look-up was to hit; it answered {outcome}")  # noqa: TRY004
        number += 1
    return (number - seed) * page_bytes / SECONDS


def _worker(
    runtime: Path,
    page_bytes: int,
    chains: list[bytes],
    seed: int,
    barrier: BarrierType,
    results: multiprocessing.SimpleQueue[tuple[str, int, float]],
) -> None:
    with attached_client(runtime) as client:
        for _ in range(ROUNDS):
            for kind, active in (("get", 1), ("copy", 1), ("get", 2), ("copy", 2)):
                barrier.wait(60.0)
                if seed >= active:
                    continue
                rate = (
                    _get_loop(client, page_bytes, chains, seed * 61)
                    if kind == "get"
                    else _copy_loop(page_bytes)
                )
                results.put((kind, active, rate))


def measure_two_clients(runtime: Path, *, page_bytes: int) -> dict[str, float]:
    """Bytes per second of one and two processes, as ratios: `two_clients_x_one`, `two_copies_x_one`."""
    draw = Chains(namespace_of(page_bytes), seed=23)
    chains = [draw.draw(1) for _ in range(CHAINS)]
    with attached_client(runtime) as client:
        namespace = client.register(draw.namespace)
        source = np.ones(page_bytes, dtype=np.uint8)
        for chain in chains:
            with client.begin(namespace) as request:
                request.put(chain, [source])
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    results: multiprocessing.SimpleQueue[tuple[str, int, float]] = context.SimpleQueue()
    workers = [
        context.Process(target=_worker, args=(runtime, page_bytes, chains, seed, barrier, results))
        for seed in (0, 1)
    ]
    for worker in workers:
        worker.start()
    rates: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS * 6):
        kind, active, rate = results.get()
        rates.setdefault((kind, active), []).append(rate)
    for worker in workers:
        worker.join(60.0)
    return _ratios(rates)


def _ratios(rates: dict[tuple[str, int], list[float]]) -> dict[str, float]:
    one = {kind: float(np.median(rates[kind, 1])) for kind in ("get", "copy")}
    two = {kind: 2 * float(np.median(rates[kind, 2])) for kind in ("get", "copy")}
    return {
        "two_clients_x_one": two["get"] / one["get"],
        "two_copies_x_one": two["copy"] / one["copy"],
        "one_client_GBps": one["get"] / 1e9,
        "one_copy_GBps": one["copy"] / 1e9,
    }
