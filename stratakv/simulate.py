"""`stratakv simulate`: replays traces of requests through eviction policies, and says how much memory is enough."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from kv_policy.baselines import Replayed
from kv_policy.replays import LEARNED, POLICIES, replay_named
from kv_policy.trace import Trace
from kv_types.errors import ConfigError, StrataError
from kv_types.limits import PAGE_BYTES_MAX, PAGE_TOKENS_MAX
from kv_types.trace_limits import SIMULATE_JOBS_MAX
from sidecar.units import parse_size
from stratakv.charts import check_picture, picture, terminal_chart
from stratakv.presentation import Paper, plain, say, table_of
from stratakv.result_files import check_result_file, write_result_file
from stratakv.sizing import ENOUGH, Advice, Curves, PageBytes, advise, capacities, mean_closed
from stratakv.trace_files import STANDARD_OUTPUT, read_traces

_VERB = "simulate"
_FAILED, _USAGE = 1, 2
_ALONE_BLOCKS = 200_000
"""Blocks to replay, over all cells, for which starting processes would take longer than it saves."""

Cell = tuple[int, str, int]
"""Number of the trace, policy, capacity in pages."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def simulate(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE…", help="JSONL files of requests, plain, .gz or .zst; - is standard input."
        ),
    ],
    capacity: Annotated[
        str,
        typer.Option(help="Shares of the trace's different pages, pages, or sizes: 1%,5000,64GiB."),
    ] = "1%,2%,5%,10%,20%,50%",
    policy: Annotated[
        str, typer.Option(help="Policies to compare; learned is the one that the tiers run.")
    ] = ",".join(POLICIES),
    page_bytes: Annotated[
        str | None, typer.Option(help="Size of a page, a block of the trace: 2MiB.")
    ] = None,
    bytes_per_token: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=PAGE_BYTES_MAX,
            help="KV bytes of one token: 2 × layers × KV heads × head size × element size.",
        ),
    ] = None,
    page_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=PAGE_TOKENS_MAX, help="Tokens of a block, where the trace leaves it open."),
    ] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Take all files as parts of one trace, in the order of their times."),
    ] = False,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write all figures as JSON; - is standard output, and nothing else goes there.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the curves into a picture (.png, .svg, .pdf).")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=0, max=SIMULATE_JOBS_MAX, help="Processes; 0 is one a processor.")
    ] = 0,
) -> None:
    """Show the prefix-hit ratio of traces against capacity, by policy, and the smallest capacity that is enough."""
    try:
        sizes = PageBytes(_page_bytes(page_bytes), bytes_per_token, page_tokens)
        policies = _policies(policy)
        _check_places(json_file, plot)
        found = read_traces(traces, merge=merge, heard=lambda file: say(_VERB, f"reading {file}"))
        curves = _curves(found, policies, capacity, sizes, jobs or len(os.sched_getaffinity(0)))
        if plot is not None:
            write_result_file(plot, picture(curves, plot), option="--plot")
        if json_file is not None:
            _write_json(json_file, curves, sizes)
        if json_file != STANDARD_OUTPUT:
            _print(curves, sizes)
    except BrokenProcessPool:
        say(
            _VERB,
            "a process that replayed was ended, for want of memory perhaps: try --jobs 1, or a part of the trace",
        )
        raise typer.Exit(_FAILED) from None
    except StrataError as error:
        say(_VERB, str(error))
        raise typer.Exit(_USAGE) from error


def _check_places(json_file: str | None, plot: Path | None) -> None:
    if plot is not None:
        check_picture(plot)
        check_result_file(plot, option="--plot")
    if json_file not in (None, STANDARD_OUTPUT):
        check_result_file(Path(str(json_file)), option="--json")


