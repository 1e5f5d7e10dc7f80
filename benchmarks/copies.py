"""The yardstick: plain copies by numpy and by the C library, cold on both sides and into a warm destination."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.timing import Scenario
from benchmarks.workload import Bytes, ColdBuffers, pages_of, place

Batches = Sequence[Sequence[Bytes]]
"""Batches of pages, each uint8 [page_bytes]."""


def as_batches(buffers: ColdBuffers, page_bytes: int) -> Batches:
    """The batches of a ring, cut into pages."""
    return [pages_of(buffers.batch(number), page_bytes) for number in range(buffers.count)]


def plain_copies(sources: Batches, destinations: Batches) -> list[Scenario]:
    """np.copyto and memcpy of a batch, page by page.

    `…_cold` copies from cold source to cold destination, `…_warm` from a cold source into a warm destination.
    """
    warm = [np.ones_like(page) for page in destinations[0]]

    def warm_up(_: int) -> None:
        for page in warm:
            page[:] = 1

    # Parts 0 and 5 are the measured call's.
    def scenario(name: str, part: int, copy: Copy, *, into_warm: bool) -> Scenario:
        def run(number: int) -> None:
            source = sources[place(number, part, len(sources))]
            destination = destinations[place(number, part, len(destinations))]
            for to, page in zip(warm if into_warm else destination, source, strict=True):
                copy(to, page)

        return Scenario(name, run, prepare=warm_up if into_warm else None)

    return [
        scenario("copyto_cold", 1, np.copyto, into_warm=False),
        scenario("memcpy_cold", 2, memcpy, into_warm=False),
        scenario("copyto_warm", 3, np.copyto, into_warm=True),
        scenario("memcpy_warm", 4, memcpy, into_warm=True),
    ]


Copy = Callable[[Bytes, Bytes], object]

_memmove = ctypes.CDLL(None).memmove
_memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def memcpy(to: Bytes, page: Bytes) -> None:
    """The C library's."""
    _memmove(to.ctypes.data, page.ctypes.data, page.nbytes)
