"""Standard streams of the command, which may be closed, full or read by nobody: what that does to it, once for all verbs."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_INPUT, _OUTPUT, _ERRORS = 0, 1, 2


class OutputError(Exception):
    """Standard output takes no more. No OSError: what a file or a socket said is something else.

    `is_unread`: its reader has read enough and is gone, as `head` is.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.is_unread = error.errno == errno.EPIPE


class _Output(io.FileIO):
    """Standard output: says once that it takes no more, and drops what comes then."""

    has_failed = False

    def write(self, data: ReadableBuffer, /) -> int:
        """Write or drop. Raises OutputError the first time that it fails."""
        if not self.has_failed:
            try:
                return super().write(data)
            except OSError as error:
                self.has_failed = True
                raise OutputError(error) from error
        return memoryview(data).nbytes


class _Errors(io.FileIO):
    """Standard error: what it does not take is dropped, for there is nobody to tell; later lines may find room again."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write or drop."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def take_streams() -> None:
    """Open what is closed (nothing to read, nobody to hear), and let no failure of a stream become a traceback.

    Descriptors come first: where one of the three is free, the next socket would become standard output.
    """
    for number in (_INPUT, _OUTPUT, _ERRORS):
        if not _is_open(number):
            _open_null(number)
    if sys.stdin is None:
        sys.stdin = open(_INPUT, encoding="utf-8", closefd=False)  # noqa: SIM115 - a descriptor, open to the end
    sys.stdout = _text(_Output(_OUTPUT, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Errors(_ERRORS, "w", closefd=False), sys.stderr)


def _text(file: io.FileIO, before: TextIO | None) -> TextIO:
    """A text stream over a file, as the one before it; names are anybody's, and a terminal may know ASCII alone."""
    if before is not None:
        before.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding="utf-8" if before is None else before.encoding,
        errors="backslashreplace",
        line_buffering=before is None or bool(before.line_buffering),
    )


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _open_null(number: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != number:
        os.dup2(null, number)
        os.close(null)
    else:
        os.set_inheritable(null, True)
