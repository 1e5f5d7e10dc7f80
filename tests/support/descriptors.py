"""Which descriptors this process has open, and which of them it had not before."""

from __future__ import annotations

import contextlib
import gc
import os
from collections import Counter
from typing import TypeAlias

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


def _listed() -> Descriptors:
    found: Descriptors = Counter()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  (names are all that is wanted)
        with contextlib.suppress(
            FileNotFoundError
        ):  # the listing's own, and what another thread closes meanwhile
            found[os.readlink(f"/proc/self/fd/{name}")] += 1  # noqa: PTH115
    return found
