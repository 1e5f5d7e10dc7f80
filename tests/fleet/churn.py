"""Churn: three times what L2 and L3 hold together goes through both, on two nodes; memory stays flat and counts are exact.

`python -m tests.fleet.churn --minutes 10` for a long run; prints a report, and exits 1 where something is not as it should be.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import psutil
import typer

from inference_worker.client import Client, ClientSettings
from kv_types.ids import KEY_BYTES
from kv_types.outcomes import Hit, Known, Miss, MissReason, RefuseReason, Stored
from tests.fleet.accounts import Account, Tally
from tests.fleet.fleet import Fleet, fleet_of
from tests.fleet.l3_fleets import status_of
from tests.support.pages import PAGE_UNIT_BYTES, namespace_of
from tests.support.polling import wait_until
from tests.support.redis_servers import RedisServer

NODES = 2
UNITS = 16
PAGE_BYTES = UNITS * PAGE_UNIT_BYTES
CHAIN_PAGES = 8
ARENA_BYTES = 16 << 20
L3_BYTES = 32 << 20
TIMES = 3
CHAINS = TIMES * (NODES * ARENA_BYTES + L3_BYTES) // (CHAIN_PAGES * PAGE_BYTES)
"""Different chains: three times what all arenas and L3 hold together."""
SAMPLE_S = 0.5
WARM_UP_SHARE = 0.4
GROWTH_BYTES_MAX = 3 << 20
"""What a process may seem to grow by while it is watched: a heap breathes."""
ROUNDS_MAX = 4
"""Where memory has grown by more, all goes on for another round: what fills up at first comes to an end, a leak doesn't."""
_SPACE = namespace_of("churn", units=UNITS)


@dataclass(slots=True)
class Churner:
    """One worker: looks up a chain at random, checks each byte, computes what it missed. For a thread of its own."""

    client: Client
    seed: int
    ending: threading.Event
    tally: Tally = field(default_factory=Tally)
    puts: Counter[str] = field(default_factory=Counter)
    failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.failure = error
            self.ending.set()

    def _run(self) -> None:
        draw, namespace = random.Random(self.seed), self.client.register(_SPACE)
        room = [bytearray(PAGE_BYTES) for _ in range(CHAIN_PAGES)]
        while not self.ending.is_set():
            keys = chain_of(draw.randrange(CHAINS))
            with self.client.begin(namespace) as request:
                found, reason = 0, MissReason.NONE
                match request.get(keys, room, deadline_s=0.1):
                    case Hit(pages=found, ended_by=reason):
                        pass
                    case Miss(reason=reason):
                        pass
                pages = [content(keys, index) for index in range(CHAIN_PAGES)]
                assert [bytes(page) for page in room[:found]] == pages[:found], "a wrong byte"
                self.tally.count(wanted=CHAIN_PAGES, l1=0, found=found, reason=reason)
                if found < CHAIN_PAGES:
                    outcomes = request.put(keys, pages[found:], start=found)
                    self.puts.update(_named(outcome) for outcome in outcomes)


def _named(outcome: object) -> str:
    if isinstance(outcome, Stored | Known):
        return type(outcome).__name__.lower()
    reason = getattr(outcome, "reason", RefuseReason.NONE)
    return f"refused: {reason.name.lower()}"


def chain_of(number: int) -> bytes:
    """Packed keys of a chain."""
    key, keys = f"churn {number}".encode(), b""
    for _ in range(CHAIN_PAGES):
        key = hashlib.blake2b(key, digest_size=KEY_BYTES).digest()
        keys += key
    return keys


def content(keys: bytes, index: int) -> bytes:
    """The bytes of a page: they can't be compressed, and are no other page's."""
    return hashlib.shake_128(keys[index * KEY_BYTES :][:KEY_BYTES]).digest(PAGE_BYTES)


