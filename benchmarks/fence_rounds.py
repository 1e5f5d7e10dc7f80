"""Rounds of one invalidation each: how long L1, L2 and the whole fleet go on serving what it names, and a fence takes."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.board import DONE, LAST_ANY_NS, MISSED_NS, READY, Mode
from benchmarks.fleet import BenchFleet
from benchmarks.fleet_worker import PAGE_BYTES, ROUND_PAGES
from benchmarks.timed_sidecar import NOTES
from benchmarks.workload import Chains, namespace_of
from invalidation.records import LogEntry
from invalidation.redis.log import RedisLog
from kv_types.clock import BoottimeClock
from kv_types.events import Selected
from kv_types.ids import KEY_BYTES, PageKey
from kv_types.selectors import Selector
from kv_wire.admin_calls import AdminCalls
from kv_wire.admin_conversions import selector_to_wire
from kv_wire.gen import admin_pb2

ROUND_S_MAX = 20.0
SETTLED_S = 0.005
"""Before each invalidation: the answers to what workers stored have reached them."""
DEADLINE_S = 5.0

_clock = BoottimeClock()


@dataclass
class RoundSamples:
    """Milliseconds, one sample a worker (l1), a node (l2) or a round (everywhere, fence)."""

    l1_ms: list[float] = field(default_factory=list)
    l2_ms: list[float] = field(default_factory=list)
    everywhere_ms: list[float] = field(default_factory=list)
    fence_ms: list[float] = field(default_factory=list)


class FenceRounds:
    """Leads a fleet through rounds; appends through a log of the driver's own, or through a sidecar's administration."""

    def __init__(self, fleet: BenchFleet, log: RedisLog) -> None:
        self._fleet = fleet
        self._log = log
        self._space = namespace_of(PAGE_BYTES)
        self._number = 1
        self.samples = RoundSamples()

    async def append_round(self) -> None:
        """One record, and when it has reached whom."""
        selector = self._prepare()
        entry, request_id = LogEntry(event=Selected(selector), reason="measured"), os.urandom(16)
        appending_ns = _clock.now_ns()
        appended = await self._log.append(
            entry, request_id=request_id, deadline_ns=appending_ns + int(DEADLINE_S * 1e9)
        )
        self._finish()
        state, samples = self._fleet.board.state, self.samples
        samples.everywhere_ms.append(max(0, int(state[:, LAST_ANY_NS].max()) - appending_ns) / 1e6)
        for number, node in enumerate(self._fleet.nodes):
            workers = self._fleet.of_node(number)
            missed_ns = int(state[workers, MISSED_NS].min())
            samples.l2_ms.append((missed_ns - appending_ns) / 1e6)
            revision, published_ns = node.published[appended.stamp.revision % NOTES].tolist()
            if revision != appended.stamp.revision:
                raise RuntimeError(f"node {number} has not published revision {appended.stamp.revision}")
            for worker in set(workers) & set(self._fleet.with_l1()):
                samples.l1_ms.append((int(state[worker, MISSED_NS]) - published_ns) / 1e6)

    async def fence_round(self) -> None:
        """One whole call that invalidates and waits, through one node after the other."""
        selector = self._prepare()
        request = admin_pb2.InvalidateRequest(
            selectors=[selector_to_wire(selector)], reason="measured", author="stratakv bench",
            wait=admin_pb2.WAIT_HIDDEN,
        )  # fmt: skip
        node = self._fleet.nodes[self._number % len(self._fleet.nodes)]
        began = time.perf_counter()
        answer = AdminCalls(node.channel).invalidate(request, timeout=DEADLINE_S)
        took_s = time.perf_counter() - began
        if not answer.confirmed:
            raise RuntimeError(f"a measured invalidation was not confirmed: {answer.why}")
        returned_ns = _clock.now_ns()
        self._finish()
        late_ns = int(self._fleet.board.state[:, LAST_ANY_NS].max()) - returned_ns
        if late_ns > ROUND_LOOK_UP_NS_MAX:
            raise RuntimeError(f"a worker still got a page {late_ns / 1e6:.2f} ms after the fence")
        self.samples.fence_ms.append(took_s * 1e3)

    def _prepare(self) -> Selector:
        """Have all workers get a round's pages again and again; returns what invalidates them."""
        self._number += 1
        board = self._fleet.board
        self._fleet.check()
        board.begin(Mode.ROUND, self._number)
        board.wait(READY, self._number, timeout_s=ROUND_S_MAX, what="a round's pages")
        time.sleep(SETTLED_S)
        chain = Chains(self._space, seed=1_000_000 + self._number).draw(ROUND_PAGES)
        return Selector(namespace=self._space.id, key=PageKey(chain[:KEY_BYTES]))

    def _finish(self) -> None:
        board = self._fleet.board
        board.wait(DONE, self._number, timeout_s=ROUND_S_MAX, what="pages that should be gone")
        board.begin(Mode.REST)


ROUND_LOOK_UP_NS_MAX = 50_000_000
"""What one look-up that was invoked before a fence returned may take to answer after it, on a crowded machine."""


def percentiles(name: str, samples: list[float]) -> dict[str, float]:
    """p99, p50 and how many there were, by key."""
    return {
        f"{name}_p99": float(np.percentile(samples, 99)),
        f"{name}_p50": float(np.percentile(samples, 50)),
        f"{name}_samples": float(len(samples)),
    }


async def run_rounds(
    fleet: BenchFleet, log: RedisLog, *, rounds: int, tell: Callable[[int], None]
) -> dict[str, float]:
    """Measure `rounds` rounds of each kind by turns; figures by key."""
    leading = FenceRounds(fleet, log)
    kinds: list[Callable[[], Awaitable[None]]] = [leading.append_round, leading.fence_round]
    for number in range(2 * rounds):
        await kinds[number % 2]()
        tell(number)
    samples = leading.samples
    return {
        **percentiles("invalidate_l1_ms", samples.l1_ms),
        **percentiles("invalidate_l2_ms", samples.l2_ms),
        **percentiles("invalidate_all_ms", samples.everywhere_ms),
        **percentiles("fence_ms", samples.fence_ms),
    }
