"""Clients that are stopped in the midst of something, beside one that works: what it does takes no longer for them."""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from inference_worker.client import Client
from kv_types.outcomes import Hit, Tier
from tests.inference_worker.conftest import FLAGS, MakeClient
from tests.inference_worker.worlds import all_stored, chain, namespace, pages_under, room_for
from tests.support.daemon import read_status
from tests.support.polling import wait_until
from tests.support.puts import put_fresh
from tests.support.sidecar_process import sidecar_process
from tests.support.stuck_worker import StuckWorker

WAYS = ("puts", "gets", "never_reads", "half_greets")
OF_EACH = 2
TIMES = 300
RATIO_MAX = 3.0
ROUNDS_MAX = 10
"""A busy machine can spoil a round, and even several; what the code itself costs shows in every one."""


class Bystander:
    """A client and what it does again and again, each step timed by name."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ns = client.register(namespace("bystander", layers=4))
        self._keys = chain(self._ns.identified, 4)
        self._pages = pages_under(self._keys, self._ns.page_bytes)
        self._room = room_for(self._keys, self._ns.page_bytes)
        self._seed = 0
        assert all_stored(put_fresh(client, self._ns, self._keys, self._pages))

    def step(self, taken: Mapping[str, list[float]]) -> None:
        self._seed += 1
        fresh = chain(self._ns.identified, 1, seed=self._seed)
        page = pages_under(fresh, self._ns.page_bytes)
        taken["put"].append(_timed(lambda: self._stores(fresh, page)))
        taken["get"].append(_timed(self._gets))
        taken["lease"].append(_timed(self._leases))

    def _stores(self, keys: bytes, page: list[bytes]) -> None:
        assert all_stored(put_fresh(self._client, self._ns, keys, page))

    def _gets(self) -> None:
        assert self._client.get(self._ns, self._keys, self._room) == Hit(4, Tier.L2)

    def _leases(self) -> None:
        with self._client.lease(self._ns, self._keys) as lease:
            assert lease.pages == 4


@pytest.mark.slow
def test_stopped_and_deaf_clients_slow_nobody_down(connect: MakeClient) -> None:
    """Two sidecars, one with stuck clients and one without, asked by turns."""
    with contextlib.ExitStack() as held:
        calm, beset = (
            held.enter_context(sidecar_process(arena_bytes=128 << 20, flags=FLAGS)) for _ in range(2)
        )
        stuck = [held.enter_context(StuckWorker(way, beset.runtime)) for way in WAYS * OF_EACH]
        for one in stuck:
            one.stop()
        _assert_stuck(beset.runtime)
        ratios = []
        pair = [Bystander(connect(one.runtime, deadline_s=10.0)) for one in (calm, beset)]
        for _ in range(ROUNDS_MAX):
            taken: list[dict[str, list[float]]] = [defaultdict(list), defaultdict(list)]
            for _ in range(TIMES):
                for bystander, into in zip(pair, taken, strict=True):
                    bystander.step(into)
            ratios.append({name: _p99(taken[1][name]) / _p99(times) for name, times in taken[0].items()})
            if max(ratios[-1].values()) <= RATIO_MAX:
                break
        else:
            raise AssertionError(f"p99 beside stuck clients against p99 without, round by round: {ratios}")
    print(ratios)


def _assert_stuck(runtime: Path) -> None:
    """They hold what they were stopped with; those that read nothing were dropped."""

    def holds() -> bool:
        status = read_status(runtime)
        arena = status["arena"]
        return int(arena["reservations"]) == 16 * OF_EACH and int(arena["leases"]) > 0

    wait_until(holds, what="reservations and leases of the stuck")
    assert int(read_status(runtime)["attach"]["dropped_slow"]) == OF_EACH


def _timed(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]
