"""What `stratakv status` shows of L3: its servers, what was loaded and stored, what keeps it from working; and of speeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.table import Table
from rich.text import Text

from kv_wire.gen import cache_pb2
from sidecar.units import format_size
from stratakv.presentation import plain, table_of


def where_l3(l3: cache_pb2.L3Status) -> str:
    """Where it is, in a line, or why it is nowhere."""
    if l3.why_off:
        return f"off: {l3.why_off}"
    servers = ", ".join(server.server for server in l3.servers) or "no server of it is known yet"
    return f"{servers} ({l3.kind})"


def render_l3(l3: cache_pb2.L3Status) -> list[Table | Text]:
    """Tables for a terminal; nothing where there is no L3."""
    if l3.why_off:
        return []
    pages = table_of(
        "L3, in pages", "loaded", "stored", "known", "lost", "waiting", "under way", "corrupt", "missed"
    )
    records, stores = l3.records, l3.stores
    pages.add_row(
        f"{records.get('loaded', 0):,} ({format_size(records.get('loaded_bytes', 0))})",
        f"{records.get('stored', 0):,} ({format_size(records.get('stored_bytes', 0))})",
        f"{stores.get('known', 0):,}",
        _by_reason(stores, "gone", "dropped_", "refused_"),
        f"{stores.get('queued_pages', 0):,} ({stores.get('oldest_ms', 0) / 1000:.1f} s)",
        f"{l3.loads.get('flights', 0):,} in, {stores.get('in_flight', 0):,} out",
        f"{records.get('corrupt', 0):,}",
        _by_reason(records, "load_missed_", "probe_missed_"),
    )
    servers = table_of("L3, servers", "server", "breaker", "connections", "writes", "last error")
    for server in l3.servers:
        servers.add_row(
            plain(server.server),
            server.breaker,
            str(server.connections),
            server.writes,
            plain(_last_error(server)),
        )
    trouble = [Text(plain(f"L3: {l3.trouble}").plain, style="red")] if l3.trouble else []
    return [pages, servers, render_choices(l3), *trouble]


def render_choices(l3: cache_pb2.L3Status) -> Table:
    """How fast L3 is taken to be, and how often pages were loaded from it or left to be computed."""
    table = table_of(
        "L3, load or compute", "latency", "bandwidth", "estimates off by", "loaded", "computed", "tried",
        "given up", "unweighed",
    )  # fmt: skip
    table.add_row(*_choices(l3.choices))
    return table


def _choices(choices: Mapping[str, float]) -> list[str]:
    """The estimate of L3 that loads are weighed by, and what was chosen."""
    known = choices.get("samples", 0.0) > 0
    rate = format_size(int(choices.get("bytes_per_second", 0.0)))
    names = ("load", "compute", "trial", "stopped", "unpriced")
    return [
        f"{choices.get('latency_seconds', 0.0) * 1000:.2f} ms" if known else "unknown",
        f"{rate}/s" if known else "unknown",
        f"× {choices.get('error_factor', 1.0):.2f}" if known else "unknown",
        *(f"{int(choices.get(f'chose_{name}', 0.0)):,}" for name in names),
    ]


def tells_speeds(client: cache_pb2.ClientStatus) -> bool:
    """Whether a worker has told how fast it is."""
    return bool(client.prefill_tokens_per_s or client.copy_bytes_per_s)


def render_speeds(clients: Iterable[cache_pb2.ClientStatus]) -> list[Table]:
    """What workers tell of their copies out of L2 and of their computing; nothing where none does."""
    telling = [client for client in clients if tells_speeds(client)]
    if not telling:
        return []
    table = table_of(
        "L2 and computing, as workers tell", "row", "name", "copy latency", "copy bandwidth", "prompts"
    )
    for client in telling:
        knows_copies = client.copy_bytes_per_s > 0
        table.add_row(
            str(client.row),
            plain(client.name),
            f"{client.copy_latency_s * 1e6:,.1f} µs" if knows_copies else "unknown",
            f"{format_size(int(client.copy_bytes_per_s))}/s" if knows_copies else "unknown",
            f"{client.prefill_tokens_per_s:,.0f} tokens/s" if client.prefill_tokens_per_s else "unknown",
        )
    return [table]


def _last_error(server: cache_pb2.L3ServerStatus) -> str:
    """The newest trouble and how old it is: it stays when all is well again."""
    if not server.last_error:
        return ""
    refuses = f"refuses {', '.join(server.refused)}; " if server.refused else ""
    return f"{refuses}{server.last_error_ms_ago / 1000:.1f} s ago: {server.last_error}"


def _by_reason(counts: Mapping[str, int], *prefixes: str) -> str:
    """What was counted under names that begin so, summed by what follows."""
    found: dict[str, int] = {}
    for name, count in counts.items():
        for prefix in prefixes:
            if name.startswith(prefix) and count:
                reason = name.removeprefix(prefix) or name
                found[reason] = found.get(reason, 0) + count
    return ", ".join(f"{reason} {count:,}" for reason, count in sorted(found.items())) or "0"
