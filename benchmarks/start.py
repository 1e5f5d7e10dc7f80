"""Measures the start of an arena, and an attach to it, beside a bare populate of as much memory, alternating in one run."""

from __future__ import annotations

import contextlib
import mmap
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import structlog
import typer
from rich.table import Table

from benchmarks.showing import show
from cache_l2._native import Arena, Reader
from cache_l2.arena_start import ArenaConfig, create_arena, map_own
from kv_types.ids import new_life_id
from sidecar.units import format_size, parse_size

GIB = 1 << 30
ROUNDS = 5
_MADV_POPULATE_WRITE = 23
_PREFAULT_S_MAX = 600.0

ROWS: tuple[tuple[str, str], ...] = (
    ("bare", "a bare populate: a memory file of this size, committed, mapped, its pages mapped in"),
    ("start", "start: the arena stands and can be served from"),
    ("prefaulted", "… and all of it is mapped in"),
    ("attach", "a client's attach: it can look up and read"),
    ("attach_prefaulted", "… and all of it is mapped in there"),
)


@dataclass(frozen=True)
class Began:
    """When something began, by the clock and by this process's processor time."""

    clock_s: float = field(default_factory=time.monotonic)
    processor_s: float = field(default_factory=time.process_time)


@dataclass
class Starts:
    """Seconds by key, one sample a round: by the clock, and of processors, which is what others on the machine don't change."""

    arena_bytes: int
    clock_s: dict[str, list[float]] = field(default_factory=dict)
    processor_s: dict[str, list[float]] = field(default_factory=dict)

    def note(self, key: str, since: Began) -> None:
        """Add what has passed."""
        now = Began()
        self.clock_s.setdefault(key, []).append(now.clock_s - since.clock_s)
        self.processor_s.setdefault(key, []).append(now.processor_s - since.processor_s)

    def forget(self) -> None:
        """Forget all samples."""
        self.clock_s.clear()
        self.processor_s.clear()

    def figures(self) -> dict[str, float]:
        """Medians over the rounds, flat: seconds, and ratios to the bare populate of the same round."""
        told: dict[str, float] = {}
        for name, samples in (("s", self.clock_s), ("processor_s", self.processor_s)):
            for key, _ in ROWS:
                told[f"{key}_{name}"] = statistics.median(samples[key])
                pairs = zip(samples[key], samples["bare"], strict=True)
                told[f"{key}_{name}_x_bare"] = statistics.median(mine / bare for mine, bare in pairs)
        return told


def _bare(starts: Starts) -> None:
    began = Began()
    file = os.memfd_create("stratakv-bare-populate")
    try:
        os.ftruncate(file, starts.arena_bytes)
        os.posix_fallocate(file, 0, starts.arena_bytes)
        with mmap.mmap(file, starts.arena_bytes) as mapping:
            mapping.madvise(_MADV_POPULATE_WRITE)
            starts.note("bare", began)
    finally:
        os.close(file)


def _await_prefault(reader: Reader) -> None:
    deadline = time.monotonic() + _PREFAULT_S_MAX
    while not reader.prefault_ended:
        if time.monotonic() > deadline:
            raise RuntimeError("the arena's mapping was not pre-faulted")
        time.sleep(0.001)


@contextlib.contextmanager
def _arena(starts: Starts) -> Iterator[tuple[Arena, bytes]]:
    config, life = ArenaConfig(arena_bytes=starts.arena_bytes), new_life_id()
    began = Began()
    arena, _ = create_arena(config, life)
    own = map_own(arena, arena.open_row(os.getpid()), life, prefault=True)
    starts.note("start", began)
    try:
        _await_prefault(own)
        starts.note("prefaulted", began)
        yield arena, life
    finally:
        own.close()
        arena.close()


def _attach(starts: Starts, arena: Arena, life: bytes) -> None:
    row = arena.open_row(os.getpid())
    control, clients, data = arena.duplicate_descriptors(writable=True)
    began = Began()
    reader = Reader(control_fd=control, clients_fd=clients, data_fd=data, row=row, life=life, writable=True)
    starts.note("attach", began)
    try:
        _await_prefault(reader)
        starts.note("attach_prefaulted", began)
    finally:
        reader.close()
        arena.end_row(row)


def measure(*, arena_bytes: int, rounds: int) -> Starts:
    """Alternate the bare populate and a start, `rounds` times, after one of each that is not counted."""
    starts = Starts(arena_bytes)
    for number in range(1 + rounds):
        _bare(starts)
        with _arena(starts) as (arena, life):
            _attach(starts, arena, life)
        if number == 0:
            starts.forget()
    return starts


def lines(starts: Starts) -> list[str]:
    """The part of docs/benchmarks.md."""
    return [
        f"## Start of an arena of {format_size(starts.arena_bytes)}",
        "",
        "`python -m benchmarks.start`: alternating with a bare populate, medians of rounds and of ratios within a round. What is",
        "not mapped in at the start is mapped in by a thread of its own while others are served, and at its first use where that",
        "comes first. By the clock, other work on the machine counts as well; processor time is of the measured process alone.",
        "",
        "| what | seconds | × bare | processor seconds | × bare |",
        "|---|---:|---:|---:|---:|",
        *(f"| {' | '.join(cells)} |" for cells in _cells(starts)),
    ]


def _cells(starts: Starts) -> Iterator[tuple[str, ...]]:
    figures = starts.figures()
    for key, what in ROWS:
        numbers = []
        for name in ("s", "processor_s"):
            ratio = "" if key == "bare" else f"{figures[f'{key}_{name}_x_bare']:.2f}"
            numbers += [f"{figures[f'{key}_{name}']:.3f}", ratio]
        yield what, *numbers


def table(starts: Starts) -> Table:
    """The figures for a terminal."""
    shown = Table(title=f"Start of an arena of {format_size(starts.arena_bytes)}")
    for name in ("what", "seconds", "× bare", "processor s", "× bare"):
        shown.add_column(name, justify="left" if name == "what" else "right")
    for cells in _cells(starts):
        shown.add_row(*cells)
    return shown


def main(
    arena_size: Annotated[str, typer.Option(help="Size of the arena.")] = "4GiB",
    rounds: Annotated[int, typer.Option(min=1)] = ROUNDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, figures by key.")] = False,
) -> None:
    """Measure a start and an attach beside a bare populate of as much memory."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    starts = measure(arena_bytes=parse_size(arena_size), rounds=rounds)
    show(starts.figures(), table(starts), as_json=as_json)


if __name__ == "__main__":
    typer.run(main)
