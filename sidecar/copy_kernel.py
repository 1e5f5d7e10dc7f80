"""Which copy routine the arena uses: the one named in the settings, else the fastest by a measurement at start."""

from __future__ import annotations

from cache_l2 import _native
from kv_types.errors import ConfigError
from sidecar.logs import logger

_log = logger("copy")


def choose_copy_kernel(name: str | None) -> int:
    """Return the number of a kernel by its name, or of the fastest for None; raises ConfigError for an unknown one."""
    best, seconds = _native.calibrate_copy()
    if name is not None and name not in seconds:
        raise ConfigError(
            f"copy_kernel {name!r} is not one of this machine's: {', '.join(sorted(seconds))}; or write auto"
        )
    chosen = best if name is None else _native.COPY_KERNELS.index(name)
    _log.info(
        "copy kernel chosen",
        kernel=_native.COPY_KERNELS[chosen],
        measured=name is None,
        cold_us={kernel: round(cold * 1e6, 1) for kernel, (cold, _) in seconds.items()},
        warm_us={kernel: round(warm * 1e6, 1) for kernel, (_, warm) in seconds.items()},
    )
    return chosen
