"""Which copy routines the arena uses: the one named in the settings, else the fastest by a measurement at start."""

from __future__ import annotations

from cache_l2 import _native
from kv_types.errors import ConfigError
from sidecar.logs import logger

_COLD_SAMPLE_BYTES = 1024 * 1024
_WARM_SAMPLE_BYTES = 256 * 1024
"""Small enough to stay in the inner caches between the write and the copy."""

_log = logger("copy")


def choose_copy_kernels(name: str | None) -> tuple[int, int]:
    """Return the kernels' numbers for cold and for warm destinations: the named one for both, or by measurement for None.

    Raises ConfigError for a name that this machine does not have.
    """
    if name is None:
        return _fastest(_COLD_SAMPLE_BYTES)[0], _fastest(_WARM_SAMPLE_BYTES)[1]
    if name not in _native.COPY_KERNELS:
        raise ConfigError(
            f"copy_kernel {name!r} is not one of this machine's: {', '.join(sorted(_native.COPY_KERNELS))}; or write auto"
        )
    number = _native.COPY_KERNELS.index(name)
    return number, number


def _fastest(sample_bytes: int) -> tuple[int, int]:
    (cold, warm), seconds = _native.calibrate_copy(bytes=sample_bytes)
    _log.info(
        "copy kernels measured",
        sample_bytes=sample_bytes,
        cold=_native.COPY_KERNELS[cold],
        warm=_native.COPY_KERNELS[warm],
        cold_us={kernel: round(cold_s * 1e6, 1) for kernel, (cold_s, _) in seconds.items()},
        warm_us={kernel: round(warm_s * 1e6, 1) for kernel, (_, warm_s) in seconds.items()},
    )
    return cold, warm
