"""Whether a call kept its deadline; time for which the machine gave us no processor is not the call's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def within(deadline_s: float) -> float:
    """The longest that a call of this deadline may take."""
    return deadline_s + max(0.2 * deadline_s, 0.02)


def timed(call: Callable[[], Any], *, deadline_s: float) -> Any:
    """Call, and check that the answer came in time; time that our threads stood in the run queue is not the call's."""
    waited_s, began = run_queue_s(), time.monotonic()
    answer = call()
    took_s, waited_s = time.monotonic() - began, max(0.0, run_queue_s() - waited_s)
    assert took_s <= within(deadline_s) + waited_s, (
        f"{took_s:.3f} s with a deadline of {deadline_s} s, {waited_s:.3f} s of it without a CPU"
    )
    return answer


def run_queue_s() -> float:
    """Seconds that the threads of this process were ready to run and had no CPU; those of ended threads drop out."""
    total_ns = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total_ns += int((task / "schedstat").read_text().split()[1])
    return total_ns / 1e9
