"""Measures what huge pages are worth: one arena in small pages beside one in explicit huge ones, alternating in one run."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import structlog
import typer
from rich.table import Table

from benchmarks.showing import show
from benchmarks.timing import Scenario, interleave, ratio_p50
from benchmarks.workload import Bytes, Chains, ColdBuffers, namespace_of, pages_of, place
from cache_l2.huge_pages import HugePages
from cache_l2.store import ArenaConfig, ArenaStore, NamespaceRecord
from invalidation.local_log import LocalLog
from invalidation.validity import Validity
from kv_types.clock import BoottimeClock
from kv_types.errors import StrataError
from kv_types.namespace import AttentionKind, Geometry, KvDtype, Namespace, Weights
from kv_types.outcomes import Hit, Known, Stored
from kv_types.page_keys import unpack_keys
from sidecar.log.applier import LogApplier

MIB = 1 << 20
ARENA_BYTES = 512 * MIB
PAGES = 65_536
SMALL_BYTES = 4096
LARGE, BATCH = MIB, 32
LARGE_CHAINS = 6
MATCHED = 512
RING_BYTES = 256 * MIB
ROUNDS = 60
FAR_NS = 1 << 62

KINDS = {"small": HugePages.OFF, "huge": HugePages.EXPLICIT}
ROWS: tuple[tuple[str, str], ...] = (
    ("start", f"an arena of {ARENA_BYTES // MIB} MiB is made, and is mapped in"),
    ("match", f"match of {MATCHED} pages among {PAGES:,}"),
    ("get", f"get of {BATCH} × 1 MiB, cold"),
    ("put", f"put of {BATCH} × 1 MiB, cold, into a full arena"),
)


def _tiny() -> Namespace:
    """Pages of SMALL_BYTES: an index of many costs little memory otherwise."""
    return Namespace(
        model="bench-tiny",
        weights=Weights(digest=hashlib.blake2b(b"bench", digest_size=32).digest()),
        adapter=None,
        kv_dtype=KvDtype.FP16,
        quantisation=None,
        geometry=Geometry(
            attention=AttentionKind.GQA, layers_total=1, layer_begin=0, layer_end=1,
            kv_heads_total=1, head_begin=0, head_end=1, head_dim=64,
        ),
        page_tokens=16,
    )  # fmt: skip


@dataclass
class Side:
    """One arena: many small pages to match among, and large ones to copy."""

    store: ArenaStore
    tiny: NamespaceRecord
    large: NamespaceRecord
    tiny_chains: list[bytes]
    large_chains: list[bytes]


def _open(huge_pages: HugePages) -> ArenaStore:
    clock, validity = BoottimeClock(), Validity(skew_ms=0)
    config = ArenaConfig(
        arena_bytes=ARENA_BYTES, segment_bytes=4 * MIB, pages_max=4 * PAGES, client_rows=4, leases_per_client=1024,
        huge_pages=huge_pages,
    )  # fmt: skip
    store = ArenaStore(config, clock=clock, judge=validity)
    try:
        while not store.reader.prefault_ended:
            time.sleep(0.001)
        boot = asyncio.run(LocalLog(clock=clock).boot(deadline_ns=FAR_NS))
        asyncio.run(LogApplier(validity, store).reset(boot))
    except BaseException:
        store.close()
        raise
    store.publish_freshness(FAR_NS)
    return store


def _put(store: ArenaStore, record: NamespaceRecord, chain: bytes, pages: list[Bytes]) -> None:
    views = [page.data for page in pages]
    outcomes = store.put(record.id, unpack_keys(chain), views, stamp=store.stamp())
    if not all(isinstance(one, Stored | Known) for one in outcomes):
        raise RuntimeError(f"a measured put was refused: {outcomes[:3]}")


@contextlib.contextmanager
def _side(huge_pages: HugePages) -> Iterator[Side]:
    with contextlib.closing(_open(huge_pages)) as store:
        tiny, large = _tiny(), namespace_of(LARGE)
        side = Side(
            store, store.register(tiny.canonical, SMALL_BYTES), store.register(large.canonical, LARGE), [], []
        )
        page = np.ones(SMALL_BYTES, dtype=np.uint8)
        draw = Chains(tiny)
        for _ in range(PAGES // MATCHED):
            side.tiny_chains.append(draw.draw(MATCHED))
            _put(store, side.tiny, side.tiny_chains[-1], [page] * MATCHED)
        draw, batch = Chains(large), np.ones(BATCH * LARGE, dtype=np.uint8)
        for _ in range(LARGE_CHAINS):
            side.large_chains.append(draw.draw(BATCH))
            _put(store, side.large, side.large_chains[-1], pages_of(batch, LARGE))
        yield side


def _started(huge_pages: HugePages) -> Callable[[int], None]:
    def run(_: int) -> None:
        _open(huge_pages).close()

    return run


def _scenarios(name: str, side: Side, ring: ColdBuffers, rounds: int) -> list[Scenario]:
    store, number_of_tiny = side.store, side.tiny.number
    fresh = Chains(namespace_of(LARGE), seed=99)
    chains = [fresh.draw(BATCH) for _ in range(rounds + 2)]

    def match(number: int) -> None:
        for step in range(8):
            chain = side.tiny_chains[place(8 * number + step, 0, len(side.tiny_chains))]
            if store.reader.match(chain, namespace=number_of_tiny)[0] != MATCHED:
                raise RuntimeError("a measured match was to find all pages")

    def get(number: int) -> None:
        chain = unpack_keys(side.large_chains[number % LARGE_CHAINS])
        views = [page.data for page in pages_of(ring.batch(place(number, 1, ring.count)), LARGE)]
        outcome = store.get(side.large.id, chain, views)
        if not isinstance(outcome, Hit) or outcome.pages != BATCH:
            raise RuntimeError(f"a measured get was to serve {BATCH} pages; it answered {outcome}")

    def put(number: int) -> None:
        _put(store, side.large, chains[number], pages_of(ring.batch(place(number, 3, ring.count)), LARGE))

    return [
        Scenario(f"match_{name}", match, inner=8),
        Scenario(f"get_{name}", get),
        Scenario(f"put_{name}", put),
    ]


def measure(*, rounds: int) -> dict[str, float]:
    """Seconds (p50) by row and kind, and the ratio huge ÷ small of each row. Raises StrataError without enough huge pages."""
    figures: dict[str, float] = {}
    starts = [Scenario(f"start_{name}", _started(asked)) for name, asked in KINDS.items()]
    samples = interleave(starts, rounds=max(3, rounds // 10), warm_up=1)
    ring = ColdBuffers(batch_bytes=BATCH * LARGE, ring_bytes=RING_BYTES)
    with contextlib.ExitStack() as held:
        # Apart: what puts take away, gets would not find.
        for verb in ("match", "get", "put"):
            sides = {name: held.enter_context(_side(asked)) for name, asked in KINDS.items()}
            scenarios = [
                scenario
                for name, side in sides.items()
                for scenario in _scenarios(name, side, ring, rounds)
                if scenario.name.startswith(verb)
            ]
            samples |= interleave(scenarios, rounds=rounds)
            held.pop_all().close()
    for key, _ in ROWS:
        for name in KINDS:
            figures[f"{key}_{name}_s"] = samples[f"{key}_{name}"].p50_s
        figures[f"{key}_huge_x_small"] = ratio_p50(samples[f"{key}_huge"], samples[f"{key}_small"])
    return figures


def lines(figures: Mapping[str, float]) -> list[str]:
    """The part of docs/benchmarks.md."""
    return [
        "## Huge pages",
        "",
        "`python -m benchmarks.huge_pages`: explicit ones of 2 MiB beside small ones, alternating, medians.",
        "",
        "| what | small | huge | huge ÷ small |",
        "|---|---:|---:|---:|",
        *(f"| {' | '.join(cells)} |" for cells in _cells(figures)),
    ]


def _cells(figures: Mapping[str, float]) -> Iterator[tuple[str, str, str, str]]:
    for key, what in ROWS:
        small, huge = (_time(figures[f"{key}_{name}_s"]) for name in KINDS)
        yield what, small, huge, f"{figures[f'{key}_huge_x_small']:.2f}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def table(figures: Mapping[str, float]) -> Table:
    """The figures for a terminal."""
    shown = Table(title="Explicit huge pages beside small ones")
    for name in ("what", "small", "huge", "huge ÷ small"):
        shown.add_column(name, justify="left" if name == "what" else "right")
    for cells in _cells(figures):
        shown.add_row(*cells)
    return shown


def main(
    rounds: Annotated[int, typer.Option(min=1)] = ROUNDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, figures by key.")] = False,
) -> None:
    """Measure what explicit huge pages are worth here; they have to be set apart before (the error says how many)."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    try:
        figures = measure(rounds=rounds)
    except StrataError as error:
        typer.echo(f"benchmarks.huge_pages: {error}", err=True)
        raise typer.Exit(1) from None
    show(figures, table(figures), as_json=as_json)


if __name__ == "__main__":
    typer.run(main)
