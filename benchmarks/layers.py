"""`stratakv bench layers`: what look-ups and puts cost from token ids on, layer by layer, in one client."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.daemon import attached_client, own_sidecar
from benchmarks.local import KIB, MIB, Filled, expect_hit, fill
from benchmarks.timing import Samples, Scenario, interleave
from benchmarks.workload import Chains, namespace_of
from cache_l2._native import Reader, copy_bytes
from inference_worker.client import Client, RegisteredNamespace
from inference_worker.local_pages import LocalPages
from kv_types.outcomes import Stored
from kv_types.page_keys import page_keys

PAGE_BYTES = 64 * KIB
PAGE_TOKENS = 64
LENGTHS = (1, 64, 512)
ROUNDS = 200
ARENA_BYTES = 512 * MIB


@dataclass(frozen=True)
class Layer:
    """One row: what a call costs down from here, and what is left of that when the next layer's share is taken away."""

    path: str
    layer: str
    pages: int
    whole_us: float
    own_us: float


def measure(*, rounds: int = ROUNDS) -> list[Layer]:
    """Every path for every length, on a sidecar of its own."""
    layers: list[Layer] = []
    with own_sidecar(arena_bytes=ARENA_BYTES) as runtime, attached_client(runtime) as client:
        draw = Chains(namespace_of(PAGE_BYTES), seed=23)
        for pages in LENGTHS:
            filled = fill(
                client, draw, page_bytes=PAGE_BYTES, pages=pages, total_bytes=3 * PAGE_BYTES * pages
            )
            inner = 200 if pages == 1 else 20
            layers += _match(client, filled, draw, pages=pages, rounds=rounds, inner=inner)
            layers += _lease(client, filled, pages=pages, rounds=rounds, inner=inner)
        layers += _get(
            client,
            filled=fill(client, draw, page_bytes=PAGE_BYTES, pages=1, total_bytes=64 * MIB),
            rounds=rounds,
        )
        layers += _put(client, draw, rounds=rounds)
    return layers


def _local(namespace: RegisteredNamespace) -> tuple[LocalPages, Reader, int]:
    """A namespace's way to its pages in shared memory. Raises RuntimeError where it has none."""
    pages = namespace.pages
    if not isinstance(pages, LocalPages):
        raise RuntimeError(f"the client is not attached to shared memory: {pages}")  # noqa: TRY004
    return pages, pages._reader, pages.registration.number


def _match(
    client: Client, filled: Filled, draw: Chains, *, pages: int, rounds: int, inner: int
) -> list[Layer]:
    namespace, chain = filled.namespace, filled.chain(0)
    local, reader, number = _local(namespace)
    tokens = np.random.default_rng(3).integers(0, 150_000, pages * PAGE_TOKENS, dtype=np.uint32)
    identity = draw.namespace.id
    expect_hit(client.match(namespace, chain), pages)
    return _chain_of_layers(
        "match",
        pages,
        [
            (
                "keys of token ids, and Client.match",
                lambda: _discard(
                    page_keys(identity, tokens, page_tokens=PAGE_TOKENS), client.match(namespace, chain)
                ),
            ),
            ("Client.match: whose namespace it is, and which way", lambda: client.match(namespace, chain)),
            ("LocalPages.match: an outcome from two numbers", lambda: local.match(chain, 0)),
            (
                "binding: arguments in, a tuple out, and the walk",
                lambda: reader.match(chain, namespace=number),
            ),
            ("binding alone, of a chain of no pages", lambda: reader.match(b"", namespace=number)),
        ],
        rounds=rounds,
        inner=inner,
    )


def _lease(client: Client, filled: Filled, *, pages: int, rounds: int, inner: int) -> list[Layer]:
    namespace, chain = filled.namespace, filled.chain(0)
    local, reader, number = _local(namespace)
    counter = local.registration.counter
    return _chain_of_layers(
        "lease and release",
        pages,
        [
            ("Client.lease", lambda: client.lease(namespace, chain).release()),
            ("LocalPages.lease: PageLease around it", lambda: local.lease(chain, 0, None).release()),
            (
                "binding, walk, hazard, counters, release",
                lambda: reader.lease(counter, chain, namespace=number).release(),
            ),
            (
                "binding and counters alone, of a chain of no pages",
                lambda: reader.lease(counter, b"", namespace=number).release(),
            ),
        ],
        rounds=rounds,
        inner=inner,
    )


