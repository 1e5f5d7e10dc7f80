"""The C library's allocator, told that megabyte messages come and go: freed memory stays mapped for the next one.

By default glibc gives a freed megabyte back to the kernel, and the next message faults it in again page by page.
That alone cost up to 1 ms for a 1 MiB page served, twice the time of an empty call.
"""

from __future__ import annotations

import ctypes
from functools import cache

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_KEEP_BYTES = 64 * 1024 * 1024
_TOP_PAD_BYTES = 16 * 1024 * 1024
_MMAP_BYTES = 32 * 1024 * 1024  # the largest that glibc takes


@cache
def keep_freed_memory() -> bool:
    """For a process of our own: keep up to 64 MiB of freed memory mapped. False where the C library has no such knob."""
    library = _library("mallopt")
    if library is None:
        return False
    library.mallopt.argtypes, library.mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    wanted = {
        _M_MMAP_THRESHOLD: _MMAP_BYTES,
        _M_TRIM_THRESHOLD: _KEEP_BYTES,
        _M_TOP_PAD: _TOP_PAD_BYTES,
    }
    return all(library.mallopt(parameter, value) == 1 for parameter, value in wanted.items())


@cache
def teach_large_messages() -> bool:
    """For a process that is not ours: free one large block, untouched, as any program might.

    glibc takes its size as the size of what this program allocates and frees often, and from then on keeps that
    much mapped. Nothing that the program has set by mallopt or the environment is overridden.
    """
    library = _library("malloc")
    if library is None:
        return False
    library.malloc.argtypes, library.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    library.free.argtypes, library.free.restype = (ctypes.c_void_p,), None
    block = library.malloc(_MMAP_BYTES - 8192)
    library.free(block)
    return block is not None


def _library(symbol: str) -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
    except OSError:
        return None
    return library if hasattr(library, symbol) else None
