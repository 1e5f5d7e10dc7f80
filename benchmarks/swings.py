"""Demand that swings between models in one arena: the hit ratio beside that of the ideal split of each phase.

`python -m benchmarks.swings`. The arena runs on a clock of its own, so that a run is the same each time; no bytes are copied.
"""

from __future__ import annotations

import itertools
import os
import random
from bisect import bisect
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import typer

from benchmarks.ideal_split import Split, SplitHits, stack_distances
from benchmarks.showing import print_table, table_lines
from cache_l2._native import Arena

KIB = 1024
SEGMENT_BYTES = 1024 * KIB
SEGMENTS = 48
REQUEST_NS = 100_000
COLUMNS = ("asked for", "pages", "ideal", "×", "bytes", "ideal", "×", "segments moved a turnover")
CHAIN_GROUP = 8
"""Chains that share their first pages."""


@dataclass(frozen=True)
class Model:
    """What is asked of one model: chains of `pages`, the n-th most popular in proportion to n to the power of −`skew`."""

    page_bytes: int
    chains: int
    skew: float
    pages: int = 1
    shared: int = 0
    """Pages at the head that each of CHAIN_GROUP chains has in common."""


@dataclass(frozen=True)
class Phase:
    """How often each model is asked, for so many turnovers of the arena; `scanning` ones never ask for the same twice."""

    weights: Mapping[str, float]
    turnovers: float = 3.0
    scanning: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Swing:
    """Models that share one arena, and how their demand goes."""

    models: Mapping[str, Model]
    phases: Sequence[Phase]


@dataclass
class PhaseOutcome:
    """After the first turnover of a phase: pages asked and found by model, beside the ideal split by pages and by bytes."""

    asked: dict[str, int]
    found: dict[str, int]
    moves_per_turnover: float = 0.0
    """Segments that changed their class, as a share of all."""
    found_ideally: dict[str, tuple[float, Split]] = field(default_factory=dict)

    def ratio(self, worth: Mapping[str, float]) -> float:
        """Share of what was asked that was found."""
        return _sum(self.found, worth) / _sum(self.asked, worth)


def _sum(counts: Mapping[str, int], worth: Mapping[str, float]) -> float:
    return sum(count * worth[name] for name, count in counts.items())


class _Source:
    """Draws the requests of one model."""

    def __init__(self, name: str, model: Model) -> None:
        self._name, self._model = name, model
        self._random = random.Random(name)
        self._cumulated = list(
            itertools.accumulate((rank + 1) ** -model.skew for rank in range(model.chains))
        )
        self._order = self._random.sample(range(model.chains), model.chains)
        self._scanned = model.chains

    def draw(self, *, scanning: bool) -> list[Hashable]:
        """The next chain's pages, from the root."""
        if scanning:
            self._scanned += 1
            chain = self._scanned
        else:
            rank = bisect(self._cumulated, self._random.random() * self._cumulated[-1])
            chain = self._order[min(rank, self._model.chains - 1)]
        return [
            (
                self._name,
                chain // CHAIN_GROUP if place < self._model.shared else chain,
                place,
                place < self._model.shared,
            )
            for place in range(self._model.pages)
        ]


