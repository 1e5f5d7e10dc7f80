"""How a measurement shows its figures: one JSON object for machines, a table for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table


def show(figures: Mapping[str, float], table: Table, *, as_json: bool) -> None:
    """Print the figures by key, or the table of them."""
    if as_json:
        json.dump(figures, sys.stdout)
        print()
    else:
        Console().print(table)
