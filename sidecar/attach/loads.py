"""Loads that attached clients ask for: bounded a client, each answered once, at the latest when its client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from cache_l2.attach_messages import Load as LoadMessage
from cache_l2.attach_messages import LoadedPages, LoadedRow
from cache_l2.store import ArenaStore
from kv_types.clock import Clock
from kv_types.errors import InvalidArgumentError
from kv_types.ids import KEY_BYTES
from kv_types.limits import (
    CALL_S_MAX,
    LOAD_PAGES_IN_FLIGHT_PER_CLIENT_MAX,
    LOADS_IN_FLIGHT_PER_CLIENT_MAX,
)
from kv_types.loading import LoadDecision
from kv_types.outcomes import MissReason
from sidecar.attach.connection import AttachedProcess
from sidecar.l3.loads import Load, LoadRow, Loads, RowLoaded

_MS_NS = 1_000_000

Answer = Callable[[LoadedPages | BaseException], None]
"""Takes the one answer to a request, or what went wrong; called on the loop."""


@dataclass(slots=True, eq=False)
class LoadUnderWay:
    """A client's load that is not answered yet."""

    load: Load
    pages: int
    answer: Answer
    task: asyncio.Task[None] | None = None


class ClientLoads:
    """The loads of all clients of one attach server. Not thread-safe: the event loop's thread alone calls it."""

    def __init__(self, store: ArenaStore, loads: Loads, *, clock: Clock) -> None:
        self._store = store
        self._loads = loads
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_available(self) -> bool:
        """Whether there is anything that loads could bring pages from."""
        return self._loads.is_available

    def begin(
        self, process: AttachedProcess, request: int, message: LoadMessage, answer: Answer
    ) -> LoadedPages | None:
        """Begin a load; returns the answer where it is known at once, else `answer` is called with it later.

        Raises StrataError for what the client did wrong.
        """
        refusal = self._refusal(process, request, message)
        if refusal is not None:
            rows = [LoadedRow(pages=0, from_l3=0, reason=refusal)] * len(message.rows)
            return LoadedPages(tuple(rows))
        deadline_ns = self._clock.now_ns() + message.deadline_ms * _MS_NS
        rows_wanted = [
            LoadRow(self._store.namespace_of_number(row.namespace_number).id, row.parent, row.keys)
            for row in message.rows
        ]
        load = self._loads.begin(
            rows_wanted, deadline_ns=deadline_ns, group=message.group, compute=message.compute
        )
        under_way = LoadUnderWay(load, _pages_of(message), answer)
        process.loads[request] = under_way
        under_way.task = asyncio.get_running_loop().create_task(
            self._await(process, request, under_way), name="load of a client"
        )
        self._tasks.add(under_way.task)
        under_way.task.add_done_callback(self._tasks.discard)
        return None

    def cancel(self, process: AttachedProcess, request: int, reason: MissReason = MissReason.ABORTED) -> None:
        """End one load, and answer it with what there is; one that is over or unknown is left alone."""
        under_way = process.loads.pop(request, None)
        if under_way is None:
            return
        staged = [_ended(row, reason) for row in under_way.load.so_far()]
        self._end(under_way)
        under_way.answer(_answer_of(staged, under_way.load.decision))

    def close(self, process: AttachedProcess) -> None:
        """The sidecar takes its leave: answer all loads of a client with what there is."""
        for request in list(process.loads):
            self.cancel(process, request, MissReason.CLOSED)

    def abandon(self, process: AttachedProcess) -> None:
        """A client is gone, or its connection is: nobody is there to be answered."""
        while process.loads:
            _, under_way = process.loads.popitem()
            self._end(under_way)

    def _refusal(self, process: AttachedProcess, request: int, message: LoadMessage) -> MissReason | None:
        if not message.rows or not all(row.keys for row in message.rows):
            raise InvalidArgumentError("a load names one chain at least, and a page at least of each")
        if message.deadline_ms > CALL_S_MAX * 1000:
            raise InvalidArgumentError(
                f"a load of {message.deadline_ms} ms; at most {CALL_S_MAX:g} s are allowed"
            )
        if request in process.loads:
            raise InvalidArgumentError(f"request {request} of this client is a load that is under way")
        if self._store.is_draining:
            return MissReason.CLOSED
        if any(row.namespace_number not in process.registered for row in message.rows):
            return MissReason.UNKNOWN_NAMESPACE
        pages = _pages_of(message) + sum(one.pages for one in process.loads.values())
        if (
            len(process.loads) >= LOADS_IN_FLIGHT_PER_CLIENT_MAX
            or pages > LOAD_PAGES_IN_FLIGHT_PER_CLIENT_MAX
        ):
            return MissReason.OVERLOADED
        return None

    async def _await(self, process: AttachedProcess, request: int, under_way: LoadUnderWay) -> None:
        outcome: LoadedPages | BaseException
        try:
            rows = await under_way.load.wait()
            outcome = _answer_of(rows, under_way.load.decision)
        except Exception as error:  # noqa: BLE001  (whatever it is, this request is answered and no other one is hurt)
            outcome = error
        if process.loads.get(request) is under_way:
            del process.loads[request]
            under_way.answer(outcome)

    @staticmethod
    def _end(under_way: LoadUnderWay) -> None:
        under_way.load.cancel()
        if under_way.task is not None:
            under_way.task.cancel()


def _ended(row: RowLoaded, reason: MissReason) -> RowLoaded:
    """What has come of a row whose load is given up: what is pending is not waited for."""
    return replace(row, reason=reason, pending=0) if row.pending else row


def _pages_of(message: LoadMessage) -> int:
    return sum(len(row.keys) for row in message.rows) // KEY_BYTES


def _answer_of(rows: list[RowLoaded], decision: LoadDecision | None) -> LoadedPages:
    told = tuple(LoadedRow(row.pages, row.from_l3, row.reason, row.pending) for row in rows)
    return LoadedPages(told, decision)
