"""Loader: carries out what the planner of loads decides, between a record store and the arena. On the event loop alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from cache_l2.intake import PageRow
from cache_l2.store import ArenaStore, NamespaceRecord
from cache_l3.record_store import LoadedRecord, RecordName, RecordStore
from kv_policy.load_or_recompute import LoadOrRecompute
from kv_policy.losing_cost import LosingCost
from kv_types.clock import Clock
from kv_types.errors import UnknownNamespaceError
from kv_types.ids import NamespaceId, PageKey
from kv_types.limits import L3_LOAD_S_MAX, L3_TURN_PAGES
from kv_types.loading import ComputeCost, LoadDecision
from kv_types.outcomes import MissReason, PutStatus, RefuseReason
from kv_types.record import PageDescription, RecordHeader
from sidecar.l3 import plan
from sidecar.l3.loads import Load, LoadRow, RowLoaded
from sidecar.l3.plan import Action, Bounds, Event
from sidecar.l3.planner import Planner
from sidecar.l3.reasons import miss_of
from sidecar.l3.residency import answers, asked_row, check_rows
from sidecar.logs import SeldomLogger, logger

_SECOND_NS = 1_000_000_000
_LOAD_NS_MAX = int(L3_LOAD_S_MAX * _SECOND_NS)

_FAILED = MissReason.L3_UNAVAILABLE
"""What a load ends with that failed here, whatever L3 would have said."""

_log = logger("l3")


class Timer(Protocol):
    """What can be called off."""

    def cancel(self) -> None:
        """Don't call."""
        ...


Later = Callable[[float, Callable[[], None]], Timer]
"""Calls something in so many seconds, as the event loop's call_later does."""
Observer = Callable[[float, Sequence[RowLoaded]], None]
"""Is told the seconds and the answer of each load that somebody waited for."""


@dataclass(slots=True)
class _Flight:
    """A place of the arena, and the record that is on its way into it."""

    reservation: int
    future: asyncio.Future[LoadedRecord | MissReason]
    page: PageDescription | None = None


class RowsLoad:
    """A Load of the loader."""

    def __init__(self, loader: Loader, number: int, rows: Sequence[LoadRow], *, is_group: bool) -> None:
        self._loader = loader
        self._answer: asyncio.Future[list[RowLoaded]] = loader.loop.create_future()
        self._began = loader.loop.time()
        self.decision: LoadDecision | None = None
        self.number = number
        self.rows = rows
        self.is_group = is_group

    @property
    def is_done(self) -> bool:
        """Whether it was answered, or given up."""
        return self._answer.done()

    async def wait(self) -> list[RowLoaded]:
        """See Load."""
        if not self._answer.done():
            self._loader.waited(self)
        try:
            return list(await asyncio.shield(self._answer))
        except asyncio.CancelledError:
            self.cancel()
            raise

    def so_far(self) -> list[RowLoaded]:
        """See Load."""
        return list(self._answer.result()) if self._answer.done() else self._loader.told_so_far(self)

    def cancel(self) -> None:
        """See Load."""
        if not self._answer.done():
            self._loader.give_up(self)

    def tell(self, rows: list[RowLoaded]) -> float:
        """Answer whoever waits; returns the seconds that it took."""
        self._answer.set_result(rows)
        return self._loader.loop.time() - self._began


