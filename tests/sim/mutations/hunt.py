"""Looks for seeds that find the mutations, and writes them to found.json: `python -m tests.sim.mutations.hunt [NUMBER…]`.

Without numbers: those that nothing finds yet. A seed counts only if it is clean without the mutation.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

from tests.sim.mutations.mutation import Mutation
from tests.sim.mutations.patching import ROOT
from tests.sim.mutations.table import FOUND, MUTATIONS, Finding, found
from tests.sim.profiles import PROFILE

SLICE = 200
"""Seeds of one process."""


def replay(number: str, first: int, last: int) -> Finding | None:
    """The first seed of a range that finds a mutation; raises CalledProcessError where the replay itself fails."""
    done = subprocess.run(
        [
            sys.executable, "-W", "ignore::RuntimeWarning",  # of tasks of a process that died before they had begun
            "-m", "tests.sim.mutations.replay", number, str(first), str(last),
        ],
        cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 1 and not done.stderr:
        return None
    if done.returncode != 0:
        raise RuntimeError(f"mutation {number}, seeds {first} to {last}: {done.stderr[-2000:]}")
    seed, validator, *_ = done.stdout.split()
    return Finding(int(seed), validator)


def is_clean(*seeds: int) -> bool:
    """Whether seeds break nothing when the product is whole."""
    spans = [word for seed in seeds for word in ("--seeds", str(seed))]
    command = [sys.executable, "-m", "tests.sim.run", "--processes", "1", *spans]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def _slices(mutation: Mutation, seeds: int) -> Iterator[tuple[int, int]]:
    """In its own profile and among all, by turns."""
    for begin in range(0, seeds, SLICE):
        for base in dict.fromkeys((mutation.profile * PROFILE, 0)):
            yield base + begin, base + begin + SLICE - 1


def hunt(mutation: Mutation, seeds: int) -> Finding | None:
    """Look through so many seeds of each profile."""
    for first, last in _slices(mutation, seeds):
        at = first
        while at <= last:
            finding = replay(mutation.number, at, last)
            if finding is None:
                break
            if is_clean(finding.seed):
                return finding
            at = finding.seed + 1
    return None


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*")
    parser.add_argument("--seeds", type=int, default=2000, help="how many to look through, of each profile")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    known = found()
    wanted = [
        one
        for one in MUTATIONS
        if one.number in arguments.numbers or (not arguments.numbers and one.number not in known)
    ]
    with ThreadPoolExecutor(arguments.processes) as pool:
        hunts = {pool.submit(hunt, one, arguments.seeds): one for one in wanted}
        for finished in as_completed(hunts):
            number, finding = hunts[finished].number, finished.result()
            print(f"{number}: {hunts[finished].title}: {finding}", flush=True)
            if finding is not None:
                known[number] = finding
                order = [one.number for one in MUTATIONS]
                kept = {one: known[one] for one in sorted(known, key=order.index)}
                FOUND.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
