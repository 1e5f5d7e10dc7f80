"""Loads through a whole node: what one of 32 pages takes, and what loads take from the look-ups of another worker beside them."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.daemon import attached_client, own_sidecar
from benchmarks.own_redis import OwnRedis, own_redis
from benchmarks.workload import Chains, namespace_of
from inference_worker.client import Client
from inference_worker.namespaces import RegisteredNamespace
from kv_types.outcomes import STORED, Hit

PAGE_BYTES = 1 << 20
PAGES = 32
CHAINS = 8
ARENA_BYTES = 128 * PAGE_BYTES
"""Some chains of all: each load has to bring every page."""
LOOK_UP_PAGE_BYTES = 16 * 1024
SLICE_S = 1.0
PAIRS = 8
_STORED_S_MAX = 60.0
_LOAD_S = 10.0
_POLL_S = 0.05
_BATCH = 64
"""Look-ups between two readings of the clock."""


def measure_beside(tell: Callable[[str], None], *, pairs: int = PAIRS) -> dict[str, float]:
    """Figures by key; some 20 s on two sidecars and a Redis of its own. Raises RuntimeError for what is not served."""
    draw = Chains(namespace_of(PAGE_BYTES), seed=31)
    chains = [draw.draw(PAGES) for _ in range(CHAINS)]
    with own_redis() as server:
        tell("storing chains")
        with (
            own_sidecar(
                arena_bytes=2 * ARENA_BYTES + CHAINS * PAGES * PAGE_BYTES, flags=_flags(server)
            ) as first,
            attached_client(first) as client,
        ):
            _store(client, chains, server)
        with own_sidecar(arena_bytes=ARENA_BYTES, flags=_flags(server)) as runtime:
            tell("loads beside look-ups")
            return _measure(runtime, chains, pairs)


def _flags(server: OwnRedis) -> tuple[str, ...]:
    return ("--l3-url", server.url)


def _store(client: Client, chains: list[bytes], server: OwnRedis) -> None:
    namespace = client.register(namespace_of(PAGE_BYTES))
    source = np.random.default_rng(5).integers(0, 256, (PAGES, PAGE_BYTES), dtype=np.uint8)
    for chain in chains:
        with client.begin(namespace) as request:
            if set(outcomes := request.put(chain, list(source))) != {STORED}:
                raise RuntimeError(f"a measured put was to be stored; it answered {outcomes}")
    deadline = time.monotonic() + _STORED_S_MAX
    while (
        found := sum(1 for _ in server.client.scan_iter(match="stratakv:*:page:*", count=1000))
    ) < CHAINS * PAGES:
        if time.monotonic() > deadline:
            raise RuntimeError(f"L3 has {found} of {CHAINS * PAGES} pages")
        time.sleep(_POLL_S)


def _measure(runtime: Path, chains: list[bytes], pairs: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    worker = context.Process(target=_look_up_in_slices, args=(runtime, theirs), daemon=True)
    worker.start()
    try:
        with attached_client(runtime) as client:
            return _alternate(client, chains, ours, pairs)
    finally:
        ours.close()
        worker.join(10.0)
        worker.kill()


def _alternate(client: Client, chains: list[bytes], worker: Connection, pairs: int) -> dict[str, float]:
    namespace = client.register(namespace_of(PAGE_BYTES))
    took_ms: list[float] = []
    lost: list[float] = []
    if worker.recv() != "ready":
        raise RuntimeError("the worker that looks up did not come up")
    for number in range(pairs + 1):
        worker.send(SLICE_S)
        calm = worker.recv()
        worker.send(SLICE_S)
        while not worker.poll():
            took_ms.append(_load(client, namespace, chains[len(took_ms) % CHAINS]))
        beside = worker.recv()
        if number > 0:
            lost.append(1.0 - beside / calm)
    return {
        "l3_node_load_32x1MiB_ms_p50": float(np.median(took_ms)),
        "l3_match_slowdown": float(np.median(lost)),
        "l3_match_slowdown_samples": float(len(lost)),
    }


def _load(client: Client, namespace: RegisteredNamespace, chain: bytes) -> float:
    began = time.perf_counter()
    with client.lease(namespace, chain, deadline_s=_LOAD_S) as lease:
        found = lease.pages_l3
    if found != PAGES:
        raise RuntimeError(f"{found} of {PAGES} pages came from L3")
    return (time.perf_counter() - began) * 1e3


def _look_up_in_slices(runtime: Path, driver: Connection) -> None:
    """Another worker: look-ups of resident pages a second of its own processor time, for each slice that it is told of."""
    draw = Chains(namespace_of(LOOK_UP_PAGE_BYTES), seed=37)
    chain = draw.draw(PAGES)
    with attached_client(runtime) as client:
        namespace = client.register(draw.namespace)
        with client.begin(namespace) as request:
            request.put(chain, [np.ones(LOOK_UP_PAGE_BYTES, dtype=np.uint8)] * PAGES)
        driver.send("ready")
        while True:
            try:
                seconds = driver.recv()
            except EOFError:
                return
            driver.send(_look_up_for(client, namespace, chain, seconds))


def _look_up_for(client: Client, namespace: RegisteredNamespace, chain: bytes, seconds: float) -> float:
    count, began_s, ends = 0, time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < ends:
        for _ in range(_BATCH):
            outcome = client.match(namespace, chain)
            if not isinstance(outcome, Hit) or outcome.pages != PAGES:
                raise RuntimeError(f"a measured look-up was to hit; it answered {outcome}")
        count += _BATCH
    return count / (time.process_time() - began_s)
