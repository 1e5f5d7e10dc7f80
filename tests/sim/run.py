"""Runs seeds: one with its history, or a range on all processors.

`python -m tests.sim.run --seed 7`, `python -m tests.sim.run --seeds 0..9999`. A seed is the same history in every process,
whatever the order in which seeds run: the process starts itself again where Python's hashes would differ.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from multiprocessing import get_context

from tests.sim import environment
from tests.sim.plan import Plan
from tests.sim.planning import plan_of

CHUNK = 50
"""Seeds between two collections of garbage, and of one piece of work."""

CHUNKS_PER_PROCESS = 10

Line = tuple[int, str, str]
"""True time in ns, who, what."""


@dataclass(slots=True)
class Outcome:
    """What became of a seed. `broken` says which promise was, and how; empty if none was."""

    seed: int
    broken: str
    history: list[Line] = field(default_factory=list)

    @property
    def validator(self) -> str:
        """Name of the validator that found it, empty if none did."""
        return self.broken.partition(":")[0]


def run_seed(seed: int) -> Outcome:
    """Live through one seed."""
    environment.install()
    # after that: product modules take what they find
    from tests.sim.truth import BrokenPromiseError
    from tests.sim.world import World

    world = World(plan_of(seed))
    try:
        world.run()
    except BrokenPromiseError as error:
        return Outcome(seed, str(error), world.history)
    except Exception as error:  # a fault of the product, or of the simulation: either must be seen
        told = "".join(traceback.format_exception(error)[-4:])
        return Outcome(seed, f"Crashed: {type(error).__name__}: {error}\n{told}", world.history)
    return Outcome(seed, "", world.history)


def run_range(first: int, last: int) -> tuple[list[Outcome], float]:
    """Live through many; returns those that broke and the processor's seconds."""
    environment.install()
    gc.collect()
    gc.freeze()
    gc.disable()
    began = time.process_time()
    broken = []
    for seed in range(first, last + 1):
        outcome = run_seed(seed)
        if outcome.broken:
            outcome.history = []
            broken.append(outcome)
    gc.collect()
    return broken, time.process_time() - began


def _span(text: str) -> tuple[int, int]:
    first, _, last = text.partition("..")
    return int(first), int(last or first)


def _chunks(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first, last in spans:
        for begin in range(first, last + 1, CHUNK):
            yield begin, min(begin + CHUNK - 1, last)


def _show(outcome: Outcome, plan: Plan) -> None:
    """Print a seed for people."""
    plain = Plan(plan.seed)
    for one in fields(Plan):
        value = getattr(plan, one.name)
        if value != getattr(plain, one.name):
            print(f"plan {one.name}: {value}")
    for now_ns, who, what in outcome.history:
        print(f"{now_ns / 1e9:9.4f}  {who:9s} {what}")
    print(outcome.broken or "clean")


def _run_chunk(chunk: tuple[int, int]) -> tuple[list[Outcome], float]:
    return run_range(*chunk)


def _run_all(spans: Sequence[tuple[int, int]], processes: int) -> int:
    began, failed, seconds, done = time.monotonic(), 0, 0.0, 0
    # Worlds are woven of cycles through Lua and greenlets, some of which no collection ends: a process does not live long.
    # Not an executor of concurrent.futures: with short-lived processes it can stand still for ever (gh-115634).
    with get_context("spawn").Pool(processes, maxtasksperchild=CHUNKS_PER_PROCESS) as pool:
        for broken, spent in pool.imap_unordered(_run_chunk, _chunks(spans)):
            seconds, done = seconds + spent, done + 1
            for outcome in broken:
                failed += 1
                print(f"seed {outcome.seed}: {outcome.broken}", flush=True)
    count = sum(last - first + 1 for first, last in spans)
    took = time.monotonic() - began
    print(
        f"{count} seeds in {took:.0f} s: {count / took:.0f} a second on {processes} processors, "
        f"{seconds / count * 1e3:.1f} ms each; {failed} broken"
    )
    return 1 if failed else 0


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="show the history of one seed")
    parser.add_argument("--seeds", action="append", help="first..last, or one: run them and show what broke")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", "tests.sim.run", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"PYTHONHASHSEED": "0"})
    if arguments.seed is not None:
        outcome = run_seed(arguments.seed)
        _show(outcome, plan_of(arguments.seed))
        return 1 if outcome.broken else 0
    if not arguments.seeds:
        parser.error("give --seed or --seeds")
    return _run_all([_span(text) for text in arguments.seeds], arguments.processes)


if __name__ == "__main__":
    sys.exit(main())
