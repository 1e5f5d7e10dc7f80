"""A sidecar with 1,000,000 resident pages: its own memory, and what a look-up, a put and an invalidation take then.

`python -m benchmarks.million`. Pages are small (4 KiB), in chains of 500 pages of two namespaces, so that 5 GiB hold them, files
and index. The sidecar's own memory is what /proc/PID/status counts as resident but for shared memory (VmRSS − RssShmem): that
is the arena's three files.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from benchmarks.daemon import attached_client, own_sidecar
from benchmarks.local import Filled, expect_hit, fill, measure_gets, measure_puts
from benchmarks.loop_turns import Turns
from benchmarks.showing import show
from benchmarks.timing import Scenario, interleave, ratio_p50
from benchmarks.workload import PAGE_TOKENS, Chains, namespace_of
from cache_l2.store import ArenaConfig, ArenaStore
from inference_worker.client import Client
from invalidation.local_log import LocalLog
from invalidation.validity import Validity
from kv_types.clock import BoottimeClock
from kv_types.namespace import Namespace
from kv_types.outcomes import Stored
from kv_types.selectors import Selector
from kv_wire.admin_calls import AdminCalls
from kv_wire.admin_conversions import selector_to_wire
from kv_wire.channel import open_channel
from kv_wire.gen import admin_pb2
from sidecar.log.applier import LogApplier

PAGE_BYTES = 4096
CHAIN_PAGES = 500
MATCHED_PAGES = 512
PAGES = 1_000_000
ROUNDS = 200
ROUNDS_MAX = 2000
DEADLINE_S = 60.0
MIB = 1024 * 1024
LARGE_BYTES = 1024 * MIB
LARGE_ROUNDS = 40

ROWS: tuple[tuple[str, str, float | None], ...] = (
    ("own_memory_MB", "the sidecar's own memory, MB", 200.0),
    ("own_memory_empty_MB", "… before the first page, MB", None),
    ("match_512_us", "match of a prefix of 512 pages, µs", 50.0),
    ("match_lease_release_us", "match, lease and release of one page, µs", 1.5),
    ("get_us", "get of one page, µs", None),
    ("put_us", "put of one page, µs", None),
    ("put_evicting_us", "… in a full arena, µs", None),
    ("large_get_x_copy", "get of a page of 1 MiB beside so many, cold, × copy", 1.10),
    ("large_get_32_x_copy", "… of 32 of them", 1.03),
    ("large_put_x_copy", "put of a page of 1 MiB beside so many, × copy", 1.35),
    ("large_put_32_x_copy", "… of 32 of them", 1.08),
    ("invalidate_ms", "half of the pages are invalidated, in all, ms", None),
    ("put_longest_ms", "… a put meanwhile, at most, ms", None),
    ("hide_longest_turn_ms", "… the loop's longest turn, of processor time, ms", 5.0),
    ("statistics_us", "statistics of the store, µs", None),
    ("tick_us", "a tick, µs", None),
)
"""Key, what it is, and its budget."""

_clock = BoottimeClock()


def small_namespace(name: str) -> Namespace:
    """One whose pages have PAGE_BYTES."""
    tokens = PAGE_TOKENS * PAGE_BYTES // (16 * 1024)
    return replace(namespace_of(16 * 1024), model=name, page_tokens=tokens)


def own_memory_bytes(pid: int) -> int:
    """Resident memory of a process, shared memory aside."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return 1024 * (int(fields["VmRSS"].split()[0]) - int(fields["RssShmem"].split()[0]))


