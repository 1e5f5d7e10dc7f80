"""Files of results: checked before the work, and put in place at a stroke after it, so that no end leaves half of one."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from kv_types.errors import ConfigError
from sidecar.kept_files import put_in_place

_NOT_REPLACEABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV)
"""A folder that takes no new file, or a file that is mounted by itself, may be written to all the same."""


def check_result_file(path: Path, *, option: str) -> None:
    """Find out before hours of work that nothing could be written there. Changes nothing. Raises ConfigError."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        folder = path.resolve().parent
        if not folder.is_dir():
            raise _cannot(path, option, f"there is no folder {folder}") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise _cannot(path, option, os.strerror(errno.EACCES)) from None
        return
    except OSError as error:
        raise _cannot(path, option, error.strerror or str(error)) from error
    if stat.S_ISDIR(kind):
        raise _cannot(path, option, os.strerror(errno.EISDIR))
    if not os.access(path, os.W_OK):
        raise _cannot(path, option, os.strerror(errno.EACCES))


def write_result_file(path: Path, data: bytes, *, option: str) -> None:
    """Write a file; where that fails, or is broken off, what stood there before still does. Raises ConfigError.

    A pipe or a device is written to, a link is followed, and a file that can't be replaced is overwritten.
    """
    try:
        if _is_written_into(path):
            path.write_bytes(data)
            return
        try:
            _replace(path.resolve(), data)
        except OSError as error:
            if error.errno not in _NOT_REPLACEABLE or not path.exists():
                raise
            path.write_bytes(data)
    except OSError as error:
        raise _cannot(path, option, error.strerror or str(error)) from error


def _is_written_into(path: Path) -> bool:
    """Whether it is no file of its own: /dev/stdout is what somebody else has open, though it were a regular file."""
    return (path.exists() and not path.is_file()) or path.absolute().is_relative_to("/dev")


def _replace(place: Path, data: bytes) -> None:
    beside = place.with_name(f".{place.name[:200]}.{os.getpid()}.new")
    kept = stat.S_IMODE(place.stat().st_mode) if place.exists() else None
    put_in_place(place, data, beside=beside, mode=0o666, exact_mode=kept)


def _cannot(path: Path, option: str, why: str) -> ConfigError:
    return ConfigError(f"{option}: {path} can't be written: {why}")
