"""Which descriptors this process has open, and which of them it had not before."""

from __future__ import annotations

import contextlib
import gc
import os
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from tests.support.polling import wait_until

Descriptors: TypeAlias = "Counter[str]"
"""What the descriptors of a process name (`socket:[inode]`, a path, `anon_inode:[pidfd]`), and how many name it."""


def open_descriptors() -> Descriptors:
    """What is open now; what earlier tests left as garbage is closed first, so that it hides nothing later."""
    gc.collect()
    return _listed()


def descriptors_since(before: Descriptors) -> Descriptors:
    """What is open now beyond what was open `before`.

    Their number alone would not tell: threads and garbage of earlier tests close theirs at any time.
    """
    return _listed() - before


def wait_until_closed(
    before: Descriptors, *, kept: int = 0, settle: Callable[[], object] = lambda: None
) -> None:
    """Wait until all but `kept` are closed that were not open `before`; raises AssertionError naming what still is.

    `settle` is called before each look.
    """

    def left() -> Descriptors:
        settle()
        return descriptors_since(before)

    wait_until(
        lambda: left().total() == kept, what=lambda: f"every descriptor to be closed (left: {dict(left())})"
    )


def _listed() -> Descriptors:
    found: Descriptors = Counter()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  (names are all that is wanted)
        with contextlib.suppress(
            FileNotFoundError
        ):  # the listing's own, and what another thread closes meanwhile
            found[os.readlink(f"/proc/self/fd/{name}")] += 1  # noqa: PTH115
    return found