def _get(client: Client, filled: Filled, *, rounds: int) -> list[Layer]:
    namespace, chain = filled.namespace, filled.chain(0)
    _, reader, number = _local(namespace)
    room, source = np.empty(PAGE_BYTES, dtype=np.uint8), np.ones(PAGE_BYTES, dtype=np.uint8)
    expect_hit(client.get(namespace, chain, room), 1)
    return _chain_of_layers(
        "get into a warm destination",
        1,
        [
            ("Client.get", lambda: client.get(namespace, chain, room)),
            (
                "binding, walk, hazard, copy, check, counters",
                lambda: reader.get(0, chain, room, namespace=number, page_bytes=PAGE_BYTES),
            ),
            ("the copy alone", lambda: copy_bytes(room, source)),
        ],
        rounds=rounds,
        inner=20,
    )


def _put(client: Client, draw: Chains, *, rounds: int) -> list[Layer]:
    namespace = client.register(draw.namespace)
    _, reader, _ = _local(namespace)
    source = np.ones(PAGE_BYTES, dtype=np.uint8)
    room = np.empty(PAGE_BYTES, dtype=np.uint8)
    fresh = [draw.draw(1) for _ in range(2 * (rounds + 2))]

    def put(keys: bytes) -> None:
        with client.begin(namespace) as request:
            (outcome,) = request.put(keys, [source])
        if not isinstance(outcome, Stored):
            raise RuntimeError(f"a measured put was refused: {outcome}")  # noqa: TRY004

    def begin() -> None:
        with client.begin(namespace):
            pass

    put(fresh.pop())
    samples = interleave(
        [
            Scenario("put", lambda number: put(fresh[number])),
            Scenario("begin", lambda _: begin()),
            Scenario("stamp", lambda _: _discard(reader.stamp())),
            Scenario("copy", lambda _: copy_bytes(room, source)),
        ],
        rounds=rounds,
    )  # fmt: skip
    whole = samples["put"].p50_s * 1e6
    begun = samples["begin"].p50_s * 1e6
    copied = samples["copy"].p50_s * 1e6
    path = "put of a fresh page, a request of its own"
    return [
        Layer(path, "all of it", 1, whole, whole - begun - copied),
        Layer(path, "of that: beginning and ending the request", 1, begun, begun),
        Layer(path, "of that: the copy", 1, copied, copied),
    ]


def _chain_of_layers(
    path: str,
    pages: int,
    calls: Sequence[tuple[str, Callable[[], object]]],
    *,
    rounds: int,
    inner: int,
) -> list[Layer]:
    """Each call holds the next one: what is its own is the difference of their medians."""

    def repeated(call: Callable[[], object]) -> Callable[[int], None]:
        def run(_: int) -> None:
            for _ in range(inner):
                call()

        return run

    samples: dict[str, Samples] = interleave(
        [Scenario(name, repeated(call), inner=inner) for name, call in calls], rounds=rounds
    )
    times = [samples[name].p50_s * 1e6 for name, _ in calls]
    return [
        Layer(path, name, pages, time, time - below)
        for (name, _), time, below in zip(calls, times, [*times[1:], 0.0], strict=True)
    ]


def _discard(*_: object) -> None:
    return None


def lines(layers: Sequence[Layer]) -> list[str]:
    """The part of docs/benchmarks.md."""
    told = [
        "## Where a call's time goes",
        "",
        f"`stratakv bench layers`: pages of {PAGE_BYTES // KIB} KiB and {PAGE_TOKENS} tokens, all resident; each layer is",
        "called by itself, interleaved. *From here down*: the median of calling it. *Own*: that without the next layer.",
        "",
        "| path | pages | layer | from here down, µs | own, µs |",
        "|---|---:|---|---:|---:|",
    ]
    told += [
        f"| {one.path} | {one.pages} | {one.layer} | {one.whole_us:.2f} | {one.own_us:.2f} |"
        for one in layers
    ]
    return told


def table(layers: Sequence[Layer]) -> Table:
    """Rows for a person."""
    drawn = Table(title="Where a call's time goes")
    for heading in ("path", "pages", "layer", "from here down, µs", "own, µs"):
        drawn.add_column(heading, justify="left" if heading in {"path", "layer"} else "right")
    for one in layers:
        drawn.add_row(one.path, str(one.pages), one.layer, f"{one.whole_us:.2f}", f"{one.own_us:.2f}")
    return drawn


def layers(
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Also write all figures to this file.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=5, max=10_000, help="Rounds of each scenario.")] = ROUNDS,
) -> None:
    """One client: what match, lease, get and put cost from token ids on, layer by layer."""
    measured = measure(rounds=rounds)
    Console().print(table(measured))
    if json_path is not None:
        rows = [
            {
                "path": one.path,
                "layer": one.layer,
                "pages": one.pages,
                "whole_us": one.whole_us,
                "own_us": one.own_us,
            }
            for one in measured
        ]
        json_path.write_text(json.dumps(rows, indent=2) + "\n")