@dataclass(slots=True)
class Watched:
    """The size of something, sampled while all goes on."""

    name: str
    read: Callable[[], int]
    samples: list[tuple[float, int]] = field(default_factory=list)

    def sample(self) -> None:
        self.samples.append((time.monotonic(), self.read()))

    def begin_anew(self) -> None:
        """Forget what was sampled: what follows is a round of its own."""
        self.samples.clear()

    def growth(self) -> float:
        """Bytes by which it grew after the warm-up, by the median of the slopes between pairs (Theil and Sen)."""
        kept = self.samples[int(len(self.samples) * WARM_UP_SHARE) :]
        half = len(kept) // 2
        slopes = [
            (late - early) / (until - since)
            for (since, early), (until, late) in zip(kept[:half], kept[-half:], strict=True)
        ]
        return statistics.median(slopes) * (kept[-1][0] - kept[0][0])

    def told(self) -> str:
        sizes = [size / 2**20 for _, size in self.samples]
        return (
            f"{self.name:<24} {sizes[0]:8.1f} MiB at first, {statistics.median(sizes):8.1f} in the middle, "
            f"{sizes[-1]:8.1f} at the end; {self.growth() / 2**20:+.2f} after the warm-up"
        )


def grown(watched: Sequence[Watched], *, bytes_max: int = GROWTH_BYTES_MAX) -> list[str]:
    """What grew by more than it may."""
    return [
        f"{one.name} grew by {one.growth() / 2**20:.1f} MiB" for one in watched if one.growth() > bytes_max
    ]


def go_on_while_growing(
    watched: Sequence[Watched], one_round: Callable[[], None], growing: Callable[[], object]
) -> None:
    """Go through rounds until nothing has grown in the last one by more than it may, or they were ROUNDS_MAX."""
    for _ in range(ROUNDS_MAX):
        for one in watched:
            one.begin_anew()
        one_round()
        if not growing():
            return


@dataclass(slots=True)
class Churned:
    """What came of it."""

    watched: Sequence[Watched]
    churners: Sequence[Churner]
    accounts: Sequence[Account]
    statuses: Sequence[Mapping[str, Any]]
    took_s: float
    wrong: list[str] = field(default_factory=list)

    def judge(self) -> list[str]:
        """What is not as it should be."""
        wrong = grown(self.watched)
        for node, (account, status) in enumerate(zip(self.accounts, self.statuses, strict=True)):
            wrong += [f"node {node}: {difference}" for difference in account.differences()]
            wrong += [f"node {node}: {difference}" for difference in _disagreements(account, status)]
        moved = sum(churner.puts["stored"] for churner in self.churners) * PAGE_BYTES
        if moved < TIMES * (NODES * ARENA_BYTES + L3_BYTES):
            wrong.append(f"only {moved / 2**20:.0f} MiB were stored")
        if not all(account.l3_pages for account in self.accounts):
            wrong.append("a node got nothing through L3")
        return wrong

    def report(self) -> str:
        lines = [f"{self.took_s:.0f} s, {CHAINS * CHAIN_PAGES} different pages of {PAGE_BYTES // 1024} KiB"]
        lines += [one.told() for one in self.watched]
        for node, account in enumerate(self.accounts):
            client, asked = account.client, max(1, account.client["requested_pages"])
            shares = {tier: client[f"{tier}_pages"] / asked for tier in ("l2", "l3")}
            missed = {
                name.removeprefix("missed_pages_"): pages
                for name, pages in client.items()
                if "missed" in name
            }
            lines.append(
                f"node {node}: {asked} pages asked for, {shares['l2']:.1%} from L2, {shares['l3']:.1%} from L3, missed {missed}; "
                f"put {dict(self.churners[node].puts)}"
            )
        return "\n".join(lines)