def _page_bytes(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        size = parse_size(text)
    except ValueError as error:
        raise ConfigError(f"--page-bytes: {error}") from error
    if not 1 <= size <= PAGE_BYTES_MAX:
        raise ConfigError(f"--page-bytes: a page has 1 to {PAGE_BYTES_MAX:,} bytes; got {text}")
    return size


def _policies(text: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise ConfigError(f"--policy: {unknown[0]!r} is no policy; there are {', '.join(POLICIES)}")
    return names


# --- replaying ---


def _curves(
    traces: Sequence[Trace], policies: Sequence[str], capacity: str, sizes: PageBytes, jobs: int
) -> list[Curves]:
    pages = [capacities(capacity, trace, sizes) for trace in traces]
    cells: list[Cell] = [
        (number, policy, one) for number in range(len(traces)) for policy in policies for one in pages[number]
    ]
    told: dict[Cell, Replayed] = {}
    console = Paper(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("replaying", total=len(cells))
        for cell, replayed in _replayed(traces, cells, jobs):
            told[cell] = replayed
            progress.advance(task)
    advisor = LEARNED if LEARNED in policies else policies[0]
    return [
        Curves(
            trace,
            pages[number],
            {policy: [told[number, policy, one] for one in pages[number]] for policy in policies},
            advise(
                trace,
                advisor,
                {one: told[number, advisor, one] for one in pages[number]},
                lambda name, one, trace=trace: replay_named(name, trace, one),  # type: ignore[misc]
            ),
        )
        for number, trace in enumerate(traces)
    ]


def _replayed(traces: Sequence[Trace], cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Replayed]]:
    work = sum(len(traces[number].blocks) for number, _, _ in cells)
    if jobs == 1 or work <= _ALONE_BLOCKS:
        for number, policy, pages in cells:
            yield (number, policy, pages), replay_named(policy, traces[number], pages)
        return
    # Not forked: who has threads, as numpy may, can't be forked safely.
    pool = ProcessPoolExecutor(
        min(jobs, len(cells)),
        mp_context=get_context("spawn"),
        initializer=_take_traces,
        initargs=(list(traces),),
    )
    try:
        under_way = {pool.submit(_replay_cell, cell): cell for cell in cells}
        for done in as_completed(under_way):
            yield under_way[done], done.result()
    finally:
        pool.shutdown(cancel_futures=True)


_TAKEN: list[Trace] = []
"""In a process that replays: the traces, which came once."""


def _take_traces(traces: list[Trace]) -> None:
    _TAKEN[:] = traces


def _replay_cell(cell: Cell) -> Replayed:
    number, policy, pages = cell
    return replay_named(policy, _TAKEN[number], pages)


# --- showing ---


def _print(curves: Sequence[Curves], sizes: PageBytes) -> None:
    paper = Paper()
    for one in curves:
        trace, page_bytes = one.trace, sizes.of(one.trace)
        tokens = sizes.tokens(trace)
        page = "" if tokens is None else f" of {tokens} tokens"
        paper.print(
            f"{plain(trace.name)}: {trace.requests:,} requests over {trace.span_s:,.0f} s ask for {len(trace.blocks):,} "
            f"pages{page}, {trace.distinct:,} of them different; a cache without bounds hits {100 * one.achievable:.1f} %",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        headings = ["capacity", "pages", *(["size"] if page_bytes else []), *one.points]
        has_gap = LEARNED in one.points and any(part is not None for part in one.closed(LEARNED))
        table = table_of("prefix-hit ratio, %", *headings, *(["gap closed"] if has_gap else []))
        closed = one.closed(LEARNED) if has_gap else []
        for row, pages in enumerate(one.capacities):
            part = closed[row] if has_gap else None
            table.add_row(
                _share(pages / max(1, trace.distinct)),
                f"{pages:,}",
                *([_gib(pages * page_bytes)] if page_bytes else []),
                *(f"{100 * points[row].ratio:.2f}" for points in one.points.values()),
                *([] if not has_gap else ["" if part is None else f"{100 * part:.0f} %"]),
            )
        paper.show(table)
        for line in terminal_chart(one, width=paper.width):
            paper.print(line, markup=False, highlight=False, soft_wrap=True)
        paper.print(_advice(one, page_bytes), markup=False, highlight=False, soft_wrap=True)
    mean = mean_closed(curves, LEARNED)
    if mean is not None:
        paper.print(
            f"of the gap between LRU and Belady, learned closes {100 * mean:.1f} % in the mean of the capacities that have one",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip


def _advice(one: Curves, page_bytes: int | None) -> str:
    advice = one.advice
    if advice is None or advice.pages is None:
        return "no page is asked for twice: no cache of any size would hit"
    size = (
        f" ({_gib(advice.pages * page_bytes)})"
        if page_bytes
        else " (--page-bytes or --bytes-per-token tells how much memory that is)"
    )
    return (
        f"{100 * ENOUGH:.0f} % of what can be hit needs about {advice.pages:,} pages{size} with {advice.policy}: "
        f"{100 * advice.hit / len(one.trace.blocks):.1f} % of all pages asked for"
    )


def _share(part: float) -> str:
    return f"{100 * part:.2g} %" if part < 1 else f"{100 * part:,.0f} %"


def _gib(size: int) -> str:
    return f"{size / 2**30:,.3g} GiB" if size < 100 * 2**30 else f"{size / 2**30:,.0f} GiB"


def _write_json(file: str, curves: Sequence[Curves], sizes: PageBytes) -> None:
    text = json.dumps(
        {"traces": [_told(one, sizes) for one in curves], "gap_closed": mean_closed(curves, LEARNED)},
        indent=2,
    )
    if file == STANDARD_OUTPUT:
        sys.stdout.write(text + "\n")
        return
    write_result_file(Path(file), (text + "\n").encode(), option="--json")


def _told(one: Curves, sizes: PageBytes) -> dict[str, Any]:
    trace, page_bytes = one.trace, sizes.of(one.trace)
    return {
        "name": trace.name,
        "requests": trace.requests,
        "requested_pages": len(trace.blocks),
        "distinct_pages": trace.distinct,
        "span_s": trace.span_s,
        "page_tokens": sizes.tokens(trace),
        "page_bytes": page_bytes,
        "achievable_ratio": one.achievable,
        "capacities": list(one.capacities),
        "policies": {
            policy: {
                "hit_pages": [point.hit for point in points],
                "ratio": [point.ratio for point in points],
                "gap_closed": one.closed(policy),
            }
            for policy, points in one.points.items()
        },
        "advice": _told_advice(one.advice, page_bytes),
    }


def _told_advice(advice: Advice | None, page_bytes: int | None) -> dict[str, Any] | None:
    if advice is None or advice.pages is None:
        return None
    return {
        "policy": advice.policy,
        "share_of_achievable": ENOUGH,
        "pages": advice.pages,
        "bytes": None if page_bytes is None else advice.pages * page_bytes,
        "hit_pages": advice.hit,
    }
