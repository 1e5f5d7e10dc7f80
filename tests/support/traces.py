"""Public traces of requests, and small ones that tests make."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from kv_policy.trace import Trace, TraceBuilder

FOLDER = Path(__file__).parent.parent / "data" / "traces"
NAMES = ("miniswe_c64", "mooncake_conversation_6000", "mooncake_synthetic", "taubench_c64")
SHARES = (1, 2, 5, 10, 20, 50)
"""Capacities in hundredths of a trace's different blocks."""


def trace_file(name: str) -> Path:
    return FOLDER / f"{name}.jsonl.gz"


@cache
def public_trace(name: str) -> Trace:
    builder = TraceBuilder(name)
    with gzip.open(trace_file(name)) as lines:
        builder.add_lines(lines, file=name)
    return builder.build()


def capacity_of(trace: Trace, share: int) -> int:
    return max(1, trace.distinct * share // 100)


def line_of(ids: Sequence[int], *, at_ms: float = 0, tokens: int | None = None, out: int = 0) -> bytes:
    told = {
        "timestamp": at_ms,
        "input_length": 16 * len(ids) if tokens is None else tokens,
        "output_length": out,
        "hash_ids": list(ids),
    }
    return json.dumps(told).encode() + b"\n"


def trace_of(chains: Iterable[Sequence[int]], *, name: str = "made") -> Trace:
    """A trace of requests a second apart."""
    builder = TraceBuilder(name)
    builder.add_lines((line_of(ids, at_ms=1000 * at) for at, ids in enumerate(chains)), file=name)
    return builder.build()
