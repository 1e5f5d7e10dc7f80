"""A worker of a fleet whose client breaks a promise, to see that tests of fleets notice. Arguments: the rule, then the plan."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cache_l2.attach_loads import Wanted
from cache_l2.reader import AttachedArena
from kv_types.loading import ComputeCost
from tests.fleet.worker import main

_PATIENCE_S = 5.0
_load = AttachedArena.load


def _wait_patiently(
    arena: AttachedArena,
    rows: Sequence[Wanted],
    *,
    deadline_s: float,
    group: bool,
    compute: ComputeCost | None,
) -> Any:
    """Its deadline is nothing to it."""
    return _load(arena, rows, deadline_s=_PATIENCE_S, group=group, compute=compute)


RULES: Mapping[str, Callable[[], None]] = {
    "waits for ever": lambda: setattr(AttachedArena, "load", _wait_patiently),
}

if __name__ == "__main__":
    RULES[sys.argv.pop(1)]()
    main(sys.argv[1:])
