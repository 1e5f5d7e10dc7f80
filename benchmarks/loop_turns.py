"""Measures how long a sidecar's event loop is kept by what comes in bulk: a start, a gap, a full renewal, hiding, a fence."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

import typer
from rich.table import Table

from benchmarks.own_redis import OwnRedis, own_redis
from benchmarks.showing import show
from benchmarks.workload import Chains, namespace_of
from cache_l2.store import ArenaConfig, ArenaStore
from cache_l3.address import parse_addresses
from invalidation.log import Boot, Member, Renewal
from invalidation.notes import MemberNote
from invalidation.records import LogEntry
from invalidation.redis.log import RedisLog, RedisLogSettings
from invalidation.validity import Validity
from kv_types.clock import BoottimeClock
from kv_types.events import Selected
from kv_types.ids import NamespaceId, PageKey, Stamp
from kv_types.limits import (
    BATCH_PAGES_MAX,
    FLEET_MEMBERS_MAX,
    LOG_BATCH_RECORDS_MAX,
    LOG_TOMBSTONES_MAX,
    LOG_TOMBSTONES_PER_SCOPE_MAX,
)
from kv_types.page_keys import unpack_keys
from kv_types.selectors import EVERYTHING, Selector
from sidecar.log.applier import LogApplier

PAGE_BYTES = 16_384
HIDDEN_PAGES = 32_768
DEADLINE_S = 30.0
ROUNDS = 5

_clock = BoottimeClock()
_Result = TypeVar("_Result")

ROWS: tuple[tuple[str, str], ...] = (
    ("boot", f"a start: the log's answer with {LOG_TOMBSTONES_MAX:,} tombstones is read"),
    ("restart", "… and commits are judged by it from then on, all pages hidden (none is there)"),
    ("gap", "after a gap as long: what was missed is looked for (nothing is there)"),
    ("renewal", f"a renewal that brings {LOG_BATCH_RECORDS_MAX:,} records is read"),
    ("apply", "… and applied (no page is there)"),
    ("hide", f"{HIDDEN_PAGES:,} pages are hidden"),
    ("fence", f"a fence looks at {FLEET_MEMBERS_MAX:,} members"),
)


def _deadline_ns() -> int:
    return _clock.now_ns() + int(DEADLINE_S * 1e9)


@dataclass
class Turns:
    """Milliseconds of the loop's thread: of the longest turn, and of all, one sample a round."""

    longest_ms: list[float] = field(default_factory=list)
    total_ms: list[float] = field(default_factory=list)

    async def watch(self, work: Awaitable[_Result]) -> _Result:
        """Do it, and see for how long it keeps others from running. Processor time: what else runs here counts nothing."""
        turns: list[float] = []

        async def take_turns() -> None:
            while True:
                began = time.thread_time()
                await asyncio.sleep(0)
                turns.append(time.thread_time() - began)

        watching = asyncio.create_task(take_turns())
        await asyncio.sleep(0)
        result = await work
        await asyncio.sleep(0)
        watching.cancel()
        self.longest_ms.append(max(turns) * 1e3)
        self.total_ms.append(sum(turns) * 1e3)
        return result


