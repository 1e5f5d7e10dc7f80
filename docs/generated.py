"""Shared by the generators of docs: write a page, or with --check tell whether it is current."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def bring_up_to_date(target: Path, text: str, arguments: list[str]) -> int:
    """Write `text` to `target`; with --check write nothing and return 1 when it differs."""
    parser = argparse.ArgumentParser(description=f"Generate {target.name}.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is stale")
    before = target.read_text(encoding="utf-8") if target.exists() else ""
    if parser.parse_args(arguments).check:
        if before != text:
            sys.stderr.write(f"{target} is stale: run `make gen`\n")
        return int(before != text)
    if before != text:
        target.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{target.name}: {'changed' if before != text else 'current'}\n")
    return 0
