"""`stratakv bench local`: one node's paths beside plain copies in the same run, as ratios."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.copies import as_batches, plain_copies
from benchmarks.daemon import attached_client, own_sidecar
from benchmarks.timing import Samples, Scenario, interleave, ratio_p50
from benchmarks.two_clients import measure_two_clients
from benchmarks.workload import Bytes, Chains, ColdBuffers, namespace_of, pages_of, place
from inference_worker.client import Client, ClientSettings, RegisteredNamespace
from kv_types.outcomes import Hit, Stored
from kv_types.page_keys import page_keys
from kv_wire.channel import open_channel

KIB = 1024
MIB = 1024 * KIB
SIZES = {"64KiB": 64 * KIB, "256KiB": 256 * KIB, "1MiB": MIB, "8MiB": 8 * MIB}
BATCHES = (1, 8, 32)
RING_BYTES = 256 * MIB
ARENA_BYTES = 1536 * MIB

app = typer.Typer(
    help="Measure stratakv on this machine, beside plain copies in the same run.", no_args_is_help=True
)


@dataclass
class Results:
    """Flat keys for machines, rows for people."""

    keys: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)


def expect_hit(outcome: object, pages: int) -> None:
    """Raise RuntimeError unless all pages were served: a fast miss must not look like a fast hit."""
    if not isinstance(outcome, Hit) or outcome.pages != pages:
        raise RuntimeError(f"a measured look-up was to serve {pages} pages; it answered {outcome}")


@dataclass
class Filled:
    """Resident chains of one page size and batch."""

    namespace: RegisteredNamespace
    chains: list[bytes]

    def chain(self, number: int, part: int = 0) -> bytes:
        """Chain of a round: neighbours in time are far apart in the arena."""
        return self.chains[place(number, part, len(self.chains))]


def fill(client: Client, draw: Chains, *, page_bytes: int, pages: int, total_bytes: int) -> Filled:
    """Store enough chains of `pages` pages that reading them in turn finds cold memory."""
    namespace = client.register(draw.namespace)
    count = max(3, total_bytes // (page_bytes * pages))
    source = np.random.default_rng(1).integers(0, 255, page_bytes * pages, dtype=np.uint8)
    chains = [draw.draw(pages) for _ in range(count)]
    for chain in chains:
        with client.begin(namespace) as request:
            outcomes = request.put(chain, pages_of(source, page_bytes))
        if not all(isinstance(outcome, Stored) for outcome in outcomes):
            raise RuntimeError(f"filling the arena failed: {outcomes[:3]}")
    return Filled(namespace, chains)


def measure_gets(client: Client, *, page_bytes: int, pages: int, rounds: int) -> dict[str, Samples]:
    """Get `pages` pages, cold and into a warm destination, beside both plain copies."""
    draw = Chains(namespace_of(page_bytes), seed=page_bytes + pages)
    batch_bytes = page_bytes * pages
    filled = fill(
        client, draw, page_bytes=page_bytes, pages=pages, total_bytes=min(2 * RING_BYTES, ARENA_BYTES // 2)
    )
    destinations = ColdBuffers(batch_bytes=batch_bytes, ring_bytes=RING_BYTES)
    warm = np.ones(batch_bytes, dtype=np.uint8)

    def get(into: Callable[[int], Bytes], *, part: int) -> Callable[[int], None]:
        def run(number: int) -> None:
            outcome = client.get(filled.namespace, filled.chain(number, part), into(number))
            expect_hit(outcome, pages)

        return run

    def warm_up(_: int) -> None:
        warm[:] = 1

    with contextlib.ExitStack() as held:
        # The plain copies read the very pages that the gets read: where memory lies decides much of a copy's time.
        leases = [held.enter_context(client.lease(filled.namespace, chain)) for chain in filled.chains]
        sources = [[np.frombuffer(page, dtype=np.uint8) for page in lease] for lease in leases]
        scenarios = [
            Scenario(
                "get_cold",
                get(lambda number: destinations.batch(place(number, 0, destinations.count)), part=0),
            ),
            Scenario("get_warm", get(lambda _: warm, part=5), prepare=warm_up),
            *plain_copies(sources, as_batches(destinations, page_bytes)),
        ]
        return interleave(scenarios, rounds=rounds)


def measure_puts(client: Client, *, page_bytes: int, pages: int, rounds: int) -> dict[str, Samples]:
    """Put `pages` fresh pages into a full arena (so that each put evicts), beside both plain copies."""
    draw = Chains(namespace_of(page_bytes), seed=page_bytes * 3 + pages)
    namespace = client.register(draw.namespace)
    sources = ColdBuffers(batch_bytes=page_bytes * pages, ring_bytes=RING_BYTES)
    chains = [draw.draw(pages) for _ in range(rounds + 2)]

    def put(number: int) -> None:
        pages = pages_of(sources.batch(place(number, 0, sources.count)), page_bytes)
        with client.begin(namespace) as request:
            outcomes = request.put(chains[number], pages)
        if not all(isinstance(outcome, Stored) for outcome in outcomes):
            raise RuntimeError(f"a measured put was refused: {outcomes[:3]}")

    places = ColdBuffers(batch_bytes=page_bytes * pages, ring_bytes=RING_BYTES, shared=True)
    copies = plain_copies(as_batches(sources, page_bytes), as_batches(places, page_bytes))
    return interleave([Scenario("put_cold", put), *copies], rounds=rounds)


def measure_match(client: Client, results: Results, *, rounds: int) -> None:
    """Match, lease and release without copying; keys of a long chain."""
    small = 64 * KIB
    draw = Chains(namespace_of(small), seed=5)
    one = fill(client, draw, page_bytes=small, pages=1, total_bytes=64 * small)
    long = fill(client, draw, page_bytes=small, pages=512, total_bytes=512 * small)
    tokens = np.random.default_rng(3).integers(0, 150_000, 512 * 64, dtype=np.uint32)

    def lease_release(number: int) -> None:
        chain, namespace, lease = one.chain(number), one.namespace, client.lease
        for _ in range(200):
            with lease(namespace, chain):
                pass

    def match(number: int) -> None:
        for _ in range(20):
            client.match(long.namespace, long.chain(number))

    def lease_long(number: int) -> None:
        chain, namespace, lease = long.chain(number), long.namespace, client.lease
        for _ in range(20):
            with lease(namespace, chain):
                pass

    scenarios = [
        Scenario("match_lease_release", lease_release, inner=200),
        Scenario("match_512", match, inner=20),
        Scenario("lease_512", lease_long, inner=20),
        Scenario("key_512", lambda _: _discard(page_keys(draw.namespace.id, tokens, page_tokens=64))),
    ]
    expect_hit(client.match(long.namespace, long.chain(0)), 512)
    samples = interleave(scenarios, rounds=rounds)
    results.keys["match_lease_release_us_p50"] = samples["match_lease_release"].p50_s * 1e6
    results.keys["match_512_us_p50"] = samples["match_512"].p50_s * 1e6
    results.keys["lease_512_us_p50"] = samples["lease_512"].p50_s * 1e6
    results.keys["key_512_pages_ms_p50"] = samples["key_512"].p50_s * 1e3


def _discard(_: object) -> None:
    return None


def measure_grpc(runtime: Path, results: Results, *, rounds: int) -> None:
    """A remote client's Get of 1 MiB over gRPC beside an empty call (a health check) on the same channel."""
    draw = Chains(namespace_of(MIB), seed=11)
    settings = ClientSettings(shared_memory=False, deadline_s=10.0)
    with Client.connect(runtime, settings=settings) as remote:
        filled = fill(remote, draw, page_bytes=MIB, pages=1, total_bytes=32 * MIB)
        destinations = ColdBuffers(batch_bytes=MIB, ring_bytes=RING_BYTES)

        def get(number: int) -> None:
            expect_hit(remote.get(filled.namespace, filled.chain(number), destinations.batch(number)), 1)

        with open_channel(f"unix:{runtime / 'grpc.sock'}") as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            request = health_pb2.HealthCheckRequest()
            empty = Scenario("grpc_empty", lambda _: _discard(check(request, timeout=10.0)))
            samples = interleave([Scenario("grpc_get", get), empty], rounds=rounds, warm_up=5)
    results.keys["grpc_get_1MiB_us_p50"] = samples["grpc_get"].p50_s * 1e6
    results.keys["grpc_empty_us_p50"] = samples["grpc_empty"].p50_s * 1e6
    results.keys["grpc_get_1MiB_x_empty"] = ratio_p50(samples["grpc_get"], samples["grpc_empty"])


