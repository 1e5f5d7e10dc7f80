"""One worker process of a fleet under test: looks up at a steady pace, computes what it misses, writes down what it got.

Run as `python -m tests.fleet.worker JSON`; ends when its standard input does.
"""

from __future__ import annotations

import json
import random
import select
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cache_l1.cache import L1Cache
from inference_worker.client import Client, ClientSettings, RegisteredNamespace, Request
from kv_types.clock import BoottimeClock
from kv_types.ids import KEY_BYTES
from kv_types.outcomes import Hit, Miss, MissReason
from kv_types.page_keys import pack_keys
from kv_types.validity import ObservedView
from tests.cache_l1.fakes import ByteMemory
from tests.fleet.accounts import Account, Tally
from tests.fleet.doings import Activity, Doing
from tests.fleet.history import Recorder
from tests.fleet.stamped import (
    PAGE_BYTES,
    PARTS_MAX,
    BrokenPageError,
    Part,
    Place,
    StampedPage,
    chain_keys,
    producer_name,
    read_page,
    space_of,
    tag_name,
)
from tests.support.timing import run_queue_s

_ACCOUNT_NS = 200_000_000
_COMPUTING_MAX = 16
_L1_PAGES = 48
_CLOCK = BoottimeClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """What one worker does. `compute_ms_max`: the longest that a computation takes; `l1_share`: of look-ups through L1.

    Without `shared_memory` it uses gRPC alone, and has no L1 that could be trusted. Tenants take turns in the sizes of their
    pages: so many `units` of PAGE_BYTES each. `doing`: a file of Doings, where it marks as number `producer` what it does.
    `deadlines_ms`: a look-up is given one of them to bring what its node lacks; without any, look-ups wait for nothing.
    """

    endpoint: str
    history: str
    history_bytes_max: int
    producer: int
    tenants: int
    chains: int
    pages: int
    tags: int
    per_s: float
    compute_ms_max: float
    l1_share: float
    shared_memory: bool
    units: Sequence[int]
    deadlines_ms: Sequence[float]
    seed: int
    doing: str = ""


@dataclass(frozen=True, slots=True)
class _Computation:
    """What a request computes until `due_ns`, on top of `reused` pages, and what its L1 had seen before it began."""

    request: Request
    view: ObservedView | None
    tenant: int
    chain: int
    keys: bytes
    reused: tuple[StampedPage, ...]
    upto: int
    begun_ns: int
    due_ns: int


@dataclass(slots=True)
class _Tenant:
    namespace: RegisteredNamespace
    l1: L1Cache
    room: list[bytearray]
    """Where the pages of one look-up are copied to."""