def _selector(number: int) -> Selector:
    """One of many, as many in each namespace as the log keeps apart: pages, and what a producer put."""
    space = NamespaceId(hashlib.sha256(b"%d" % (number // LOG_TOMBSTONES_PER_SCOPE_MAX)).digest())
    if number % 2:
        return Selector(namespace=space, producer=b"producer-%d" % number)
    return Selector(namespace=space, key=PageKey(hashlib.sha256(b"page %d" % number).digest()))


def _log(server: OwnRedis, fleet: str) -> RedisLog:
    return RedisLog(RedisLogSettings(addresses=parse_addresses(server.url), fleet=fleet), clock=_clock)


@contextlib.contextmanager
def _site(*, pages: int = 1024) -> Iterator[tuple[LogApplier, Validity, ArenaStore]]:
    """What a sidecar hides with."""
    validity = Validity(skew_ms=1000)
    config = ArenaConfig(
        arena_bytes=pages * PAGE_BYTES * 5 // 4, segment_bytes=1 << 20, client_rows=4, leases_per_client=1024,
        ring_records=4096, prefault=False,
    )  # fmt: skip
    with contextlib.closing(ArenaStore(config, clock=_clock, judge=validity)) as store:
        yield LogApplier(validity, store), validity, store


@contextlib.asynccontextmanager
async def _full_log(server: OwnRedis) -> AsyncIterator[RedisLog]:
    """A log with as many tombstones as it keeps, and a batch of records behind the oldest."""
    log = _log(server, "tombstones")
    try:
        for number in range(LOG_TOMBSTONES_MAX):
            entry = LogEntry(event=Selected(_selector(number)), reason="measured")
            await log.append(entry, request_id=os.urandom(16), deadline_ns=_deadline_ns())
        yield log
    finally:
        await log.close()


async def _renewed(log: RedisLog, boot: Boot) -> tuple[Member, Renewal]:
    """A member that a full batch follows, and what it got."""
    after = boot.tip.revision - LOG_BATCH_RECORDS_MAX
    _, (last,) = await log.read(after - 1, count=1, deadline_ns=_deadline_ns())
    member = Member(
        id=os.urandom(16), applied=Stamp(boot.tip.incarnation, after), digest=last.digest,
        acknowledged=0, drained=0,
    )  # fmt: skip
    return member, await log.renew(member, number=1, deadline_ns=_deadline_ns())


async def _bulk(log: RedisLog, turns: Mapping[str, Turns]) -> None:
    boot = await turns["boot"].watch(log.boot(deadline_ns=_deadline_ns()))
    if len(boot.tombstones) != LOG_TOMBSTONES_MAX:
        raise RuntimeError(f"the log keeps {len(boot.tombstones)} tombstones")
    with _site() as (applier, _, _):
        await turns["restart"].watch(applier.reset(boot))
        await turns["gap"].watch(applier.reapply(boot, after=1))
    member, _ = await _renewed(log, boot)
    renewal = await turns["renewal"].watch(log.renew(member, number=2, deadline_ns=_deadline_ns()))
    if len(renewal.records) != LOG_BATCH_RECORDS_MAX:
        raise RuntimeError(f"a renewal brought {len(renewal.records)} records")
    with _site() as (applier, _, _):
        await applier.reset(replace(boot, tip=member.applied, tombstones={}))
        await turns["apply"].watch(applier.apply(renewal.records))


async def _hiding(log: RedisLog, turns: Mapping[str, Turns]) -> None:
    boot = await log.boot(deadline_ns=_deadline_ns())
    namespace = namespace_of(PAGE_BYTES)
    with _site(pages=HIDDEN_PAGES) as (applier, _, store):
        await applier.reset(replace(boot, tombstones={}))
        record, draw = store.register(namespace.canonical, PAGE_BYTES), Chains(namespace)
        page = memoryview(bytes(PAGE_BYTES))
        for _ in range(HIDDEN_PAGES // BATCH_PAGES_MAX):
            keys = unpack_keys(draw.draw(BATCH_PAGES_MAX))
            store.put(record.id, keys, [page] * len(keys), stamp=store.stamp())

        async def hide() -> int:
            hidden = 0
            for pages in store.hiding(EVERYTHING):
                hidden += pages
                await asyncio.sleep(0)
            return hidden

        hidden = await turns["hide"].watch(hide())
        if hidden != HIDDEN_PAGES:
            raise RuntimeError(f"{hidden} pages were hidden")


async def _members(log: RedisLog) -> None:
    boot = await log.boot(deadline_ns=_deadline_ns())
    note = MemberNote(lease_ns=3_000_000_000, engines_keep=0, host="node-0001", pid=4321, version="0.1.0")
    for _ in range(FLEET_MEMBERS_MAX):
        member = Member(
            id=os.urandom(16), applied=boot.tip, digest=boot.digest, acknowledged=0, drained=0,
            note=note.encode(),
        )  # fmt: skip
        await log.renew(member, number=1, deadline_ns=_deadline_ns())


async def measure(*, rounds: int) -> dict[str, float]:
    """Figures by key: medians over the rounds, in ms of processor time of the loop's thread."""
    turns = {key: Turns() for key, _ in ROWS}
    with own_redis() as server:
        fleet = _log(server, "members")
        try:
            await _members(fleet)
            async with _full_log(server) as log:
                gc.collect()
                gc.freeze()  # as a sidecar does once it has started
                for _ in range(rounds):
                    await _bulk(log, turns)
                    await _hiding(log, turns)
                    await turns["fence"].watch(fleet.fence(deadline_ns=_deadline_ns()))
                    gc.collect()
                    gc.freeze()  # what a round leaves behind is none of the next one's
        finally:
            gc.unfreeze()
            await fleet.close()
    figures = {}
    for key, each in turns.items():
        figures[f"{key}_longest_ms"] = statistics.median(each.longest_ms)
        figures[f"{key}_total_ms"] = statistics.median(each.total_ms)
    return figures


def lines(figures: Mapping[str, float]) -> list[str]:
    """The part of docs/benchmarks.md."""
    return [
        "## How long a sidecar's event loop is kept",
        "",
        "`python -m benchmarks.loop_turns`. The loop serves the attach socket too, so what comes in bulk is done in turns.",
        "Processor time of the loop's thread, medians of rounds: *longest* is what a request waits for at most, *in all* what",
        "it would wait for if nobody else ran in between.",
        "",
        "| what | longest turn | in all |",
        "|---|---:|---:|",
        *(f"| {what} | {longest} | {total} |" for what, longest, total in _cells(figures)),
    ]


def _cells(figures: Mapping[str, float]) -> Sequence[tuple[str, str, str]]:
    return [
        (what, f"{figures[f'{key}_longest_ms']:.1f} ms", f"{figures[f'{key}_total_ms']:.1f} ms")
        for key, what in ROWS
    ]


def table(figures: Mapping[str, float]) -> Table:
    """The figures for a terminal."""
    shown = Table(title="How long a sidecar's event loop is kept")
    for name in ("what", "longest turn", "in all"):
        shown.add_column(name, justify="left" if name == "what" else "right")
    for cells in _cells(figures):
        shown.add_row(*cells)
    return shown


def main(
    rounds: Annotated[int, typer.Option(min=1)] = ROUNDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, figures by key.")] = False,
) -> None:
    """Measure the longest turns of what comes in bulk."""
    figures = asyncio.run(measure(rounds=rounds))
    show(figures, table(figures), as_json=as_json)


if __name__ == "__main__":
    typer.run(main)
