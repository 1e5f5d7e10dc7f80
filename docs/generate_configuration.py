"""Writes docs/configuration.md from the settings model: `python docs/generate_configuration.py [--check]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from annotated_types import Ge, Le  # noqa: E402 - after the path that finds our packages

from docs.generated import bring_up_to_date  # noqa: E402
from sidecar.config import Settings, accepted, default_shown, shown  # noqa: E402
from sidecar.config_sources import CONFIG_VARIABLE, flag_of, variable_of  # noqa: E402
from sidecar.units import DURATION_UNITS, SIZE_UNITS  # noqa: E402

TARGET = ROOT / "docs" / "configuration.md"


def render() -> str:
    """Return the whole page."""
    return "\n".join([*_introduction(), *_overview(), *_details(), *_example()]).rstrip() + "\n"


def _introduction() -> Iterator[str]:
    sizes = ", ".join(unit.upper().replace("IB", "iB") for unit in SIZE_UNITS if unit)
    durations = ", ".join(unit for unit in DURATION_UNITS if unit)
    yield from (
        "# Configuration of the sidecar",
        "",
        "Generated from `sidecar/config.py` by `make gen`; edit the docstrings there.",
        "",
        "A setting is looked for on the command line of `stratakv serve`, then in the environment, then in a TOML "
        f"file (`--config FILE`, else `${CONFIG_VARIABLE}`), then its default holds. At its start the sidecar prints "
        "every value and where it came from. A key or a `STRATAKV_` variable that is not in this list is an error.",
        "",
        f"Sizes take a unit ({sizes}, in any case) or are bytes. Durations take a unit ({durations}) or are seconds.",
        "",
    )


def _overview() -> Iterator[str]:
    yield "| key | default | takes | flag | environment |"
    yield "| --- | --- | --- | --- | --- |"
    for name in Settings.model_fields:
        cells = (
            f"[{name}](#{name})",
            f"`{default_shown(name)}`",
            _takes(name),
            f"`{flag_of(name)}`",
            f"`{variable_of(name)}`",
        )
        yield "| " + " | ".join(cells) + " |"
    yield ""


def _details() -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        yield from (f"## {name}", "", " ".join((field.description or "").split()), "")


def _takes(name: str) -> str:
    bounds: dict[type, object] = {}
    for part in Settings.model_fields[name].metadata:
        if isinstance(part, Ge):
            bounds[Ge] = part.ge
        elif isinstance(part, Le):
            bounds[Le] = part.le
    text = accepted(name)
    if Ge in bounds:
        text += f", at least {_bound(name, bounds[Ge])}"
    if Le in bounds:
        text += f", at most {_bound(name, bounds[Le])}"
    return text


def _bound(name: str, value: object) -> str:
    return shown(name, value)


def _example() -> Iterator[str]:
    yield from (
        "## Example",
        "",
        "```toml",
        "# /etc/stratakv/sidecar.toml",
        'runtime_dir = "/run/stratakv"',
        'arena_size = "64GiB"',
        'freshness_lease = "3s"',
        "metrics_port = 9464",
        "```",
    )


if __name__ == "__main__":
    raise SystemExit(bring_up_to_date(TARGET, render(), sys.argv[1:]))
