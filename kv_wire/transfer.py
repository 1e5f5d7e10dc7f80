"""Codec of the bulk messages, GetResponse and PutRequest: protobuf bytes with payloads copied once only.

protobuf's own classes copy a payload several times on its way out and in. These functions write and read
the same bytes (any protobuf implementation can be at the other end) around views of the caller's memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError

from kv_types import limits
from kv_types.errors import ProtocolError
from kv_wire.gen import cache_pb2

_HEADER_TAG = b"\x0a"  # field 1, length-delimited
_CHUNKS_TAG = b"\x12"  # field 2, length-delimited
_TRAILER_TAG = b"\x1a"  # field 3, length-delimited
_PAGE_TAG = b"\x08"  # field 1, varint
_OFFSET_TAG = b"\x10"  # field 2, varint
_DATA_TAG = b"\x1a"  # field 3, length-delimited
_CHECKSUM_TAG = b"\x21"  # field 4, 64-bit
_FIXED64 = struct.Struct("<Q")
_VARINT, _I64, _LENGTH, _I32 = 0, 1, 2, 5
_UINT32_MAX = 0xFFFF_FFFF
_UINT64_MAX = 0xFFFF_FFFF_FFFF_FFFF

CHUNK_OVERHEAD_BYTES = 64
"""More than the protobuf envelope of one chunk ever takes."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive bytes of one page: `data` is page `page` of the chain from byte `offset` on.

    `checksum` is XXH3-64 of the whole page in the page's last chunk, 0 before.
    """

    page: int
    offset: int
    data: memoryview
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class GetPart:
    """One message of a Get's answer."""

    header: cache_pb2.GetHeader | None
    chunks: Sequence[Chunk]
    trailer: cache_pb2.GetTrailer | None


@dataclass(frozen=True, slots=True)
class PutPart:
    """One message of a Put."""

    header: cache_pb2.PutHeader | None
    chunks: Sequence[Chunk]


class _Serializable(Protocol):
    def SerializeToString(self) -> bytes: ...


def encode_get_response(
    *,
    header: cache_pb2.GetHeader | None = None,
    chunks: Sequence[Chunk] = (),
    trailer: cache_pb2.GetTrailer | None = None,
) -> bytes:
    """Return the bytes of one GetResponse; payloads are copied once, into the result."""
    return _encode(header, chunks, trailer)


def encode_put_request(*, header: cache_pb2.PutHeader | None = None, chunks: Sequence[Chunk] = ()) -> bytes:
    """Return the bytes of one PutRequest; payloads are copied once, into the result."""
    return _encode(header, chunks, None)


def decode_get_response(message: bytes) -> GetPart:
    """Read one GetResponse; its chunks are views of `message`. Raises ProtocolError."""
    header, chunks, trailer = _decode(message, "GetResponse")
    return GetPart(
        header=None if header is None else _parse(cache_pb2.GetHeader(), header, "GetHeader"),
        chunks=chunks,
        trailer=None if trailer is None else _parse(cache_pb2.GetTrailer(), trailer, "GetTrailer"),
    )


def decode_put_request(message: bytes) -> PutPart:
    """Read one PutRequest; its chunks are views of `message`. Raises ProtocolError."""
    header, chunks, _ = _decode(message, "PutRequest")
    return PutPart(
        header=None if header is None else _parse(cache_pb2.PutHeader(), header, "PutHeader"), chunks=chunks
    )


def plan_chunks(
    page_bytes: int,
    *,
    chunk_bytes: int = limits.GRPC_CHUNK_BYTES,
    message_bytes: int = limits.GRPC_CHUNK_BYTES,
) -> tuple[int, int]:
    """Decide (bytes of one chunk, pages that share a message): large pages are cut, small ones share."""
    if page_bytes >= chunk_bytes:
        return chunk_bytes, 1
    together = message_bytes // (page_bytes + CHUNK_OVERHEAD_BYTES)
    return page_bytes, max(1, min(together, limits.GRPC_MESSAGE_CHUNKS_MAX))


def _encode(header: _Serializable | None, chunks: Sequence[Chunk], trailer: _Serializable | None) -> bytes:
    pieces: list[bytes | memoryview] = []
    if header is not None:
        body = header.SerializeToString()
        pieces += (_HEADER_TAG, _varint(len(body)), body)
    for chunk in chunks:
        _encode_chunk(pieces, chunk)
    if trailer is not None:
        body = trailer.SerializeToString()
        pieces += (_TRAILER_TAG, _varint(len(body)), body)
    return b"".join(pieces)


