"""Record headers: exact round trips, and every flip, cut or extension is a CorruptRecordError."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_types.errors import CorruptRecordError, InvalidArgumentError
from kv_types.ids import NamespaceId, PageKey, Stamp, log_incarnation
from kv_types.limits import (
    PAGE_BYTES_MAX,
    PRODUCER_BYTES_MAX,
    TAG_BYTES_MAX,
    TAGS_PER_RECORD_MAX,
)
from kv_types.record import (
    CHECKSUM_AT,
    FIXED_BYTES,
    HEADER_BYTES_MAX,
    HEADER_BYTES_MIN,
    RESTS_ON_UNKNOWN,
    ChecksumKind,
    Codec,
    PageDescription,
    RecordFlag,
    RecordHeader,
    header_size,
)

_OF_HEADER = ("stored_bytes", "checksum_kind", "checksum", "codec")


def header(**changes: Any) -> RecordHeader:
    fields: dict[str, Any] = {
        "namespace": NamespaceId(b"\x01" * 32), "key": PageKey(b"\x02" * 32), "parent": PageKey(b"\x03" * 32),
        "stamp": Stamp(log_incarnation(b"\x04" * 16), 9), "payload_bytes": 16, "birth": 5, "rests_on": 6,
        "stored_bytes": 16, "checksum_kind": ChecksumKind.CRC32, "checksum": 0x01020304, "producer": b"node-a/3",
        "computed_from_ms": 10, "computed_until_ms": 20, "expires_ms": 30, "tags": (b"t", b"other"),
    }  # fmt: skip
    fields |= changes
    stored = {name: fields.pop(name) for name in _OF_HEADER if name in fields}
    return RecordHeader(page=PageDescription(**fields), **stored)


def test_the_document_names_every_byte_of_a_header() -> None:
    section = (Path(__file__).parents[2] / "docs" / "l3.md").read_text().split("## The record")[1]
    rows = re.findall(r"^\| ([0-9, ]+) \|", section, re.MULTILINE)
    assert sum(int(size) for row in rows for size in row.split(",")) == HEADER_BYTES_MIN


_TAGS = st.binary(min_size=1, max_size=TAG_BYTES_MAX)
_U64 = st.integers(0, 2**64 - 1)


@given(
    parent=st.none() | st.binary(min_size=32, max_size=32).filter(any),
    revision=_U64,
    size=st.integers(2, PAGE_BYTES_MAX),
    codec=st.sampled_from(Codec),
    checksum=_U64,
    births=st.tuples(st.integers(1, 2**64 - 2), _U64),
    producer=st.binary(max_size=64).map(lambda name: name.rstrip(b"\0")),
    times=st.tuples(_U64, _U64).map(sorted),
    tags=st.lists(_TAGS, max_size=TAGS_PER_RECORD_MAX).map(tuple),
    origin_unknown=st.booleans(),
)
def test_every_header_survives_its_encoding(
    parent: Any, revision: int, size: int, codec: Codec, checksum: int, births: tuple[int, int], producer: bytes,
    times: list[int], tags: tuple[bytes, ...], origin_unknown: bool,
) -> None:  # fmt: skip
    original = header(
        parent=parent, stamp=Stamp(log_incarnation(b"\x04" * 16), revision), payload_bytes=size,
        stored_bytes=size - (codec is not Codec.RAW), codec=codec, birth=births[0], rests_on=births[1],
        checksum_kind=ChecksumKind.XXH3_64, checksum=checksum, producer=producer, computed_from_ms=times[0],
        computed_until_ms=times[1], tags=tags, origin_unknown=origin_unknown,
    )  # fmt: skip
    data = original.encode()
    assert RecordHeader.decode(data) == original
    assert HEADER_BYTES_MIN <= len(data) <= HEADER_BYTES_MAX
    assert header_size(data) == len(data) == original.record_bytes - original.stored_bytes


def test_the_first_page_of_a_chain_has_no_parent() -> None:
    root = header(parent=None)
    assert root.page.flags is RecordFlag.ROOT
    assert RecordHeader.decode(root.encode()).page.parent is None
    with pytest.raises(InvalidArgumentError, match="zeros"):
        header(parent=PageKey(bytes(32)))


def test_a_checksum_put_in_later_with_the_crc_makes_the_same_header() -> None:
    data = bytearray(header(checksum=0).encode())
    struct.pack_into("<Q", data, CHECKSUM_AT, 0x01020304)
    assert _signed(data) == header().encode()


def test_every_flipped_bit_is_corrupt() -> None:
    data = header().encode()
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(CorruptRecordError):
                RecordHeader.decode(bytes(flipped))


def test_every_cut_and_extension_is_corrupt() -> None:
    data = header().encode()
    for size in range(len(data)):
        with pytest.raises(CorruptRecordError):
            RecordHeader.decode(data[:size])
    for tail in (b"\0", b"\xff", data, bytes(10_000)):
        with pytest.raises(CorruptRecordError):
            RecordHeader.decode(data + tail)


def test_a_flip_in_a_key_is_told_by_the_checksum() -> None:
    flipped = bytearray(header().encode())
    flipped[50] ^= 1
    with pytest.raises(CorruptRecordError, match="checksum"):
        RecordHeader.decode(bytes(flipped))


def _signed(data: bytearray) -> bytes:
    """With a right CRC: what a confused or hostile writer could make."""
    struct.pack_into("<I", data, len(data) - 4, zlib.crc32(data[:-4]))
    return bytes(data)


def test_every_flipped_bit_under_a_right_checksum_is_corrupt_or_another_header() -> None:
    original = header()
    data = original.encode()
    refused = 0
    for bit in range((len(data) - 4) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        forged = _signed(flipped)
        try:
            decoded = RecordHeader.decode(forged)
        except CorruptRecordError:
            refused += 1
        else:
            assert decoded != original
            assert decoded.encode() == forged
    assert refused > 300, "magic, version, sizes, counts, unknown flags and kinds are all refused"


@settings(max_examples=300)
@given(st.binary(max_size=HEADER_BYTES_MAX + 50))
def test_arbitrary_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        RecordHeader.decode(data)


@settings(max_examples=200)
@given(st.integers(0, FIXED_BYTES - 1), st.binary(min_size=1, max_size=12))
def test_forged_stretches_never_crash_the_decoder(at: int, stretch: bytes) -> None:
    data = bytearray(header().encode())
    data[at : at + len(stretch)] = stretch[: len(data) - 4 - at]
    forged = _signed(data)
    try:
        decoded = RecordHeader.decode(forged)
    except CorruptRecordError:
        return
    assert decoded.encode() == forged


@pytest.mark.parametrize(
    "changes",
    [
        {"namespace": b"short"},
        {"key": b""},
        {"parent": b"x" * 31},
        {"stamp": Stamp(log_incarnation(b"\0" * 16), -1)},
        {"stamp": Stamp(log_incarnation(b"\0" * 16), 2**64)},
        {"payload_bytes": 0, "stored_bytes": 0},
        {"payload_bytes": PAGE_BYTES_MAX + 1, "stored_bytes": PAGE_BYTES_MAX + 1},
        {"stored_bytes": 15},
        {"stored_bytes": 15, "codec": Codec.RAW},
        {"stored_bytes": 16, "codec": Codec.ZSTD_PLANES},
        {"stored_bytes": 17, "codec": Codec.ZSTD_PLANES},
        {"stored_bytes": 0, "codec": Codec.ZSTD_PLANES},
        {"payload_bytes": True},
        {"birth": 0},
        {"birth": RESTS_ON_UNKNOWN},
        {"birth": -1},
        {"rests_on": 2**64},
        {"checksum": 2**32},
        {"checksum": -1},
        {"checksum_kind": 1},
        {"codec": 0},
        {"computed_from_ms": 21},
        {"producer": b"x" * (PRODUCER_BYTES_MAX + 1)},
        {"producer": b"ends\0"},
        {"producer": "text"},
        {"tags": (b"",)},
        {"tags": (b"x",) * (TAGS_PER_RECORD_MAX + 1)},
        {"tags": (b"x" * (TAG_BYTES_MAX + 1),)},
        {"tags": ("text",)},
    ],
)
def test_a_header_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        header(**changes)


def test_the_largest_header_is_within_its_limit() -> None:
    largest = header(
        producer=b"p" * PRODUCER_BYTES_MAX,
        tags=(b"t" * TAG_BYTES_MAX,) * TAGS_PER_RECORD_MAX,
        origin_unknown=True,
    )
    data = largest.encode()
    assert len(data) == HEADER_BYTES_MAX
    assert RecordHeader.decode(data) == largest