class _Run:
    """One swing, asked of an arena; what was asked is kept for the ideal."""

    def __init__(self, swing: Swing, segments: int) -> None:
        self._swing, self._segments = swing, segments
        smallest = min(model.page_bytes for model in swing.models.values())
        self.arena = Arena(
            arena_bytes=segments * SEGMENT_BYTES, segment_bytes=SEGMENT_BYTES,
            entries=segments * SEGMENT_BYTES // smallest + 64, rows=1, leases_per_row=16, ring_records=16,
            life=bytes(16),
        )  # fmt: skip
        self._row = self.arena.open_row(os.getpid())
        self._sources = {name: _Source(name, model) for name, model in swing.models.items()}
        self._numbers = {name: number for number, name in enumerate(swing.models)}
        self._keys: dict[Hashable, bytes] = {}
        self._random = random.Random(5)
        self._now_ns = REQUEST_NS
        self.asked: list[tuple[int | None, str, list[Hashable]]] = []
        """Each request's phase, None during its first turnover, its model and its pages."""

    def phase(self, number: int, phase: Phase) -> PhaseOutcome:
        """Ask until so much was stored, or would have been if a fiftieth of what was found had not been."""
        turnover = self._segments * SEGMENT_BYTES
        outcome = PhaseOutcome(asked=dict.fromkeys(phase.weights, 0), found=dict.fromkeys(phase.weights, 0))
        names, weights = list(phase.weights), list(phase.weights.values())
        stored, moved = 0.0, None
        while stored < phase.turnovers * turnover:
            (name,) = self._random.choices(names, weights)
            pages = self._sources[name].draw(scanning=name in phase.scanning)
            found = self._ask(name, pages)
            page_bytes = self._swing.models[name].page_bytes
            is_measured = stored >= turnover
            self.asked.append((number if is_measured else None, name, pages))
            if is_measured:
                moved = self._moved() if moved is None else moved
                outcome.asked[name] += len(pages)
                outcome.found[name] += found
            stored += page_bytes * (len(pages) - found + 0.02 * found)
        measured = phase.turnovers - 1
        outcome.moves_per_turnover = (self._moved() - (moved or 0)) / self._segments / measured
        return outcome

    def _moved(self) -> int:
        return self.arena.statistics()["segments_moved"]

    def _ask(self, name: str, pages: Sequence[Hashable]) -> int:
        """Look for a chain and store what is missing; pages found."""
        self._now_ns += REQUEST_NS
        keys = [self._keys.setdefault(page, sha256(repr(page).encode()).digest()) for page in pages]
        rows = self.arena.reserve(
            row=self._row, namespace_slot=self._numbers[name], parent=None, keys=b"".join(keys),
            payload_bytes=self._swing.models[name].page_bytes, expiry_s=0, deadline_ns=2**62, now_ns=self._now_ns,
        )  # fmt: skip
        self.arena.commit(
            row=self._row, reservations=[row[2] for row in rows if row[0] == 0], incarnation=bytes(16),
            revision=0, producer=0, computed_from_ms=0, computed_until_ms=0, rests_on=0, now_ns=self._now_ns,
        )  # fmt: skip
        return sum(row[0] == 1 for row in rows)


