"""One worker of a measured fleet: holds a round's pages in L1 or looks at L2, and tells when it got them last."""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.board import (
    BAD,
    CPU_NS,
    DONE,
    LAST_ANY_NS,
    LAST_L1_NS,
    MATCHES,
    MISSED_NS,
    READY,
    Board,
    Mode,
)
from benchmarks.workload import Chains, namespace_of
from cache_l1.cache import L1Cache
from inference_worker.client import Client, ClientSettings
from kv_types.clock import BoottimeClock
from kv_types.errors import BufferMismatchError
from kv_types.ids import KEY_BYTES
from kv_types.outcomes import Hit

PAGE_BYTES = 16_384
ROUND_PAGES = 4
RESIDENT_PAGES = 32
RESIDENT_CHAINS = 4
ROUND_PACE_S = 0.0015
"""Between two look-ups of a page that is about to go."""
REST_PACE_S = 0.01
_COUNTED_TOGETHER = 16
_L1_PAGES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """Who a worker is. The first worker of a node stores the pages that all look up; `has_l1`: it keeps them itself."""

    board: str
    workers: int
    number: int
    node: int
    is_first: bool
    has_l1: bool
    endpoint: str


class ArrayMemory:
    """Pages of an L1 in one array; conforms to cache_l1.cache.PageMemory without torch."""

    def __init__(self, capacity: int, page_bytes: int) -> None:
        self._pages = np.zeros((capacity, page_bytes), dtype=np.uint8)
        self.capacity = capacity
        self.page_bytes = page_bytes

    def write(self, page: int, source: Any) -> None:
        """Fill a page. Raises BufferMismatchError."""
        if len(source) != self.page_bytes:
            raise BufferMismatchError(f"{len(source)} bytes for a page of {self.page_bytes}")
        self._pages[page] = np.frombuffer(source, dtype=np.uint8)

    def read(self, page: int, destination: Any) -> None:
        """Copy a page out."""
        destination[:] = self._pages[page]


class FleetWorker:
    """Follows the board until it says END, or standard input does."""

    def __init__(self, plan: WorkerPlan) -> None:
        self._plan = plan
        self._board = Board(Path(plan.board), workers=plan.workers)
        self._state = self._board.state[plan.number]
        self._clock = BoottimeClock()
        self._client = Client.connect(
            plan.endpoint, settings=ClientSettings(name=f"worker-{plan.number}", deadline_s=10.0)
        )
        if not self._client.wait_ready(deadline_s=30.0):
            raise RuntimeError(f"no sidecar to measure: {self._client.statistics()}")
        self._space = namespace_of(PAGE_BYTES)
        self._namespace = self._client.register(self._space)
        self._source = np.full(PAGE_BYTES * RESIDENT_PAGES, plan.node + 1, dtype=np.uint8)
        self._room = np.zeros((RESIDENT_PAGES, PAGE_BYTES), dtype=np.uint8)
        self._l1 = L1Cache(
            capacity_pages=_L1_PAGES, page_bytes=PAGE_BYTES, namespace=self._space,
            memory=ArrayMemory(_L1_PAGES, PAGE_BYTES),
        )  # fmt: skip
        self._l1.synchronise(self._client.validity)
        draw = Chains(self._space, seed=1000 + plan.node)
        self._resident = [draw.draw(RESIDENT_PAGES) for _ in range(RESIDENT_CHAINS)]
        self._turn = 0

    def run(self) -> None:
        """Do what the board says."""
        for chain in self._resident:
            self._obtain(chain)
        self._state[READY] = 1
        finished = 1
        while self._board.mode is not Mode.END and not select.select([sys.stdin], [], [], 0)[0]:
            if self._board.mode is Mode.ROUND and self._board.round != finished:
                finished = self._board.round
                self._round(finished)
            elif self._board.mode is Mode.FLAT_OUT and self._board.round >> self._plan.number & 1:
                self._flat_out()
            else:
                self._rest()

    def _round(self, number: int) -> None:
        """Have this round's pages, then look them up until they are gone."""
        chain = self._chain(number)
        self._state[LAST_L1_NS] = self._state[LAST_ANY_NS] = self._state[MISSED_NS] = 0
        self._obtain(chain)
        self._state[READY] = number
        while self._board.mode is Mode.ROUND:
            from_l1 = self._from_l1(chain) if self._plan.has_l1 else 0
            answered_ns = self._clock.now_ns()
            if from_l1:
                self._state[LAST_L1_NS] = self._state[LAST_ANY_NS] = answered_ns
            elif self._from_l2(chain):
                self._state[LAST_ANY_NS] = self._clock.now_ns()
            else:
                self._state[MISSED_NS] = self._clock.now_ns()
                break
            time.sleep(ROUND_PACE_S)
        self._state[DONE] = number

    def _chain(self, number: int) -> bytes:
        """The round's pages, the same on all nodes."""
        return Chains(self._space, seed=1_000_000 + number).draw(ROUND_PAGES)

    def _obtain(self, chain: bytes) -> None:
        """Have a chain in L2, and in L1 if there is one: computed by the node's first worker, got by the others."""
        pages = len(chain) // KEY_BYTES
        for _ in self._attempts():
            view = self._l1.observe()
            with self._client.begin(self._namespace) as request:
                if self._plan.is_first:
                    request.put(chain, list(self._source.reshape(-1, PAGE_BYTES)[:pages]))
                outcome = request.get(chain, list(self._room[:pages]))
                if not isinstance(outcome, Hit) or outcome.pages != pages:
                    continue
                if self._plan.has_l1:
                    sources = [bytes(page) for page in self._room[:pages]]
                    self._l1.insert(chain, 0, sources, view=view, instances=request.instances(chain))
            if not self._plan.has_l1 or self._from_l1(chain) == pages:
                return

    def _attempts(self) -> Iterator[None]:
        until = time.monotonic() + 10.0
        while time.monotonic() < until:
            yield
            time.sleep(0.001)
        raise RuntimeError("the pages to measure with could not be had in 10 s")

    def _from_l1(self, chain: bytes) -> int:
        pages = self._l1.match(chain)
        self._l1.release(pages)
        return len(pages)

    def _from_l2(self, chain: bytes) -> int:
        with self._client.lease(self._namespace, chain) as lease:
            return lease.pages

    def _look_up_resident(self) -> bool:
        """One look-up of a chain that stays; whether it was served wholly."""
        self._turn += 1
        chain = self._resident[self._turn % RESIDENT_CHAINS]
        if self._plan.has_l1 and self._from_l1(chain) == RESIDENT_PAGES:
            return True
        return self._from_l2(chain) == RESIDENT_PAGES

    def _rest(self) -> None:
        self._look_up_resident()
        time.sleep(REST_PACE_S)

    def _flat_out(self) -> None:
        bad = sum(not self._look_up_resident() for _ in range(_COUNTED_TOGETHER))
        self._state[BAD] += bad
        self._state[MATCHES] += _COUNTED_TOGETHER
        self._state[CPU_NS] = time.process_time_ns()


def main(arguments: Sequence[str]) -> None:
    """Run one worker; ends with whoever started it."""
    FleetWorker(WorkerPlan(**json.loads(arguments[0]))).run()


if __name__ == "__main__":
    main(sys.argv[1:])
