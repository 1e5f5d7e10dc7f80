"""Whether bytes that came from a server are the record that was asked for: its header, its size, its checksum, its codec."""

from __future__ import annotations

import zlib
from functools import lru_cache

from cache_l3.data_path import Got, HeaderShape
from cache_l3.page_codecs import PageCodecs
from cache_l3.record_store import RecordName
from kv_types.errors import CorruptRecordError
from kv_types.limits import L3_HEADERS_REMEMBERED_MAX
from kv_types.namespace import Namespace
from kv_types.record import (
    CHECKSUM_AT,
    HEADER_BYTES_MAX,
    HEADER_BYTES_MIN,
    SIZE_AT,
    ChecksumKind,
    Codec,
    RecordHeader,
    header_size,
)

SHAPE = HeaderShape(
    size_at=SIZE_AT, checksum_at=CHECKSUM_AT, bytes_min=HEADER_BYTES_MIN, bytes_max=HEADER_BYTES_MAX
)
"""What a data path must know of records."""


_decoded = lru_cache(L3_HEADERS_REMEMBERED_MAX)(RecordHeader.decode)
"""A record's header comes twice, when it is asked about and with its payload: the same bytes say the same."""


def read_header(beginning: bytes, name: RecordName) -> RecordHeader:
    """Header of a record by its first bytes, HEADER_BYTES_MAX or fewer. Raises CorruptRecordError."""
    size = header_size(beginning)
    if len(beginning) < size:
        raise CorruptRecordError(f"{len(beginning)} bytes of a header of {size}")
    header = _decoded(beginning[:size])
    if (header.page.namespace, header.page.key) != (name.namespace, name.key):
        raise CorruptRecordError("the record of another page")
    return header


def check_arrival(got: Got, name: RecordName, *, page_bytes: int) -> RecordHeader:
    """Header of a record that has arrived, verified but for what `finish` does. Raises CorruptRecordError."""
    header = read_header(got.header, name)
    if header.page.payload_bytes != page_bytes:
        raise CorruptRecordError(f"a page of {header.page.payload_bytes} bytes; it has {page_bytes}")
    if header.stored_bytes != got.stored_bytes:
        raise CorruptRecordError(f"{got.stored_bytes} stored bytes; the header says {header.stored_bytes}")
    if got.in_place != (header.codec is Codec.RAW):
        raise CorruptRecordError("the payload is not of the size that its codec makes")
    if header.checksum_kind is ChecksumKind.XXH3_64 and got.checksum != header.checksum:
        raise CorruptRecordError("the payload's checksum does not match its bytes")
    return header


def needs_work(header: RecordHeader) -> bool:
    """Whether `finish` has anything to do, which is then done off the event loop."""
    return header.codec is not Codec.RAW or header.checksum_kind is not ChecksumKind.XXH3_64


def finish(
    header: RecordHeader, got: Got, place: memoryview, codecs: PageCodecs, namespace: Namespace | None
) -> None:
    """Decode a record that has passed `check_arrival` into its place, if it is not there yet. Raises CorruptRecordError."""
    stored = memoryview(place if got.stored is None else got.stored)
    if header.checksum_kind is ChecksumKind.CRC32 and zlib.crc32(stored) != header.checksum:
        raise CorruptRecordError("the payload's checksum does not match its bytes")
    codecs.decode(header.codec, stored, place, namespace)