def measure(swing: Swing, *, segments: int = SEGMENTS) -> list[PhaseOutcome]:
    """What each phase found, and what the ideal split would have."""
    run = _Run(swing, segments)
    outcomes = [run.phase(number, phase) for number, phase in enumerate(swing.phases)]
    run.arena.check_invariants()
    distances: list[dict[str, list[int]]] = [{name: [] for name in swing.models} for _ in swing.phases]
    for name in swing.models:
        asked = [(phase, pages) for phase, model, pages in run.asked if model == name]
        for (phase, _), found in zip(asked, stack_distances([pages for _, pages in asked]), strict=True):
            if phase is not None:
                distances[phase][name] += found
    slots = {name: SEGMENT_BYTES // model.page_bytes for name, model in swing.models.items()}
    for outcome, of_phase in zip(outcomes, distances, strict=True):
        hits = SplitHits(of_phase, slots, segments)
        for kind, worth in worths(swing).items():
            most, split = hits.best(worth)
            outcome.found_ideally[kind] = (most / _sum(outcome.asked, worth), split)
    run.arena.close()
    return outcomes


def worths(swing: Swing) -> dict[str, dict[str, float]]:
    """What a hit of each model counts, in pages and in bytes."""
    return {
        "pages": dict.fromkeys(swing.models, 1.0),
        "bytes": {name: float(model.page_bytes) for name, model in swing.models.items()},
    }


def _two(small: Model, large: Model, *phases: Phase) -> Swing:
    return Swing({"a": small, "b": large}, phases)


_SMALL = Model(12 * KIB, 8000, 0.9)
_LARGE = Model(64 * KIB, 1600, 0.9)
_CHAINS = Model(12 * KIB, 700, 0.9, pages=16, shared=4)
_LARGE_CHAINS = Model(64 * KIB, 160, 0.9, pages=12, shared=3)

SWINGS: dict[str, Swing] = {
    "all of one, then all of the other": _two(
        _SMALL, _LARGE, Phase({"a": 1}), Phase({"b": 1}, 2.5), Phase({"a": 1}, 2.5)
    ),
    "most of one, then most of the other": _two(
        _SMALL, _LARGE, Phase({"a": 95, "b": 1}), Phase({"a": 1, "b": 3}), Phase({"a": 95, "b": 1}, 2.5)
    ),
    "both alike in bytes, then in pages": _two(
        _SMALL, _LARGE, Phase({"a": 16, "b": 3}), Phase({"a": 1, "b": 1}, 4.0)
    ),
    "short phases": _two(
        _SMALL, _LARGE, *(Phase({"a": 40, "b": 1} if turn % 2 else {"a": 1, "b": 1}, 1.5) for turn in range(6))
    ),
    "the large ones are scanned": _two(
        _SMALL, _LARGE, Phase({"a": 16, "b": 1}), Phase({"a": 16, "b": 3}, 4.0, frozenset("b")), Phase({"a": 16, "b": 3})
    ),
    "the small ones are scanned": _two(
        _SMALL, _LARGE, Phase({"a": 8, "b": 3}), Phase({"a": 16, "b": 3}, 4.0, frozenset("a"))
    ),
    "chains with common heads": _two(
        _CHAINS, _LARGE_CHAINS, Phase({"a": 8, "b": 1}), Phase({"a": 1, "b": 4}), Phase({"a": 8, "b": 1})
    ),
    "unequal reuse": _two(
        Model(12 * KIB, 3000, 1.2), Model(64 * KIB, 4000, 0.6), Phase({"a": 16, "b": 3}), Phase({"a": 4, "b": 3}, 4.0)
    ),
    "nearly equal pages": _two(
        Model(28 * KIB, 4000, 0.9), Model(36 * KIB, 3000, 0.8), Phase({"a": 5, "b": 1}), Phase({"a": 1, "b": 5})
    ),
    "very unequal pages": _two(
        Model(4 * KIB, 20_000, 0.9), Model(256 * KIB, 500, 0.9), Phase({"a": 100, "b": 1}), Phase({"a": 1, "b": 1})
    ),
    "three models": Swing(
        {"a": _SMALL, "b": _LARGE, "c": Model(32 * KIB, 3000, 0.8)},
        (
            Phase({"a": 10, "b": 1, "c": 1}), Phase({"a": 1, "b": 4, "c": 1}), Phase({"a": 2, "b": 1, "c": 10}),
            Phase({"a": 8, "b": 3, "c": 5}, 4.0),
        ),
    ),
}  # fmt: skip
"""Pages are a 16th of usual ones: 192 KiB, 1 MiB."""


def _describe(phase: Phase) -> str:
    return ", ".join(
        f"{name} {weight:g}{' scanning' if name in phase.scanning else ''}"
        for name, weight in phase.weights.items()
    )


def rows() -> Iterator[tuple[str, ...]]:
    """Of each swing its title alone, then of each phase what it asks for and found; what `COLUMNS` names."""
    for title, swing in SWINGS.items():
        yield (title, *[""] * (len(COLUMNS) - 1))
        for phase, outcome in zip(swing.phases, measure(swing), strict=True):
            cells = []
            for kind, worth in worths(swing).items():
                ratio, (ideal, split) = outcome.ratio(worth), outcome.found_ideally[kind]
                cells += [f"{ratio:.1%}", f"{ideal:.1%} {split}", f"{ratio / ideal:.3f}"]
            yield (f"— {_describe(phase)}", *cells, f"{outcome.moves_per_turnover:.1%}")


def lines() -> list[str]:
    """The part of docs/benchmarks.md."""
    return [
        "## Demand that swings between models in one arena",
        "",
        "`python -m benchmarks.swings`: hit ratios from the second turnover of each phase on, in pages and in bytes, beside",
        "those of the best of all splits of the arena among the models that would have held from the beginning (segments of",
        "each). The clock runs by requests, so a run is the same everywhere. Chains are asked for by Zipf's law, pages are a",
        "16th of usual ones (192 KiB, 1 MiB). Where a page of one model is worth 64 of another's, no split is near the best",
        "of both counts.",
        "",
        *table_lines(COLUMNS, rows()),
    ]


def main() -> None:
    """Print each phase's hit ratio, the ideal one and their quotient, counted in pages and in bytes."""
    print_table(COLUMNS, rows(), width=150)


if __name__ == "__main__":
    typer.run(main)
