"""`stratakv bench l3`: pages between Redis and memory, beside redis-py and beside what plain sockets take for the same bytes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from redis._parsers import _HiredisParser, _RESP2Parser
from rich.console import Console
from rich.table import Table

from benchmarks import local
from benchmarks.l3_beside import measure_beside
from benchmarks.l3_sides import PAGE_BYTES, Address, Ours, Pages, Plain, RedisPy, Server, Side, key_of
from benchmarks.own_cluster import own_cluster, primary_of
from benchmarks.own_redis import own_redis
from benchmarks.raw_peer import raw_peer
from benchmarks.showing import telling
from benchmarks.timing import Samples, Scenario, interleave, ratio_p50
from kv_types.limits import L3_CONNECTIONS_PER_SHARD_DEFAULT

ROUNDS = 40
PAGES = 32
COUNTS = (1, PAGES)
CONNECTIONS = L3_CONNECTIONS_PER_SHARD_DEFAULT
"""To each server."""
PRIMARIES = 3
FLOOR, SERVER, OURS = "plain sockets", "plain, to Redis", "stratakv"
REDIS_PY, HIREDIS = "redis-py", "redis-py, hiredis"
VERBS = ("load", "store")

BUDGETS: tuple[tuple[str, str, float | None], ...] = (
    ("l3_load_x_floor", "load of 32 × 1 MiB over TCP ÷ plain sockets", 1.25),
    ("l3_store_x_floor", "store of 32 × 1 MiB over TCP ÷ plain sockets", 1.25),
    ("l3_load_unix_x_floor", "load of 32 × 1 MiB over a Unix socket ÷ plain sockets", 1.25),
    ("l3_store_unix_x_floor", "store of 32 × 1 MiB over a Unix socket ÷ plain sockets", 1.25),
    ("l3_load_x_server", "load of 32 × 1 MiB over TCP ÷ plain sockets to Redis", None),
    ("l3_store_x_server", "store of 32 × 1 MiB over TCP ÷ plain sockets to Redis", None),
    ("l3_load_unix_x_server", "load of 32 × 1 MiB over a Unix socket ÷ plain sockets to Redis", None),
    ("l3_store_unix_x_server", "store of 32 × 1 MiB over a Unix socket ÷ plain sockets to Redis", None),
    ("l3_load_x_redispy", "load of 32 × 1 MiB over TCP ÷ the better redis-py", None),
    ("l3_store_x_redispy", "store of 32 × 1 MiB over TCP ÷ the better redis-py", None),
    ("l3_match_slowdown", "look-ups that another worker loses beside loads, of equal processor time", 0.15),
    ("l3_node_load_32x1MiB_ms_p50", "load of 32 × 1 MiB by a worker, through its sidecar, in ms", None),
)
"""Key, what it is, and what it may be; None: told, not judged."""

app = typer.Typer()


@dataclass
class Results:
    """Figures by key, and a row for each thing that was measured."""

    keys: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=local.machine)
    load_average: float = 0.0


@dataclass(frozen=True)
class Setting:
    """Servers, and plain peers in their stead; `mark` goes into keys, `name` is for people."""

    mark: str
    name: str
    servers: Sequence[Address]
    peers: Sequence[Address]
    pages: Pages


@contextlib.contextmanager
def _single() -> Iterator[list[Setting]]:
    pages = Pages(PAGES, (0,) * PAGES)
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="stratakv-bench-")))
        peer = running.enter_context(raw_peer(folder, name="p", pages=PAGES, page_bytes=PAGE_BYTES))
        server = running.enter_context(own_redis())
        yield [
            Setting("", "TCP", [server.port], [peer.port], pages),
            Setting("unix_", "Unix socket", [server.socket_path], [peer.socket_path], pages),
        ]


@contextlib.contextmanager
def _cluster() -> Iterator[list[Setting]]:
    pages = Pages(PAGES, tuple(primary_of(key_of(page), PRIMARIES) for page in range(PAGES)))
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="stratakv-bench-")))
        peers = [
            running.enter_context(raw_peer(folder, name=f"p{at}", pages=PAGES, page_bytes=PAGE_BYTES))
            for at in range(PRIMARIES)
        ]
        servers = running.enter_context(own_cluster(PRIMARIES))
        ports = [server.port for server in servers]
        yield [
            Setting("cluster_", f"TCP, {PRIMARIES} primaries", ports, [peer.port for peer in peers], pages)
        ]


@contextlib.contextmanager
def _sides(setting: Setting) -> Iterator[dict[str, Side]]:
    parsers: dict[str, type[Any]] = {REDIS_PY: _RESP2Parser}
    if importlib.util.find_spec("hiredis") is not None:
        parsers[HIREDIS] = _HiredisParser
    with contextlib.ExitStack() as open_sides:
        sides: dict[str, Side] = {
            FLOOR: Plain(setting.peers, setting.pages, connections=CONNECTIONS),
            SERVER: Server(setting.servers, setting.pages, connections=CONNECTIONS),
            OURS: Ours(setting.servers, setting.pages, connections=CONNECTIONS),
        }
        for name, parser in parsers.items():
            sides[name] = RedisPy(setting.servers, setting.pages, connections=CONNECTIONS, parser=parser)
        for side in sides.values():
            open_sides.callback(side.close)
        yield sides


def run(*, rounds: int, tell: Callable[[str], None]) -> Results:
    """Measure everything on servers of its own; a minute or two."""
    results = Results(load_average=os.getloadavg()[0])
    for kind in (_single, _cluster):
        tell("starting servers")
        with kind() as settings:
            for setting in settings:
                tell(setting.name)
                with _sides(setting) as sides:
                    sides[OURS].store(PAGES)
                    _record(results, setting, interleave(_scenarios(sides), rounds=rounds))
    results.keys |= measure_beside(tell)
    return results


def _scenarios(sides: Mapping[str, Side]) -> list[Scenario]:
    return [
        Scenario(f"{verb} {count} {name}", partial(_once, getattr(side, verb), count))
        for name, side in sides.items()
        for verb in VERBS
        for count in COUNTS
    ]


def _once(move: Callable[[int], None], count: int, number: int) -> None:
    del number
    move(count)


def _record(results: Results, setting: Setting, samples: Mapping[str, Samples]) -> None:
    for verb in VERBS:
        for count in COUNTS:
            of = {name: samples[key] for name in _NAMES if (key := f"{verb} {count} {name}") in samples}
            results.rows += [
                {
                    "over": setting.name, "verb": verb, "pages": count, "by": name,
                    "p50_ms": each.p50_s * 1e3, "p99_ms": each.p99_s * 1e3,
                    "x_floor": ratio_p50(each, of[FLOOR]),
                }
                for name, each in of.items()
            ]  # fmt: skip
            mark = setting.mark if count == PAGES else f"{setting.mark}single_"
            others = [each for name, each in of.items() if name in {REDIS_PY, HIREDIS}]
            results.keys |= {
                f"l3_{verb}_{mark}x_floor": ratio_p50(of[OURS], of[FLOOR]),
                f"l3_{verb}_{mark}x_server": ratio_p50(of[OURS], of[SERVER]),
                f"l3_{verb}_{mark}x_redispy": ratio_p50(of[OURS], *others),
                f"l3_{verb}_{setting.mark}{count}x1MiB_ms_p50": of[OURS].p50_s * 1e3,
            }


_NAMES = (FLOOR, SERVER, OURS, REDIS_PY, HIREDIS)


def table(results: Results) -> Table:
    """Rows for a person."""
    drawn = Table(title=f"{CONNECTIONS} connections to each server; × plain sockets in the same round")
    for heading in ("over", "verb", "pages", "by", "p50 ms", "p99 ms", "× floor"):
        drawn.add_column(heading, justify="left" if heading in {"over", "verb", "by"} else "right")
    for row in results.rows:
        drawn.add_row(*_cells(row))
    return drawn


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["over"], row["verb"], f"{row['pages']} × 1 MiB", row["by"], f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}",
        f"{row['x_floor']:.2f}",
    ]  # fmt: skip


def lines(results: Results) -> list[str]:
    """The part of docs/benchmarks.md."""
    told = [
        "## Pages in L3",
        "",
        f"`stratakv bench l3`: one Redis, and a Cluster of {PRIMARIES} primaries, on this machine; {CONNECTIONS} connections to",
        "each server. *Plain sockets*: as many connections to another process that only sends and accepts the same bytes, in one",
        "thread as the server has; here a thread a connection, one call for all of its pages. *Plain, to Redis*: the same with",
        "Redis at the other end, by a client that knows every byte of its replies in advance and makes no checksums: what Redis",
        "itself takes. *redis-py*: as many connections, a thread each, its parser chosen; what was read is copied to its place.",
        "Ours: as a sidecar does it, checksums included. A ratio is the median over rounds. Beside that, a worker loads chains",
        "one after the other through its sidecar, in slices, while another one looks up 32 resident pages without a pause, as",
        "it does in the slices between.",
        "",
        "| what | measured | budget | |",
        "|---|---:|---:|---|",
    ]
    for key, what, budget in BUDGETS:
        value = results.keys[key]
        judged = "| |" if budget is None else f"{budget:g} | {'met' if value <= budget else '**missed**'} |"
        told.append(f"| {what} (`{key}`) | {value:.2f} | {judged}")
    told += [
        "",
        "| over | verb | pages | by | p50 ms | p99 ms | × plain |",
        "|---|---|---|---|---:|---:|---:|",
    ]
    return [*told, *("| " + " | ".join(_cells(row)) + " |" for row in results.rows)]


def measure(console: Console, *, rounds: int = ROUNDS) -> Results:
    """`run` with a line that says how far it is."""
    with telling(console, "L3") as tell:
        return run(rounds=rounds, tell=lambda what: tell(f"L3: {what}"))


@app.command()
def l3(
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Also write all figures to this file.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=3, max=10_000, help="Rounds of each scenario.")] = ROUNDS,
) -> None:
    """Loads and stores of pages in Redis, beside redis-py and plain sockets."""
    results = measure(Console(stderr=True), rounds=rounds)
    out = Console()
    out.print(table(results))
    for key in sorted(results.keys):
        out.print(f"{key} {results.keys[key]:.4g}", highlight=False)
    out.print(f"load average when it began: {results.load_average:.1f}")
    if json_path is not None:
        payload = {
            **results.keys, "rows": results.rows, "machine": results.machine, "load_average": results.load_average,
        }  # fmt: skip
        json_path.write_text(json.dumps(payload, indent=2) + "\n")
        out.print(f"written: {json_path}")
