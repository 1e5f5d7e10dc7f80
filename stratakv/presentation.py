"""How commands speak: lines to standard error, JSON to standard output, tables, and names that no terminal obeys."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stratakv.streams import OutputError

_UNBOUNDED_COLUMNS = 10_000


class Paper(Console):
    """Standard output or error: as wide as its terminal, of any width where it is none; tables keep every id whole."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = _UNBOUNDED_COLUMNS

    def show(self, table: Table) -> None:
        """Print a table, or where it is wider than the terminal its rows below one another, a cell a line."""
        natural = self.measure(table, options=self.options.update(max_width=_UNBOUNDED_COLUMNS)).maximum
        if natural <= self.width or not table.row_count:
            self.print(table)
            return
        if table.title:
            self.print(table.title, style="italic", highlight=False)
        names = [str(column.header) for column in table.columns]
        widest = max(map(len, names))
        for row, cells in zip(
            table.rows, zip(*(column.cells for column in table.columns), strict=True), strict=True
        ):
            self.rule(style="dim")
            for name, cell in zip(names, cells, strict=True):
                if value := cell if isinstance(cell, Text) else Text(str(cell)):
                    line = Text(f"{name:>{widest}}  ", style="bold").append_text(value)
                    self.print(line, style=row.style, soft_wrap=True)


def say(verb: str, text: str) -> None:
    """Write a line to standard error."""
    typer.echo(f"stratakv {verb}: {text}", err=True)


def print_json(value: Any) -> None:
    """Write one JSON object to standard output."""
    typer.echo(json.dumps(value, indent=2, sort_keys=True))


@contextlib.contextmanager
def what_is_done_stands(verb: str) -> Iterator[None]:
    """Print what was done; that nobody takes it (a closed pipe, a full disk, Ctrl-C) changes neither it nor the exit code."""
    try:
        yield
        sys.stdout.flush()
    except (OutputError, KeyboardInterrupt) as error:
        say(verb, f"not all of the answer could be written ({str(error) or 'interrupted'})")


def table_of(title: str, *headings: str) -> Table:
    """An empty table in the house's style."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def plain(text: str) -> Text:
    """What somebody chose as a name: no markup, and nothing that a terminal would obey."""
    return Text("".join(character if character.isprintable() else "\ufffd" for character in text))