def sidecar_pid(runtime: Path) -> int:
    """The process that listens on the attach socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.connect(str(runtime / "attach.sock"))
        pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid)


def _filled(client: Client, name: str, *, pages: int, chain_pages: int) -> Filled:
    draw = Chains(small_namespace(name))
    return fill(client, draw, page_bytes=PAGE_BYTES, pages=chain_pages, total_bytes=pages * PAGE_BYTES)


def _putting(client: Client, filled: Filled, *, seed: int) -> Callable[[int], None]:
    """Store a page that nobody has seen before, each time."""
    fresh, source = Chains(small_namespace("kept"), seed=seed), [np.ones(PAGE_BYTES, dtype=np.uint8)]
    new = [fresh.draw(1) for _ in range(ROUNDS_MAX)]

    def put(number: int) -> None:
        with client.begin(filled.namespace) as request:
            (outcome,) = request.put(new[number], source)
        if not isinstance(outcome, Stored):
            raise RuntimeError(f"a measured put was to store its page; it answered {outcome}")  # noqa: TRY004

    return put


def _calls(client: Client, filled: Filled, long: Filled, rounds: int) -> dict[str, float]:
    """Medians of what one client does, in µs."""
    destination = np.ones(PAGE_BYTES, dtype=np.uint8)
    root = [chain[:32] for chain in filled.chains]

    def lease_release(number: int) -> None:
        for at in range(100):
            with client.lease(filled.namespace, root[(number * 100 + at) % len(root)]):
                pass

    def match(number: int) -> None:
        for at in range(20):
            client.match(long.namespace, long.chain(number * 20 + at))

    def get(number: int) -> None:
        expect_hit(client.get(filled.namespace, root[number % len(root)], destination), 1)

    scenarios = [
        Scenario("match_lease_release", lease_release, inner=100), Scenario("match_512", match, inner=20),
        Scenario("get", get), Scenario("put", _putting(client, filled, seed=99)),
    ]  # fmt: skip
    return {
        f"{name}_us": samples.p50_s * 1e6 for name, samples in interleave(scenarios, rounds=rounds).items()
    }


def _invalidate_beside_puts(
    client: Client, runtime: Path, filled: Filled, gone: Namespace
) -> dict[str, float]:
    """Half of the pages go while another thread puts: how long that takes, and the longest put."""
    took_s: list[float] = []

    def invalidate() -> None:
        request = admin_pb2.InvalidateRequest(
            selectors=[selector_to_wire(Selector(namespace=gone.id))], reason="measured", author="benchmarks.million",
            wait=admin_pb2.WAIT_HIDDEN,
        )  # fmt: skip
        began = time.perf_counter()
        with contextlib.closing(open_channel(f"unix:{runtime / 'grpc.sock'}")) as channel:
            AdminCalls(channel).invalidate(request, timeout=DEADLINE_S)
        took_s.append(time.perf_counter() - began)

    fresh, source, longest_s = (
        Chains(small_namespace("kept"), seed=98),
        [np.ones(PAGE_BYTES, dtype=np.uint8)],
        0.0,
    )
    invalidating = threading.Thread(target=invalidate)
    invalidating.start()
    while invalidating.is_alive():
        chain = fresh.draw(1)
        with client.begin(filled.namespace) as request:
            began = time.perf_counter()
            request.put(chain, source)
            longest_s = max(longest_s, time.perf_counter() - began)
    invalidating.join()
    return {"invalidate_ms": took_s[0] * 1e3, "put_longest_ms": longest_s * 1e3}


def through_a_sidecar(*, pages: int, rounds: int) -> dict[str, float]:
    """What a client sees of a daemon with so many pages, and what the daemon needs for them."""
    arena_bytes = pages * PAGE_BYTES * 21 // 20 // MIB * MIB
    flags = ("--no-l3", "--pages-max", str(pages * 21 // 20))
    with (
        own_sidecar(arena_bytes=arena_bytes, flags=flags) as runtime,
        attached_client(runtime) as client,
    ):
        pid = sidecar_pid(runtime)
        figures = {"own_memory_empty_MB": own_memory_bytes(pid) / 1e6}
        long = _filled(client, "long", pages=4 * MATCHED_PAGES, chain_pages=MATCHED_PAGES)
        kept = _filled(client, "kept", pages=pages // 2 - 4 * MATCHED_PAGES, chain_pages=CHAIN_PAGES)
        _filled(client, "gone", pages=pages // 2, chain_pages=CHAIN_PAGES)
        expect_hit(client.match(long.namespace, long.chain(0)), MATCHED_PAGES)
        figures |= _calls(client, kept, long, rounds)
        figures["own_memory_MB"] = own_memory_bytes(pid) / 1e6
        _filled(client, "more", pages=pages // 10, chain_pages=CHAIN_PAGES)  # the arena is full now
        evicting = interleave([Scenario("put", _putting(client, kept, seed=97))], rounds=rounds)
        figures["put_evicting_us"] = evicting["put"].p50_s * 1e6
        figures |= _invalidate_beside_puts(client, runtime, kept, small_namespace("gone"))
    return figures


def beside_large_pages(*, pages: int, rounds: int) -> dict[str, float]:
    """Gets and puts of pages of 1 MiB in an arena that holds so many small ones, ÷ plain copies of the same rounds."""
    # What was stored last must be there: what has been measured, and read often, would be kept instead.
    flags = ("--no-l3", "--pages-max", str(pages * 21 // 20), "--eviction-policy", "lru")
    with (
        own_sidecar(arena_bytes=pages * PAGE_BYTES + LARGE_BYTES, flags=flags) as runtime,
        attached_client(runtime) as client,
    ):
        _filled(client, "small", pages=pages, chain_pages=CHAIN_PAGES)
        figures = {}
        for verb, measured in (("get", measure_gets), ("put", measure_puts)):
            for name, count in ((f"large_{verb}", 1), (f"large_{verb}_32", 32)):
                samples = measured(client, page_bytes=MIB, pages=count, rounds=min(rounds, LARGE_ROUNDS))
                copies = samples["copyto_cold"], samples["memcpy_cold"]
                figures[f"{name}_x_copy"] = ratio_p50(samples[f"{verb}_cold"], *copies)
    return figures


@contextlib.contextmanager
def _store(pages: int) -> Iterator[tuple[ArenaStore, LogApplier]]:
    validity = Validity(skew_ms=1000)
    config = ArenaConfig(
        arena_bytes=pages * PAGE_BYTES * 21 // 20 // MIB * MIB,
        pages_max=pages * 21 // 20,
        client_rows=4,
        prefault=False,
    )
    with contextlib.closing(ArenaStore(config, clock=_clock, judge=validity)) as store:
        yield store, LogApplier(validity, store)


def _fill_store(store: ArenaStore, name: str, pages: int) -> None:
    namespace = small_namespace(name)
    record, draw = store.register(namespace.canonical, PAGE_BYTES), Chains(namespace)
    for _ in range(pages // CHAIN_PAGES):
        keys = draw.draw(CHAIN_PAGES)
        rows = store.reserve(store.own_row, record, None, keys)
        store.commit(store.own_row, [row[2] for row in rows], stamp=store.stamp())


def _median_us(call: Callable[[], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds)) * 1e6


async def inside(*, pages: int, rounds: int) -> dict[str, float]:
    """What the loop's thread needs for so many pages; none of them has bytes."""
    log = LocalLog(clock=_clock)
    boot = await log.boot(deadline_ns=_clock.now_ns() + 10**9)
    with _store(pages) as (store, applier):
        await applier.reset(boot)
        _fill_store(store, "kept", pages // 2)
        _fill_store(store, "gone", pages // 2)
        figures = {
            "statistics_us": _median_us(store.statistics, rounds),
            "tick_us": _median_us(store.tick, rounds),
        }

        async def hide() -> int:
            hidden = 0
            for step in store.hiding(Selector(namespace=small_namespace("gone").id)):
                hidden += step
                await asyncio.sleep(0)
            return hidden

        turns = Turns()
        hidden = await turns.watch(hide())
        if hidden != pages // 2 // CHAIN_PAGES * CHAIN_PAGES:
            raise RuntimeError(f"{hidden} pages were hidden")
        return figures | {"hide_longest_turn_ms": turns.longest_ms[0]}


def measure(*, pages: int, rounds: int) -> dict[str, float]:
    """All figures by key."""
    return (
        through_a_sidecar(pages=pages, rounds=rounds)
        | beside_large_pages(pages=pages, rounds=rounds)
        | asyncio.run(inside(pages=pages, rounds=rounds))
    )


def _cells(figures: Mapping[str, float]) -> Iterator[tuple[str, str, str]]:
    for key, what, budget in ROWS:
        digits = 2 if key.endswith("_x_copy") else 1
        yield what, f"{figures[key]:,.{digits}f}", "" if budget is None else f"{budget:,.{digits}f}"


def table(figures: Mapping[str, float]) -> Table:
    """The figures for a terminal."""
    shown = Table("what", "measured", "budget")
    for cells in _cells(figures):
        shown.add_row(*cells)
    return shown


def lines(figures: Mapping[str, float]) -> list[str]:
    """The part of docs/benchmarks.md."""
    return [
        f"## {PAGES:,} resident pages",
        "",
        "`python -m benchmarks.million`: a sidecar with so many pages of 4 KiB, in chains. Its own memory is what is resident",
        "but for the arena's files (VmRSS − RssShmem of /proc/PID/status). Medians, unless it says otherwise.",
        "",
        "| what | measured | budget |",
        "|---|---:|---:|",
        *(f"| {what} | {measured} | {budget} |" for what, measured, budget in _cells(figures)),
    ]


def main(
    pages: Annotated[int, typer.Option(min=10_000)] = PAGES,
    rounds: Annotated[int, typer.Option(min=1, max=ROUNDS_MAX - 2)] = ROUNDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, figures by key.")] = False,
) -> None:
    """Measure a sidecar that is full of pages."""
    figures = measure(pages=pages, rounds=rounds)
    show(figures, table(figures), as_json=as_json)


if __name__ == "__main__":
    typer.run(main)
