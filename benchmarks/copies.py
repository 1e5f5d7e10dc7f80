"""The yardstick: plain copies by numpy and by the C library, cold on both sides and into a warm destination."""

from __future__ import annotations

import ctypes

import numpy as np

from benchmarks.timing import Scenario
from benchmarks.workload import STRIDE, ColdBuffers


def plain_copies(batch_bytes: int, *, ring_bytes: int, into_shared: bool = False) -> list[Scenario]:
    """np.copyto and memcpy of `batch_bytes` between the kinds of memory that the measured call moves them between.

    One side is shared memory as the arena's pages are, the other a worker's own: read from the arena, or with
    `into_shared` written to it. `…_cold` copies from cold source to cold destination, `…_warm` from a cold source
    into a warm destination.
    """
    sources = ColdBuffers(batch_bytes=batch_bytes, ring_bytes=ring_bytes, shared=not into_shared)
    destinations = ColdBuffers(batch_bytes=batch_bytes, ring_bytes=ring_bytes, shared=into_shared)
    warm = np.ones(batch_bytes, dtype=np.uint8)

    warm_address = warm.ctypes.data
    half, quarter = sources.count // 2, sources.count // 4

    # Each of the four walks its own part of the rings in big steps, so that none finds what another has just touched.
    def copyto(number: int) -> None:
        np.copyto(destinations.batch(number * STRIDE), sources.batch(number * STRIDE))

    def memcpy(number: int) -> None:
        at = number * STRIDE + half
        ctypes.memmove(destinations.address(at), sources.address(at), batch_bytes)

    def copyto_warm(number: int) -> None:
        np.copyto(warm, sources.batch(number * STRIDE + quarter))

    def memcpy_warm(number: int) -> None:
        ctypes.memmove(warm_address, sources.address(number * STRIDE + half + quarter), batch_bytes)

    def warm_up(_: int) -> None:
        warm[:] = 1

    return [
        Scenario("copyto_cold", copyto),
        Scenario("memcpy_cold", memcpy),
        Scenario("copyto_warm", copyto_warm, prepare=warm_up),
        Scenario("memcpy_warm", memcpy_warm, prepare=warm_up),
    ]
