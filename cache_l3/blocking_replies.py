"""Replies read from a blocking socket: the parts of RESP2 that a data path needs, and a record straight into its place."""

from __future__ import annotations

import re
import socket
import struct

from cache_l3._native import xxh3_64
from cache_l3.data_path import (
    ABSENT,
    Absent,
    Got,
    HeaderShape,
    Lost,
    Malformed,
    Reply,
    ServerError,
    ServerRefused,
    TooLarge,
)
from kv_types.limits import L3_LINE_BYTES_MAX, L3_REPLY_BYTES_MAX

_BUFFER_BYTES = 16 * 1024
"""One TLS record; more never comes at once."""
_INT64 = range(-(2**63), 2**63)
_NUMBER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_SIZE = struct.Struct("<I")


class ReplyStream:
    """What one connection receives. Raises Lost when it ends and Malformed for what is no reply; it is of no use then."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._begin = 0
        self._end = 0
        self.bytes_in = 0

    @property
    def waiting(self) -> int:
        """Bytes that were received and not read."""
        return self._end - self._begin

    def line(self) -> bytes:
        """The next line without its end."""
        taken = bytearray()
        while (at := self._buffer.find(b"\n", self._begin, self._end)) < 0:
            taken += self._take(self.waiting)
            if len(taken) > L3_LINE_BYTES_MAX:
                raise Malformed(f"a line without an end: {bytes(taken[:64])!r}", was_sent=True)
            self._fill()
        taken += self._take(at + 1 - self._begin)
        if not 3 <= len(taken) <= L3_LINE_BYTES_MAX + 1 or taken[-2:] != b"\r\n" or taken.count(b"\r") != 1:
            raise Malformed(f"no line of RESP: {bytes(taken[:64])!r}", was_sent=True)
        return bytes(taken[:-2])

    def exactly(self, count: int) -> bytes:
        """The next `count` bytes; they are few."""
        taken = bytearray(count)
        self.into(memoryview(taken))
        return bytes(taken)

    def into(self, place: memoryview) -> None:
        """Fill a place with the next bytes."""
        done = min(self.waiting, len(place))
        place[:done] = self._take(done)
        while done < len(place):
            done += self._received(self._connection.recv_into(place[done:]))

    def skip(self, count: int) -> None:
        """Throw the next bytes away."""
        while count > 0:
            if not self.waiting:
                self._fill()
            count -= len(self._take(min(count, self.waiting)))

    def end_of_string(self) -> None:
        """What ends a bulk string."""
        if self.exactly(2) != b"\r\n":
            raise Malformed("a reply is longer than it said", was_sent=True)

    def _take(self, count: int) -> memoryview:
        taken = self._view[self._begin : self._begin + count]
        self._begin += count
        return taken

    def _fill(self) -> None:
        self._begin = 0
        self._end = 0
        self._end = self._received(self._connection.recv_into(self._buffer))

    def _received(self, count: int) -> int:
        if count == 0:
            raise Lost("the server closed the connection", was_sent=True)
        self.bytes_in += count
        return count


def skip_asking(stream: ReplyStream) -> None:
    """The reply to ASKING, whatever it says: that to the command after it decides."""
    if (line := stream.line())[:1] not in {b"+", b"-"}:
        raise Malformed(f"no reply to ASKING: {line[:64]!r}", was_sent=True)


def read_record(stream: ReplyStream, place: memoryview, shape: HeaderShape) -> Got | Absent:
    """The reply to a GET of a record. Raises ServerRefused besides."""
    line = stream.line()
    raise_refusal(line)
    left = _number(line[1:]) if line[:1] == b"$" else None
    if left is None or left < -1:
        raise Malformed(f"no reply of this command: {line[:64]!r}", was_sent=True)
    if left == -1:
        return ABSENT
    if left > shape.bytes_max + 2 * len(place):
        raise TooLarge(f"a reply of {left} bytes is far more than was asked for", was_sent=True)
    start = stream.exactly(min(left, shape.size_at + _SIZE.size))
    said = _SIZE.unpack_from(start, shape.size_at)[0] if len(start) == shape.size_at + _SIZE.size else 0
    is_possible = shape.bytes_min <= said <= min(shape.bytes_max, left)
    header_bytes = said if is_possible else min(left, shape.bytes_max)
    header = start + stream.exactly(header_bytes - len(start))
    got = _read_payload(stream, header, left - len(header), place if is_possible else place[:0])
    stream.end_of_string()
    return got


def _read_payload(stream: ReplyStream, header: bytes, stored_bytes: int, place: memoryview) -> Got:
    if stored_bytes > len(place) or not len(place):
        stream.skip(stored_bytes)
        return Got(header, stored_bytes, in_place=False, stored=None, checksum=0)
    if stored_bytes == len(place):
        stream.into(place)
        return Got(header, stored_bytes, in_place=True, stored=None, checksum=xxh3_64(place))
    stored = bytearray(stored_bytes)
    stream.into(memoryview(stored))
    return Got(header, stored_bytes, in_place=False, stored=stored, checksum=xxh3_64(stored))


def read_stored(stream: ReplyStream) -> None:
    """The reply to a SET. Raises ServerRefused besides."""
    line = stream.line()
    raise_refusal(line)
    if line != b"+OK":
        raise Malformed(f"no reply of this command: {line[:64]!r}", was_sent=True)


def read_reply(stream: ReplyStream) -> Reply:
    """The reply to one command of a question."""
    line = stream.line()
    kind, rest = line[:1], line[1:]
    if kind == b"+":
        return rest
    if kind == b"-":
        return ServerError(_text(rest))
    number = _number(rest)
    if kind == b":" and number is not None:
        return number
    if kind != b"$" or number is None or number < -1:
        raise Malformed(f"no reply of this command: {line[:64]!r}", was_sent=True)
    if number == -1:
        return None
    if number > L3_REPLY_BYTES_MAX:
        raise TooLarge(f"a reply of {number} bytes is far more than was asked for", was_sent=True)
    text = stream.exactly(number)
    stream.end_of_string()
    return text


def raise_refusal(line: bytes) -> None:
    """Raise ServerRefused for a line that is an error."""
    if line[:1] == b"-":
        raise ServerRefused(_text(line[1:]))


def _text(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace")


def _number(digits: bytes) -> int | None:
    if _NUMBER.fullmatch(digits) is None or (number := int(digits)) not in _INT64:
        return None
    return number