def _record(results: Results, verb: str, label: str, pages: int, samples: dict[str, Samples]) -> None:
    name = f"{verb}_{label}" if pages == 1 else f"{verb}_{pages}x{label}"
    cold_copies = samples["copyto_cold"], samples["memcpy_cold"]
    warm_copies = samples["copyto_warm"], samples["memcpy_warm"]
    for kind, copies in (("cold", cold_copies), ("warm", warm_copies)):
        mine = samples.get(f"{verb}_{kind}")
        if mine is None:
            continue
        copy = min(copies, key=lambda found: found.p50_s)
        row: dict[str, Any] = {
            "verb": verb, "size": label, "pages": pages, "destination": kind,
            "p50_us": mine.p50_s * 1e6, "p99_us": mine.p99_s * 1e6,
            "copy_p50_us": copy.p50_s * 1e6, "copy_p99_us": copy.p99_s * 1e6,
            "x_copy": ratio_p50(mine, *copies),
        }  # fmt: skip
        results.rows.append(row)
        results.keys[f"{name}_x_copy" if kind == "cold" else f"{name}_warm_x_copy"] = float(row["x_copy"])
        results.keys[f"{name}_{kind}_us_p50"] = float(row["p50_us"])
        results.keys[f"{name}_{kind}_us_p99"] = float(row["p99_us"])