def _disagreements(account: Account, status: Mapping[str, Any]) -> Iterator[str]:
    """Where a sidecar's own counts are not those of its only client."""
    (counted,) = status["namespaces"]
    for name in ("requested_pages", "l2_pages", "l3_pages"):
        if int(counted[name]) != account.client[name]:
            yield f"{name}: the sidecar has {counted[name]}, its client {account.client[name]}"
    arena = {name: int(number) for name, number in status["arena"].items()}
    gone = sum(number for name, number in arena.items() if name.startswith("evictions_"))
    loaded = int(status["l3"]["loads"]["loaded"])
    if arena["stored"] + loaded - gone != arena["entries_visible"]:
        yield f"{arena['stored']} stored and {loaded} loaded less {gone} evicted are not {arena['entries_visible']}"
    for name in ("leases", "reservations", "entries_reserved", "entries_quarantined"):
        if arena[name]:
            yield f"{arena[name]} {name} are left"
    stores = {name: int(number) for name, number in status["l3"]["stores"].items()}
    ends = sum(
        number for name, number in stores.items()
        if name in ("stored", "known", "gone") or name.startswith(("dropped_", "refused_"))
    )  # fmt: skip
    again = stores.get("restored", 0)  # ancestors that L3 had dropped, offered once more
    if not stores["offered"] == ends == arena["stored"] + again:
        yield f"{arena['stored']} pages were put, {stores['offered']} offered to L3, {again} again; something came of {ends}"
    records = {name: int(number) for name, number in status["l3"]["records"].items()}
    for what in ("load", "store"):
        missed = sum(
            number
            for name, number in records.items()
            if name.startswith((f"{what}_missed_", f"{what}_refused_"))
        )
        if records[f"{what}s"] != records[f"{what}ed" if what == "load" else "stored"] + missed:
            yield f"of {records[f'{what}s']} {what}s the ends don't add up"


def churn(seconds: float, *, seed: int) -> Churned:
    """Let two nodes work for so long."""
    pages: list[RedisServer] = []

    def url(fleet: Fleet) -> str:
        pages.append(fleet.servers.start(maxmemory=str(L3_BYTES), maxmemory_policy="allkeys-lru"))
        return pages[0].url

    with (
        fleet_of(sidecars=NODES, workers=0, arena_bytes=ARENA_BYTES, l3=url) as fleet,
        contextlib.ExitStack() as held,
    ):
        ending = threading.Event()
        churners = []
        for node, sidecar in enumerate(fleet.sidecars):
            client = Client.connect(
                sidecar.runtime, settings=ClientSettings(name=f"churner-{node}", deadline_s=2.0)
            )
            held.callback(client.close)
            assert client.wait_ready(deadline_s=10.0)
            churners.append(Churner(client, seed + node, ending))
        watched = [
            Watched(f"memory of sidecar {node}", partial(_resident, sidecar.pid))
            for node, sidecar in enumerate(fleet.sidecars)
        ]
        watched.append(Watched("used memory of Redis", lambda: int(pages[0].info("memory")["used_memory"])))
        began_s = time.monotonic()
        _run(churners, watched, ending, seconds)
        took_s = time.monotonic() - began_s
        wait_until(
            lambda: all(_is_quiet(fleet, node) for node in range(NODES)), what="write-behind to be done"
        )
        accounts = [Account.at(0, one.tally, one.client.statistics()) for one in churners]
        statuses = [status_of(fleet, node) for node in range(NODES)]
    return Churned(watched, churners, accounts, statuses, took_s)


def _resident(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def _run(
    churners: Sequence[Churner], watched: Sequence[Watched], ending: threading.Event, seconds: float
) -> None:
    threads = [threading.Thread(target=one.run, name="churner") for one in churners]
    for thread in threads:
        thread.start()

    def one_round() -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not ending.wait(SAMPLE_S):
            for one in watched:
                one.sample()

    go_on_while_growing(watched, one_round, lambda: not ending.is_set() and grown(watched))
    ending.set()
    for thread in threads:
        thread.join()
    for churner in churners:
        if churner.failure is not None:
            raise churner.failure


def _is_quiet(fleet: Fleet, node: int) -> bool:
    """Whether nothing of a node is on its way to L3 or from it."""
    status = status_of(fleet, node)
    waiting = [status["l3"]["stores"][name] for name in ("queued_pages", "in_flight")]
    waiting += [
        status["l3"]["records"]["in_flight"],
        status["arena"]["leases"],
        status["arena"]["reservations"],
    ]
    return not any(waiting)


def main(minutes: Annotated[float, typer.Option(help="How long.")] = 10.0, seed: int = 1) -> None:
    """Churn, and say what came of it."""
    churned = churn(minutes * 60, seed=seed)
    print(churned.report())
    wrong = churned.judge()
    for one in wrong:
        print(f"WRONG: {one}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
