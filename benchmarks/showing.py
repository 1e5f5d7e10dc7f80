"""How a measurement shows how far it is and what it found: a line, then one JSON object for machines or a table for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table


def show(figures: Mapping[str, float], table: Table, *, as_json: bool) -> None:
    """Print the figures by key, or the table of them."""
    if as_json:
        json.dump(figures, sys.stdout)
        print()
    else:
        Console().print(table)


@contextmanager
def telling(console: Console, begins: str) -> Iterator[Callable[[str], None]]:
    """A line that says how far a measurement is, while the block runs; what it gives sets the line's text."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(begins)
        yield lambda what: progress.update(task, description=what)


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of docs/benchmarks.md: text in the first column, numbers in the others."""
    return [
        "| " + " | ".join(columns) + " |",
        "|---" + "|---:" * (len(columns) - 1) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, width: int) -> None:
    """Print the same for people."""
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    Console(width=width).print(table)
