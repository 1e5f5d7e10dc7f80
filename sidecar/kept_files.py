"""Small files that outlive a sidecar: put in place at a stroke, and read only where they are what they must be."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from kv_types.errors import InvalidArgumentError


def write_whole(path: Path, data: bytes) -> None:
    """Put a file of mode 0600 in place at a stroke; raises OSError, and what was there stays."""
    beside = path.with_name(path.name + ".new")
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def read_whole(path: Path, *, bytes_max: int) -> bytes | None:
    """The file's bytes; None: there is none. Never waits, as who opens a pipe does. Raises OSError, InvalidArgumentError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InvalidArgumentError("it is no regular file; move it away")
    with os.fdopen(fd, "rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise InvalidArgumentError(f"it has more than {bytes_max} bytes; remove it")
    return data
