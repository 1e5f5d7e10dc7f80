"""Small files that outlive a sidecar: put in place at a stroke, read within a bound."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from kv_types.errors import InvalidArgumentError


def write_whole(path: Path, data: bytes) -> None:
    """Put a file of mode 0600 in the place of the old one, on the disk before it is there. Raises OSError; the old stays then."""
    beside = path.with_name(path.name + ".new")
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    put_in_place(path, data, beside=beside, mode=0o600)


def put_in_place(path: Path, data: bytes, *, beside: Path, mode: int, exact_mode: int | None = None) -> None:
    """Write a new file `beside`, and have it take the place of `path` when it is on the disk. Raises OSError.

    It is made with `mode` less the umask; `exact_mode` heeds none. Whatever breaks it off, the old file stays, and alone.
    """
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as target:
            if exact_mode is not None:
                os.fchmod(target.fileno(), exact_mode)
            target.write(data)
            target.flush()
            os.fsync(target.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


async def in_thread_to_its_end(write: Callable[[], None]) -> None:
    """Write in a thread. Whoever is cancelled meanwhile goes on when that is over: no later write of the file overtakes it.

    `write` raises nothing.
    """
    writing = asyncio.ensure_future(asyncio.to_thread(write))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        raise


def read_whole(path: Path, *, bytes_max: int) -> bytes | None:
    """All of a regular file; None: there is none. Raises OSError, InvalidArgumentError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidArgumentError(f"{path} is no regular file; move it away")
        with open(descriptor, "rb", closefd=False) as source:
            data = source.read(bytes_max + 1)
    finally:
        os.close(descriptor)
    if len(data) > bytes_max:
        raise InvalidArgumentError(f"{path} has more than {bytes_max} bytes; remove it")
    return data