class Loader:
    """Implements Loads. `later` and `clock` tell the same time."""

    is_available = True

    def __init__(
        self,
        store: ArenaStore,
        records: RecordStore,
        *,
        clock: Clock,
        bounds: Bounds,
        later: Later | None = None,
        observe: Observer = lambda seconds, rows: None,
        weighs: bool = True,
    ) -> None:
        """`weighs`: load only what pays, where callers say what computing takes them; else all that L3 has."""
        self.loop = asyncio.get_running_loop()
        self._store = store
        self._records = records
        self._clock = clock
        self._later: Later = later or self.loop.call_later
        self._observe = observe
        self._failures = SeldomLogger(_log, clock)
        self._weighs = weighs
        self.tier = LoadOrRecompute()
        self.losing = LosingCost(self.tier)
        self._planner = Planner(bounds, self.tier)
        self._events: deque[Event] = deque()
        self._is_feeding = False
        self._begun = 0
        self._loads: dict[int, RowsLoad] = {}
        self._flights: dict[int, _Flight] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._timer: Timer | None = None
        self._timer_ns = 0
        self._landed = asyncio.Event()

    # --- Loads ---

    def begin(
        self,
        rows: Sequence[LoadRow],
        *,
        deadline_ns: int,
        group: bool = False,
        compute: ComputeCost | None = None,
    ) -> Load:
        """See Loads."""
        check_rows(rows)
        now_ns = self._clock.now_ns()
        self._begun += 1
        load = RowsLoad(self, self._begun, tuple(rows), is_group=group)
        if compute is not None and rows[0].parent is None:
            self.losing.computes(compute)
        asked = []
        for row in rows:
            found = asked_row(self._store, row)
            if isinstance(found, MissReason):
                load.tell([RowLoaded(0, 0, found)] * len(rows))
                return load
            asked.append(found)
        self._loads[load.number] = load
        self._feed(
            plan.Asked(
                request=load.number, rows=tuple(asked), deadline_ns=min(deadline_ns, now_ns + _LOAD_NS_MAX),
                is_group=group, compute=compute if self._weighs else None, now_ns=now_ns,
            )
        )  # fmt: skip
        return load

    def waited(self, load: RowsLoad) -> None:
        """Somebody waits for it from now on."""
        self._feed(plan.Waited(load.number))

    def told_so_far(self, load: RowsLoad) -> list[RowLoaded]:
        """What is staged of a load that is under way, and what is pending."""
        return list(self._planner.so_far(load.number) or ())

    def give_up(self, load: RowsLoad) -> None:
        """Answer it with what there is; nobody wants more."""
        so_far = self.told_so_far(load)
        del self._loads[load.number]
        load.tell([RowLoaded(one.pages, one.from_l3, _ended(one)) for one in so_far])
        self._feed(plan.GivenUp(load.number))

    # --- what happens around it ---

    @property
    def is_loading(self) -> bool:
        """Whether anybody's pages are on their way."""
        return bool(self._loads) or bool(self._flights)

    def became_resident(self, keys: Iterable[PageKey]) -> None:
        """Somebody has stored these pages here, parents first."""
        self._feed(plan.BecameResident(tuple(keys)))

    def stored_there(self, keys: Iterable[PageKey]) -> None:
        """These pages have come into L3 from here."""
        self._feed(plan.StoredThere(tuple(keys)))

    def statistics(self) -> Mapping[str, int]:
        """The planner's counters and gauges."""
        return self._planner.statistics()

    def choices(self) -> Mapping[str, float]:
        """Choices between loading and computing, and the estimate of L3 that they rest on."""
        return self.tier.statistics(self._clock.now_ns() / _SECOND_NS)

    # --- the end ---

    def drain(self) -> None:
        """Answer all, begin nothing any more, and call off what is on its way."""
        self._feed(plan.Closing())
        for flight in list(self._flights.values()):
            self._records.cancel(flight.future)

    async def close(self) -> None:
        """Drain, and wait until no place of the arena is written to any more."""
        self.drain()
        for task in list(self._asking):
            task.cancel()
        while self._flights:
            self._landed.clear()
            await self._landed.wait()
        if self._timer is not None:
            self._timer.cancel()

    # --- events and time ---

    def _feed(self, event: Event) -> None:
        self._events.append(event)
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            while self._events:
                for action in self._planner.step(self._events.popleft()):
                    self._carry_out(action)
        finally:
            self._is_feeding = False
            self._set_timer()

    def _set_timer(self) -> None:
        due_ns = self._planner.due_ns
        # Who waits is told at once when nothing may be served any more.
        if due_ns is not None and self._loads:
            due_ns = min(due_ns, self._store.reader.freshness_ns())
        if self._timer is not None:
            if due_ns is not None and self._timer_ns <= due_ns:
                return  # it comes early enough
            self._timer.cancel()
            self._timer = None
        if due_ns is not None:
            delay_s = max(0, due_ns - self._clock.now_ns()) / _SECOND_NS
            self._timer, self._timer_ns = self._later(delay_s, self._time_came), due_ns

    def _time_came(self) -> None:
        self._timer = None
        now_ns = self._clock.now_ns()
        if self._loads and now_ns >= self._store.reader.freshness_ns():
            self._feed(plan.BecameStale())
        self._feed(plan.TimeCame(now_ns))

    def _carry_out(self, action: Action) -> None:
        """Never raises: what follows is of other loads. The planner is told of whatever waits for an event."""
        try:
            self._try_to(action)
        except Exception:  # noqa: BLE001  (whatever it is, it is no reason to keep anybody waiting)
            self._failed(type(action).__name__)

    def _failed(self, what: str) -> None:
        self._failures.error("a load failed in a way that it must not", exc_info=True, at=what.lower())

    def _try_to(self, action: Action) -> None:
        match action:
            case plan.Probe():
                task = self.loop.create_task(self._ask(action), name="l3 probe")
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
            case plan.Fetch():
                self._fetch(action)
            case plan.Publish(flight):
                self._publish(flight)
            case plan.GiveBack(flight):
                landed = self._take(flight)
                self._store.abort(self._store.own_row, [landed.reservation])
            case plan.Answer(number, rows, decision):
                self._answer(number, rows, decision)

    def _answer(self, number: int, rows: Sequence[RowLoaded], decision: LoadDecision | None) -> None:
        load = self._loads.pop(number)
        load.decision = decision
        told = [RowLoaded(0, 0, _FAILED)] * len(load.rows)
        try:
            told = answers(self._store, load.rows, rows, is_group=load.is_group)
        finally:
            seconds = load.tell(told)
        self._observe(seconds, told)

    # --- asking ---

    async def _ask(self, probe: plan.Probe) -> None:
        results = [_FAILED] * len(probe.pages)
        try:
            names = [RecordName(page.namespace, page.key) for page in probe.pages]
            found = await self._records.probe(names, deadline_ns=probe.deadline_ns)
            await self._judge(probe.pages, found, results)
        except Exception:  # noqa: BLE001  (as in _carry_out)
            self._failed("probe")
        finally:  # whatever became of it: the planner is to know
            self._feed(plan.Probed(probe.probe, tuple(results), self._clock.now_ns()))

    async def _judge(
        self,
        pages: Sequence[plan.ProbedPage],
        found: Sequence[RecordHeader | MissReason],
        results: list[MissReason],
    ) -> None:
        """Say of each page why it need not be fetched, in turns. Only `publish` decides (rule R2)."""
        judged = 0
        for begin, end in _runs(pages, found):
            headers = [one.page for one in found[begin:end] if isinstance(one, RecordHeader)]
            results[begin : begin + len(headers)] = self._judge_run(pages[begin], headers)
            if len(headers) < end - begin:
                missed = found[end - 1]
                assert isinstance(missed, MissReason)
                results[end - 1] = missed
            judged += end - begin
            if judged >= L3_TURN_PAGES:
                judged = 0
                await asyncio.sleep(0)

    def _judge_run(self, first: plan.ProbedPage, pages: Sequence[PageDescription]) -> list[MissReason]:
        record = self._namespace(first.namespace)
        if record is None:
            return [MissReason.UNKNOWN_NAMESPACE] * len(pages)
        position = self._store.stamp()
        reasons = self._store.judge_probed(record, first.parent, pages)
        return [
            miss_of(reason, stamp=page.stamp, position=position)
            for page, reason in zip(pages, reasons, strict=True)
        ]

    # --- fetching ---

    def _fetch(self, fetch: plan.Fetch) -> None:
        record = self._namespace(fetch.namespace)
        if record is None:
            self._refuse(fetch.flights, plan.NoPlace(fetch.flights[0], MissReason.UNKNOWN_NAMESPACE))
            return
        places: list[PageRow] = []
        begun = 0
        try:
            places = self._store.reserve_for_load(
                record, fetch.parent, b"".join(fetch.keys), until_ns=fetch.deadline_ns
            )
            for flight, key, place in zip(fetch.flights, fetch.keys, places, strict=True):
                refused = self._begin_flight(flight, record, key, place, fetch.deadline_ns)
                if refused is not None:
                    self._refuse(fetch.flights[begun:], refused)
                    return
                begun += 1
        except Exception:
            self._refuse(fetch.flights[begun:], plan.NoPlace(fetch.flights[begun], _FAILED))
            left = [reservation for status, _, reservation, _ in places[begun:] if status == PutStatus.STORED]
            self._store.abort(self._store.own_row, left)
            raise

    def _refuse(self, flights: Sequence[int], first: Event) -> None:
        self._events.append(first)
        self._events.extend(plan.NotTried(flight) for flight in flights[1:])

    def _begin_flight(
        self, flight: int, record: NamespaceRecord, key: PageKey, place: PageRow, deadline_ns: int
    ) -> plan.BeingPut | plan.NoPlace | None:
        """Get a page on its way, unless it is there already; returns why there is no place for it."""
        status, reason, reservation, offset = place
        if status == PutStatus.STORED:
            memory = memoryview(self._store.reader.slot(offset, record.page_bytes)).cast("B")
            future = self._records.load(RecordName(record.id, key), memory, deadline_ns=deadline_ns)
            self._flights[flight] = _Flight(reservation, future)
            future.add_done_callback(partial(self._land, flight))
        elif status == PutStatus.KNOWN:
            self._events.append(plan.AlreadyThere(flight))
        elif reason == RefuseReason.BUSY:
            return plan.BeingPut(flight)
        else:
            return plan.NoPlace(flight, miss_of(RefuseReason(reason)))
        return None

    def _land(self, flight: int, future: asyncio.Future[LoadedRecord | MissReason]) -> None:
        reason = _FAILED
        try:
            result = future.result()
            if isinstance(result, LoadedRecord):
                self._flights[flight].page, reason = result.header.page, MissReason.NONE
            else:
                reason = result
        except Exception:  # noqa: BLE001  (as in _carry_out)
            self._failed("load")
        finally:
            self._feed(plan.Arrived(flight, reason, self._clock.now_ns()))

    def _publish(self, flight: int) -> None:
        landed = self._take(flight)
        told: Event = plan.NotPublished(flight, _FAILED)
        try:
            told = self._told_at_publish(flight, landed)
        except Exception:
            self._store.abort(self._store.own_row, [landed.reservation])
            raise
        finally:
            self._events.append(told)

    def _told_at_publish(self, flight: int, landed: _Flight) -> Event:
        assert landed.page is not None, "it has arrived"
        status, reason = self._store.publish_loaded(landed.reservation, landed.page)
        if status == PutStatus.STORED:
            return plan.Published(flight)
        if status == PutStatus.KNOWN:
            return plan.NotPublished(flight, MissReason.NONE)
        if reason == RefuseReason.EXPIRED:
            return plan.BeingPut(flight)  # a client's put of the same page has taken over
        return plan.NotPublished(
            flight, miss_of(RefuseReason(reason), stamp=landed.page.stamp, position=self._store.stamp())
        )

    def _take(self, flight: int) -> _Flight:
        self._landed.set()
        return self._flights.pop(flight)

    def _namespace(self, namespace: NamespaceId) -> NamespaceRecord | None:
        try:
            return self._store.namespace(namespace)
        except UnknownNamespaceError:
            return None


def _ended(row: RowLoaded) -> MissReason:
    return MissReason.ABORTED if row.pending else row.reason


def _runs(
    pages: Sequence[plan.ProbedPage], found: Sequence[RecordHeader | MissReason]
) -> Iterable[tuple[int, int]]:
    """Consecutive pages of one chain, L3_TURN_PAGES at most: [begin, end) of each, ending with the first that misses."""
    begin = 0
    for at, page in enumerate(pages):
        is_next = begin < at and page.parent == pages[at - 1].key and at - begin < L3_TURN_PAGES
        if begin < at and not is_next:
            yield begin, at
            begin = at
        if isinstance(found[at], MissReason):
            yield begin, at + 1
            begin = at + 1
    if begin < len(pages):
        yield begin, len(pages)
