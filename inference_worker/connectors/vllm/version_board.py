"""A page of memory on which a worker writes the version of its weights, so that the scheduler sees it at each look-up."""

from __future__ import annotations

import mmap
import os
import zlib
from dataclasses import dataclass

from kv_types.engine_limits import VERSION_BOARD_READS_MAX
from kv_types.errors import ClosedError, ConfigError, ProtocolError
from kv_types.limits import NAME_BYTES_MAX
from kv_types.namespace import Weights

_PAGE_BYTES = 4096
_MAGIC = int.from_bytes(b"skvboard", "little")
# Words of 64 bits: each is stored and loaded at once.
_WORD_MAGIC, _WORD_SEQUENCE, _WORD_NUMBER, _WORD_WATCHED, _WORD_LENGTH, _WORD_CHECK = range(6)
_TEXT = 64
assert _TEXT + NAME_BYTES_MAX <= _PAGE_BYTES, "a version fits the page"

Reading = tuple[int, str | None]
"""How many versions were written so far, and the last; None before the first."""


@dataclass(slots=True)
class _Seen:
    """What was read at an even sequence number."""

    sequence: int = -1
    reading: Reading = (0, None)


class VersionBoard:
    """One writer, the process that created it; readers map it through /proc. A forked child must not write.

    The memory is there for as long as somebody maps it: a reader goes on reading what a worker that died wrote last.
    """

    def __init__(self, descriptor: int, *, owner_pid: int | None) -> None:
        """Use `create` or `open`. `owner_pid`: the writer's, for the writer."""
        self._owner_pid = owner_pid
        self._descriptor = descriptor if owner_pid is not None else -1
        self._memory = mmap.mmap(descriptor, _PAGE_BYTES)
        self._words = memoryview(self._memory).cast("Q")
        self._seen = _Seen()

    @classmethod
    def create(cls) -> VersionBoard:
        """Make one on which nothing is written yet. Raises OSError where there is no memory."""
        descriptor = os.memfd_create("stratakv-weights-version", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _PAGE_BYTES)
        board = cls(descriptor, owner_pid=os.getpid())
        board._words[_WORD_CHECK] = _check_of(0, b"")
        board._words[_WORD_MAGIC] = _MAGIC
        return board

    @classmethod
    def open(cls, pid: int, descriptor: int) -> VersionBoard:
        """Map the board of another process, as its `handle` names it, and mark it as watched.

        Raises ConfigError where it can't be reached from here, ProtocolError for what is no such board.
        """
        path = f"/proc/{pid}/fd/{descriptor}"
        try:
            own = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(
                f"the version board of worker {pid} can't be opened ({error.strerror}): scheduler and workers must run "
                "as one user, in one PID namespace"
            ) from error
        try:
            if os.fstat(own).st_size != _PAGE_BYTES:
                raise ProtocolError(f"{path} is no version board: it has {os.fstat(own).st_size} bytes")
            board = cls(own, owner_pid=None)
        except (OSError, ValueError) as error:
            raise ProtocolError(f"{path} is no version board: it can't be mapped ({error})") from error
        finally:
            os.close(own)
        if board._words[_WORD_MAGIC] != _MAGIC:
            board.close()
            raise ProtocolError(f"{path} is no version board: its first bytes are others")
        board._words[_WORD_WATCHED] = 1
        return board

    @property
    def handle(self) -> tuple[int, int]:
        """(pid, descriptor) for `open` in another process. Raises ClosedError for a reader, and once it is closed."""
        if self._owner_pid is None or self._descriptor < 0:
            raise ClosedError("only the process that created a version board hands it out, while it is open")
        return self._owner_pid, self._descriptor

    @property
    def is_watched(self) -> bool:
        """Whether anybody has mapped it. Raises ClosedError."""
        return self._open_words()[_WORD_WATCHED] != 0

    def publish(self, version: str) -> int:
        """Write a version; returns its number, which grows by one each time.

        Raises InvalidArgumentError for what is no version, ClosedError in another process than the one that created it.
        """
        Weights(version=version)
        words = self._open_words()
        if self._owner_pid != os.getpid():
            raise ClosedError("this version board belongs to the process that created it")
        text, number = version.encode(), words[_WORD_NUMBER] + 1
        words[_WORD_SEQUENCE] += 1  # odd: being written
        words[_WORD_NUMBER], words[_WORD_LENGTH] = number, len(text)
        self._memory[_TEXT : _TEXT + len(text)] = text
        words[_WORD_CHECK] = _check_of(number, text)
        words[_WORD_SEQUENCE] += 1
        return int(number)

    def read(self) -> Reading | None:
        """The number and the version that is written; None: it is being written at this moment, or its writer died at it.

        Raises ClosedError.
        """
        words, seen = self._open_words(), self._seen
        for _ in range(VERSION_BOARD_READS_MAX):
            sequence = words[_WORD_SEQUENCE]
            if sequence == seen.sequence:
                return seen.reading
            number, length = words[_WORD_NUMBER], min(words[_WORD_LENGTH], NAME_BYTES_MAX)
            text = self._memory[_TEXT : _TEXT + length]
            # The check also tells what a processor that reorders loads would have mixed.
            if (
                sequence % 2
                or words[_WORD_CHECK] != _check_of(number, text)
                or words[_WORD_SEQUENCE] != sequence
            ):
                continue
            self._seen = _Seen(sequence, (number, text.decode() if number else None))
            return self._seen.reading
        return None

    def close(self) -> None:
        """Unmap it; again does nothing. Readers keep their own mapping."""
        if not self._memory.closed:
            self._words.release()
            self._memory.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open_words(self) -> memoryview[int]:
        if self._memory.closed:
            raise ClosedError("this version board was closed")
        return self._words


def _check_of(number: int, text: bytes) -> int:
    return zlib.crc32(text, zlib.crc32(number.to_bytes(8, "little")))
