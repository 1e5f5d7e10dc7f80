"""A trace as it is recorded: plain or packed, and whole lines in the file however its writing ends."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import zstandard

from kv_types.errors import ConfigError

_BLOCK_BYTES = 4 * 1024 * 1024
"""Lines that are packed together, each block a stream of its own: a file that was cut after any of them can be read."""

Pack = Callable[[bytes], bytes]


class TraceWriter(Protocol):
    """Where lines of a trace go: a FileWriter, or a stream that somebody else has open, which raises OSError."""

    def write(self, line: bytes, /) -> object:
        """Take a line with its end. Raises ConfigError where it can't be written."""
        ...

    def flush(self) -> None:
        """Have whoever reads the file see all lines, where they can be seen one by one. Raises ConfigError."""
        ...


class FileWriter:
    """Lines to a new file. One that can't be written any further ends with the last block that was."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self._pack = _pack_of(path)
        self._lines = bytearray()
        self._whole_bytes = 0

    def write(self, line: bytes) -> None:
        """As TraceWriter's."""
        self._lines += line
        if len(self._lines) >= _BLOCK_BYTES:
            self._put()

    def flush(self) -> None:
        """As TraceWriter's. What is packed waits for its block: many small ones would take more room."""
        if self._pack is None:
            self._put()

    def end(self) -> None:
        """Write what is left. Raises ConfigError."""
        if self._lines or not self._whole_bytes:
            self._put()

    def _put(self) -> None:
        block = bytes(self._lines)
        data = memoryview(block if self._pack is None else self._pack(block))
        size = len(data)
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except BaseException as error:  # Ctrl-C too, after which `end` writes the block anew
            os.ftruncate(self._descriptor, self._whole_bytes)
            os.lseek(self._descriptor, self._whole_bytes, os.SEEK_SET)
            if not isinstance(error, OSError):
                raise
            self._lines.clear()
            raise ConfigError(
                f"{self._path} can't be written any further: {error.strerror or error}; what came before is in it"
            ) from error
        self._whole_bytes += size
        self._lines.clear()


@contextlib.contextmanager
def new_trace(path: Path) -> Iterator[FileWriter]:
    """A file of this name for the block; one that is there already stays as it is. Raises ConfigError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists, and a recording is worth keeping: name another file") from error
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror or error}") from error
    try:
        writer = FileWriter(descriptor, path)
        try:
            yield writer
        finally:
            writer.end()
    finally:
        os.close(descriptor)


def _pack_of(path: Path) -> Pack | None:
    if path.suffix == ".gz":
        return gzip.compress
    if path.suffix == ".zst":
        return zstandard.ZstdCompressor().compress
    return None
