"""Which copy routines the arena uses: the one named in the settings, else the fastest by a measurement at start."""

from __future__ import annotations

from cache_l2 import _native
from kv_types.errors import ConfigError
from sidecar.logs import logger

_LARGE_SAMPLE_BYTES = 1024 * 1024
_SMALL_SAMPLE_BYTES = 128 * 1024

_log = logger("copy")


def choose_copy_kernels(name: str | None) -> tuple[int, int]:
    """Return the kernels' numbers for large and for small calls: the named one for both, or by measurement for None.

    Raises ConfigError for a name that this machine does not have.
    """
    if name is None:
        return _fastest(_LARGE_SAMPLE_BYTES), _fastest(_SMALL_SAMPLE_BYTES)
    if name not in _native.COPY_KERNELS:
        raise ConfigError(
            f"copy_kernel {name!r} is not one of this machine's: {', '.join(sorted(_native.COPY_KERNELS))}; or write auto"
        )
    number = _native.COPY_KERNELS.index(name)
    return number, number


def _fastest(call_bytes: int) -> int:
    best, seconds = _native.calibrate_copy(bytes=call_bytes)
    _log.info(
        "copy kernel chosen",
        kernel=_native.COPY_KERNELS[best],
        call_bytes=call_bytes,
        cold_us={kernel: round(cold * 1e6, 1) for kernel, (cold, _) in seconds.items()},
        warm_us={kernel: round(warm * 1e6, 1) for kernel, (_, warm) in seconds.items()},
    )
    return best
