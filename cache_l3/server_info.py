"""What a server's INFO says, read the same way by the log and by L3."""

from __future__ import annotations

from collections.abc import Mapping


def parse_info(text: str) -> Mapping[str, str]:
    """Read INFO's lines of `name:value`."""
    lines = (line.strip().partition(":") for line in text.splitlines())
    return {name: value for name, colon, value in lines if colon and not name.startswith("#")}