def measure_size(client: Client, results: Results, progress: Progress, *, label: str, rounds: int) -> None:
    """Gets and puts of one page size, in every batch size."""
    page_bytes = SIZES[label]
    for pages in BATCHES:
        task = progress.add_task(f"get and put {pages} × {label}")
        fewer = max(12, min(rounds, 40 * MIB * rounds // (page_bytes * pages)))
        _record(
            results,
            "get",
            label,
            pages,
            measure_gets(client, page_bytes=page_bytes, pages=pages, rounds=fewer),
        )
        _record(
            results,
            "put",
            label,
            pages,
            measure_puts(client, page_bytes=page_bytes, pages=pages, rounds=fewer),
        )
        progress.remove_task(task)


def run(*, rounds: int, console: Console) -> Results:
    """Measure everything on sidecars of its own, one a page size; a few minutes."""
    results = Results(machine=machine())
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        for label in SIZES:
            with own_sidecar(arena_bytes=ARENA_BYTES) as runtime, attached_client(runtime) as client:
                measure_size(client, results, progress, label=label, rounds=rounds)
        with own_sidecar(arena_bytes=ARENA_BYTES) as runtime:
            task = progress.add_task("match, lease, keys")
            with attached_client(runtime) as client:
                measure_match(client, results, rounds=rounds)
            progress.update(task, description="gRPC")
            measure_grpc(runtime, results, rounds=rounds)
            progress.update(task, description="two clients at once")
            results.keys.update(measure_two_clients(runtime, page_bytes=MIB))
    return results


def machine() -> dict[str, Any]:
    """Say where a measurement ran."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def table(results: Results) -> Table:
    """Rows for a person: times and ratios to the better plain copy of the same run."""
    drawn = Table(title="Against the better of np.copyto and memcpy in the same run")
    for heading in ("verb", "pages", "destination", "p50 µs", "p99 µs", "copy p50 µs", "× copy"):
        drawn.add_column(heading, justify="left" if heading in {"verb", "destination"} else "right")
    for row in results.rows:
        drawn.add_row(
            str(row["verb"]), f"{row['pages']} × {row['size']}", str(row["destination"]), f"{row['p50_us']:.0f}",
            f"{row['p99_us']:.0f}", f"{row['copy_p50_us']:.0f}", f"{row['x_copy']:.2f}",
        )  # fmt: skip
    return drawn


@app.callback()
def _main() -> None:
    """Measure stratakv on this machine, beside plain copies in the same run."""


@app.command()
def local(
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Also write all figures to this file.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=5, max=10_000, help="Rounds of each small scenario.")] = 120,
) -> None:
    """One node: match, keys, get, put, remote get; interleaved with plain copies."""
    console = Console(stderr=True)
    results = run(rounds=rounds, console=console)
    out = Console()
    out.print(table(results))
    summary = Table(title="Single figures")
    summary.add_column("key")
    summary.add_column("value", justify="right")
    shown = {row for row in results.keys if "_us_p" not in row or row.startswith(("match", "grpc"))}
    for key in sorted(shown):
        summary.add_row(key, f"{results.keys[key]:.3f}")
    out.print(summary)
    if json_path is not None:
        payload = {**results.keys, "rows": results.rows, "machine": results.machine}
        json_path.write_text(json.dumps(payload, indent=2) + "\n")
        out.print(f"written: {json_path}")