class FleetWorker:
    """The worker's loop; one look-up a step."""

    def __init__(self, plan: WorkerPlan) -> None:
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._recorder = Recorder(Path(plan.history), bytes_max=plan.history_bytes_max)
        settings = ClientSettings(
            name=producer_name(plan.producer).decode(), prefault=False, deadline_s=0.5,
            shared_memory=plan.shared_memory,
        )  # fmt: skip
        self._client = Client.connect(plan.endpoint, settings=settings)
        self._tenants = [self._tenant(number) for number in range(plan.tenants)]
        self._chains = {
            (tenant, chain): pack_keys(chain_keys(tenant, chain, plan.pages))
            for tenant in range(plan.tenants)
            for chain in range(plan.chains)
        }
        self._computing: deque[_Computation] = deque()
        self._tally = Tally()
        self._doing = Doing(plan.doing, plan.producer)
        self._account_due_ns = 0

    def run(self) -> None:
        """Step at the plan's pace until standard input ends or the history is full."""
        due_ns, step_ns = _CLOCK.now_ns(), int(1e9 / self._plan.per_s)
        while not self._recorder.is_full:
            wait_s = max(0.0, (due_ns - _CLOCK.now_ns()) / 1e9)
            if select.select([sys.stdin], [], [], wait_s)[0]:
                break
            due_ns = max(due_ns + step_ns, _CLOCK.now_ns() - 10 * step_ns)
            self._finish_due()
            self._look_up()
            if _CLOCK.now_ns() >= self._account_due_ns:
                self._account()
        self._account()

    def _account(self) -> None:
        now_ns = _CLOCK.now_ns()
        self._recorder.account(Account.at(now_ns, self._tally, self._client.statistics()))
        self._account_due_ns = now_ns + _ACCOUNT_NS

    def _tenant(self, number: int) -> _Tenant:
        units = self._plan.units[number % len(self._plan.units)]
        space, page_bytes = space_of(number, units=units), units * PAGE_BYTES
        l1 = L1Cache(
            capacity_pages=_L1_PAGES,
            page_bytes=page_bytes,
            namespace=space,
            memory=ByteMemory(_L1_PAGES, page_bytes),
        )
        l1.synchronise(self._client.validity)
        room = [bytearray(page_bytes) for _ in range(self._plan.pages)]
        return _Tenant(self._client.register(space), l1, room)

    def _look_up(self) -> None:
        tenant, chain = self._random.choice(list(self._chains))
        keys, wanted = self._chains[tenant, chain], self._plan.pages
        state = self._tenants[tenant]
        view = state.l1.observe()
        request = self._client.begin(state.namespace)
        begun_ns = _CLOCK.now_ns()
        through_l1 = self._random.random() < self._plan.l1_share
        local = self._read_l1(request, state, keys) if through_l1 else 0
        reason = MissReason.NONE
        found, took_ns, waited_ns, deadline_ns = local, 0, 0, 0
        if local < wanted:
            deadlines_ms = self._plan.deadlines_ms
            deadline_s = self._random.choice(deadlines_ms) / 1000 if deadlines_ms else 0.0
            deadline_ns = int(deadline_s * 1e9)
            waiting_s, asked_ns = run_queue_s(), _CLOCK.now_ns()
            count, reason = self._read_beyond(request, keys, state.room[local:], local, deadline_s)
            took_ns, waited_ns = _CLOCK.now_ns() - asked_ns, int(max(0.0, run_queue_s() - waiting_s) * 1e9)
            found += count
            self._tally.count(wanted=wanted, l1=local, found=found, reason=reason)
        answered_ns = _CLOCK.now_ns()
        pages = self._read_pages(tenant, chain, found, answered_ns)
        self._recorder.look_up(
            invoked_ns=begun_ns, answered_ns=answered_ns, tenant=tenant, chain=chain, wanted=wanted, l1=local,
            pages=pages, reason=reason, deadline_ns=deadline_ns, took_ns=took_ns, waited_ns=waited_ns,
        )  # fmt: skip
        if len(pages) < found or found == wanted or len(self._computing) >= _COMPUTING_MAX:
            request.end()
            return
        computing_ns = int(self._random.random() * self._plan.compute_ms_max * 1e6)
        upto = self._random.randint(found + 1, wanted)
        self._computing.append(
            _Computation(
                request, view, tenant, chain, keys, pages, upto, begun_ns, answered_ns + computing_ns
            )
        )  # fmt: skip

    def _read_l1(self, request: Request, tenant: _Tenant, keys: bytes) -> int:
        l1 = tenant.l1
        pages = l1.match(keys)
        try:
            l1.read(pages, tenant.room[: len(pages)])
            request.reused(keys[: len(pages) * KEY_BYTES], l1.instances(pages))
        finally:
            l1.release(pages)
        return len(pages)

    def _read_beyond(
        self, request: Request, keys: bytes, room: list[bytearray], start: int, deadline_s: float
    ) -> tuple[int, MissReason]:
        """Copy pages or look at them under a lease, by turns."""
        waits = {"deadline_s": deadline_s} if self._plan.deadlines_ms else {}
        if self._random.random() < 0.5:
            with self._doing(Activity.GET):
                outcome = request.get(keys, room, start=start, **waits)
            match outcome:
                case Hit(pages=count, ended_by=reason):
                    return count, reason
                case Miss(reason=reason):
                    return 0, reason
            raise AssertionError("nothing of this fleet is pending")
        with request.lease(keys, start=start, **waits) as lease, self._doing(Activity.LEASE):
            for index, page in enumerate(lease):
                room[index][:] = page
            return lease.pages, lease.reason

    def _read_pages(self, tenant: int, chain: int, count: int, at_ns: int) -> tuple[StampedPage, ...]:
        try:
            room = self._tenants[tenant].room
            return tuple(read_page(room[index], Place(tenant, chain, index)) for index in range(count))
        except BrokenPageError as error:
            self._recorder.breach(at_ns, str(error))
            return ()

    def _finish_due(self) -> None:
        for _ in range(len(self._computing)):
            computation = self._computing.popleft()
            if computation.due_ns > _CLOCK.now_ns():
                self._computing.append(computation)
            else:
                with computation.request:
                    self._store(computation)

    def _store(self, done: _Computation) -> None:
        part = Part(
            0, self._plan.producer, self._random.randrange(self._plan.tags), done.begun_ns, _CLOCK.now_ns()
        )
        pages = list(done.reused)
        for index in range(len(pages), done.upto):
            page = StampedPage.computed(
                Place(done.tenant, done.chain, index), replace(part, index=index), pages
            )
            if len(page.lineage) > PARTS_MAX:
                return
            pages.append(page)
        tenant = self._tenants[done.tenant]
        first, sources = len(done.reused), [page.encode(len(tenant.room[0])) for page in pages]
        keys = done.keys[: len(pages) * KEY_BYTES]
        with self._doing(Activity.PUT):
            done.request.put(keys, sources[first:], start=first, tags=[tag_name(part.tag)])
        instances = done.request.instances(keys)
        tenant.l1.insert(keys, 0, sources, view=done.view, instances=instances)


def main(arguments: Sequence[str]) -> None:
    worker = FleetWorker(WorkerPlan(**json.loads(arguments[0])))
    began = time.monotonic()
    worker.run()
    print(f"ended after {time.monotonic() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
