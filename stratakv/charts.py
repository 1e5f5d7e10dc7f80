"""Curves of hits against capacity, drawn: in a terminal with letters, and with matplotlib into a picture."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kv_types.errors import ConfigError
from stratakv.sizing import Curves

_HEIGHT = 14
_WIDTH_MOST = 72
_MARGIN = 8
_MARKS = {"learned": "L", "lru": "r", "lru2": "2", "s3fifo": "3", "belady": "B"}
_COLOURS = {"learned": "C0", "lru": "C7", "lru2": "C2", "s3fifo": "C4", "belady": "C3"}


def terminal_chart(curves: Curves, *, width: int) -> list[str]:
    """Lines of a chart: capacity from left to right, in equal factors; prefix-hit ratio upwards; a letter a policy.

    Of points at one place the policy named first is seen.
    """
    columns = max(20, min(_WIDTH_MOST, width - _MARGIN))
    top = max([curves.achievable, *(one.ratio for points in curves.points.values() for one in points)]) or 1.0
    canvas = [[" "] * columns for _ in range(_HEIGHT)]
    for policy, points in reversed(list(curves.points.items())):
        places = [
            (_column(pages, curves.capacities, columns), one.ratio)
            for pages, one in zip(curves.capacities, points, strict=True)
        ]
        for (left, low), (right, high) in itertools.pairwise(places):
            for column in range(left + 1, right):
                ratio = low + (high - low) * (column - left) / (right - left)
                line = canvas[_line(ratio, top)]
                line[column] = "·" if line[column] == " " else line[column]
        for column, ratio in places:
            canvas[_line(ratio, top)][column] = _MARKS.get(policy, policy[0])
    labels = {_line(part * top, top): f"{100 * part * top:5.1f} %" for part in (0.0, 0.5, 1.0)}
    drawn = [f"{labels.get(index, ''):>7} │{''.join(line)}".rstrip() for index, line in enumerate(canvas)]
    first, last = f"{curves.capacities[0]:,}", f"{curves.capacities[-1]:,} pages"
    names = ", ".join(f"{_MARKS.get(policy, policy[0])} {policy}" for policy in curves.points)
    return [
        *drawn,
        " " * _MARGIN + "└" + "─" * columns,
        " " * (_MARGIN + 1) + first + last.rjust(max(len(last) + 1, columns - len(first))),
        " " * (_MARGIN + 1) + names,
    ]


def check_picture(path: Path) -> None:
    """Find out before the work that no picture of this kind could be drawn. Raises ConfigError."""
    canvas, _ = _matplotlib()
    kinds = canvas.get_supported_filetypes()
    if _kind(path) not in kinds:
        raise ConfigError(f"--plot: {path} can't be written: a picture is .{', .'.join(sorted(kinds))}")


def picture(curves: Sequence[Curves], path: Path) -> bytes:
    """Draw a chart a trace into one picture, of the kind that the file's name tells. Raises ConfigError."""
    canvas, figure_of = _matplotlib()
    figure = figure_of(figsize=(7.0, 4.2 * len(curves)), layout="constrained")
    canvas(figure)
    for axes, one in zip(figure.subplots(len(curves), squeeze=False)[:, 0], curves, strict=True):
        for policy, points in one.points.items():
            ratios = [100 * point.ratio for point in points]
            axes.plot(
                one.capacities, ratios, marker="o", label=policy, color=_COLOURS.get(policy),
                linestyle="--" if policy == "belady" else "-",
            )  # fmt: skip
        axes.axhline(100 * one.achievable, color="black", linewidth=0.5, linestyle=":")
        if one.advice is not None and one.advice.pages is not None:
            axes.axvline(one.advice.pages, color="C0", linewidth=0.5, linestyle=":")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("capacity, pages")
        axes.set_ylabel("prefix-hit ratio, %")
        axes.set_title(one.trace.name, parse_math=False)
        axes.legend()
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, dpi=120, format=_kind(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot: {path} can't be drawn: {error}") from error
    return drawn.getvalue()


def _matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra; and slow to load
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "--plot needs matplotlib, which is not installed: pip install 'stratakv[plot]'; "
            "the chart in the terminal needs nothing"
        ) from error
    return FigureCanvasAgg, Figure


def _kind(path: Path) -> str:
    return path.suffix.removeprefix(".").lower() or "png"


def _column(pages: int, capacities: Sequence[int], columns: int) -> int:
    low, high = math.log(capacities[0]), math.log(capacities[-1])
    part = (math.log(pages) - low) / (high - low) if high > low else 0.5
    return round(part * (columns - 1))


def _line(ratio: float, top: float) -> int:
    return round((1 - ratio / top) * (_HEIGHT - 1))
