"""Runs seeds under one mutation, in a process of its own: `python -m tests.sim.mutations.replay NUMBER FIRST [LAST]`.

Prints the first seed that breaks what the mutation must break: seed, validator, what was broken.
"""

from __future__ import annotations

import gc
import os
import sys

from tests.sim.mutations.patching import apply
from tests.sim.mutations.table import MUTATIONS


def main(number: str, first: int, last: int) -> int:
    """Return 0 when a seed finds it."""
    mutation = next(one for one in MUTATIONS if one.number == number)
    apply(mutation)
    from tests.sim.run import run_seed

    gc.disable()
    for seed in range(first, last + 1):
        outcome = run_seed(seed)
        if outcome.validator in mutation.breaks:
            print(seed, outcome.validator, outcome.broken, flush=True)
            return 0
        if outcome.broken.startswith("Crashed: NameError"):
            raise SystemExit(f"the patch can't run: {outcome.broken}")
        if seed % 50 == 0:
            gc.collect()
    return 1


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        raise SystemExit("seeds are histories only with PYTHONHASHSEED=0")
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int((sys.argv[3:] or sys.argv[2:])[0])))