def _encode_chunk(pieces: list[bytes | memoryview], chunk: Chunk) -> None:
    data_bytes = chunk.data.nbytes
    start = b"".join(
        (_PAGE_TAG, _varint(chunk.page), _OFFSET_TAG, _varint(chunk.offset), _DATA_TAG, _varint(data_bytes))
    )
    end = _CHECKSUM_TAG + _FIXED64.pack(chunk.checksum) if chunk.checksum else b""
    pieces += (_CHUNKS_TAG, _varint(len(start) + data_bytes + len(end)), start, chunk.data, end)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def fits_one_message(pages: int, page_bytes: int) -> bool:
    """Whether this many pages may be asked for as one message (GetWhole)."""
    return pages <= limits.GRPC_MESSAGE_CHUNKS_MAX and pages * page_bytes <= limits.GRPC_CHUNK_BYTES


class _Cursor:
    """A place in protobuf bytes; every step forward is checked against `end`."""

    __slots__ = ("at", "end", "view", "what")

    def __init__(self, view: memoryview, at: int, end: int, what: str) -> None:
        self.view, self.at, self.end, self.what = view, at, end, what

    def tag(self) -> tuple[int, int]:
        """Return (field number, wire type)."""
        tag = self.varint()
        if tag > _UINT32_MAX or tag >> 3 == 0:
            raise ProtocolError(f"not a {self.what}: it holds a field with the number {tag >> 3}")
        return tag >> 3, tag & 7

    def varint(self) -> int:
        view, at, value, shift = self.view, self.at, 0, 0
        while at < self.end and shift < 64:
            byte = view[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at
                return value & _UINT64_MAX
            shift += 7
        raise ProtocolError(f"not a {self.what}: it holds a number that is cut off or longer than 64 bits")

    def take(self, size: int) -> memoryview:
        """Return the next `size` bytes."""
        if size > self.end - self.at:
            raise ProtocolError(
                f"not a {self.what}: a field of {size} bytes is cut off after {self.end - self.at}"
            )
        self.at += size
        return self.view[self.at - size : self.at]

    def skip(self, number: int, wire: int) -> None:
        """Step over a field that is not known here."""
        if wire == _VARINT:
            self.varint()
        elif wire == _I64:
            self.take(8)
        elif wire == _LENGTH:
            self.take(self.varint())
        elif wire == _I32:
            self.take(4)
        else:
            raise ProtocolError(f"not a {self.what}: field {number} has the unknown wire type {wire}")


def _decode(message: bytes, what: str) -> tuple[bytes | None, list[Chunk], bytes | None]:
    """Split a bulk message into the bytes of its header, its chunks, and the bytes of its trailer.

    As protobuf does, unknown fields are skipped and parts of a singular message that comes twice are merged.
    """
    cursor = _Cursor(memoryview(message), 0, len(message), what)
    header: bytes | None = None
    trailer: bytes | None = None
    chunks: list[Chunk] = []
    while cursor.at < cursor.end:
        number, wire = cursor.tag()
        if wire != _LENGTH or number > 3:
            cursor.skip(number, wire)
            continue
        part = cursor.take(cursor.varint())
        if number == 1:
            header = (header or b"") + bytes(part)
        elif number == 2:
            chunks.append(_decode_chunk(part, what))
        else:
            trailer = (trailer or b"") + bytes(part)
    return header, chunks, trailer


def _decode_chunk(part: memoryview, what: str) -> Chunk:
    cursor = _Cursor(part, 0, len(part), what)
    page = offset = checksum = 0
    data = part[:0]
    while cursor.at < cursor.end:
        number, wire = cursor.tag()
        if number == 1 and wire == _VARINT:
            page = cursor.varint() & _UINT32_MAX
        elif number == 2 and wire == _VARINT:
            offset = cursor.varint() & _UINT32_MAX
        elif number == 3 and wire == _LENGTH:
            data = cursor.take(cursor.varint())
        elif number == 4 and wire == _I64:
            (checksum,) = _FIXED64.unpack(cursor.take(8))
        else:
            cursor.skip(number, wire)
    return Chunk(page=page, offset=offset, data=data, checksum=checksum)


_Message = TypeVar("_Message", cache_pb2.GetHeader, cache_pb2.GetTrailer, cache_pb2.PutHeader)


def _parse(into: _Message, body: bytes, what: str) -> _Message:
    try:
        into.ParseFromString(body)
    except DecodeError as error:
        raise ProtocolError(f"not a {what}: {error}") from error
    return into
