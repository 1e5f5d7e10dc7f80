"""How commands speak: lines to standard error, JSON to standard output, tables, and names that no terminal obeys."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.table import Table
from rich.text import Text


def say(verb: str, text: str) -> None:
    """Write a line to standard error."""
    typer.echo(f"stratakv {verb}: {text}", err=True)


def print_json(value: Any) -> None:
    """Write one JSON object, or list, to standard output."""
    typer.echo(json.dumps(value, indent=2, sort_keys=True))


def table_of(title: str, *headings: str) -> Table:
    """An empty table in the house's style."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def plain(text: str) -> Text:
    """What somebody chose as a name: no markup, and nothing that a terminal would obey."""
    return Text("".join(character if character.isprintable() else "\ufffd" for character in text))
