"""RecordHeader: how a page travels and rests outside the arena, as strict little-endian bytes.

A record is: fixed part | variable part (lineage producers, then tags, each u8 length ‖ bytes) | CRC-32 of all
before it | payload (`stored_bytes`). Decoding verifies all but the payload's own checksum and takes only what
encoding gives, so that a flipped, cut or lengthened header is a CorruptRecordError and nothing else.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from kv_types.errors import CorruptRecordError, InvalidArgumentError, LimitExceededError, StrataError
from kv_types.ids import (
    KEY_BYTES,
    NamespaceId,
    PageKey,
    Stamp,
    log_incarnation,
    namespace_id,
    page_key,
)
from kv_types.limits import (
    LINEAGE_PRODUCERS_MAX,
    PAGE_BYTES_MAX,
    PRODUCER_BYTES_MAX,
    RECORD_VARIABLE_BYTES_MAX,
    TAG_BYTES_MAX,
    TAGS_PER_RECORD_MAX,
)

MAGIC = b"SKVR"
SCHEMA_VERSION = 1

_FIXED = struct.Struct(
    "<4sHHI"  # magic, schema version, flags, header bytes (fixed + variable + CRC)
    "32s32s32s"  # namespace, key, parent
    "16sQ"  # stamp: incarnation, revision
    "HHQQQ"  # codec, checksum kind, checksum, payload bytes, stored bytes
    "QQ"  # computed from, until: wall clock of the producer, Unix ms
    f"BBBB{PRODUCER_BYTES_MAX}s"  # lineage producers, tags, producer bytes, zero; producer padded with zeros
)
_CRC = struct.Struct("<I")
FIXED_BYTES = _FIXED.size
HEADER_BYTES_MIN = FIXED_BYTES + _CRC.size
HEADER_BYTES_MAX = HEADER_BYTES_MIN + RECORD_VARIABLE_BYTES_MAX
_NO_PARENT = bytes(KEY_BYTES)
_U64_END = 1 << 64

assert LINEAGE_PRODUCERS_MAX < 256
assert TAGS_PER_RECORD_MAX < 256
assert max(PRODUCER_BYTES_MAX, TAG_BYTES_MAX) < 256
assert (
    LINEAGE_PRODUCERS_MAX * (1 + PRODUCER_BYTES_MAX) + TAGS_PER_RECORD_MAX * (1 + TAG_BYTES_MAX)
    <= RECORD_VARIABLE_BYTES_MAX
), "the largest lineage and all tags must fit the variable part"


class Codec(IntEnum):
    """How the payload is stored. Numbers are never reused."""

    RAW = 0


class ChecksumKind(IntEnum):
    """What the payload checksum is of the stored bytes. Numbers are never reused."""

    CRC32 = 1
    XXH3_64 = 2


class RecordFlag(IntFlag):
    """Properties of a page. Bits are never reused."""

    NONE = 0
    ROOT = 1
    """The page is the first of its chain; it has no parent."""
    LINEAGE_OVERFLOW = 2
    """More producers took part than the record can name: every producer selector matches."""
    TAGS_OVERFLOW = 4
    """More tags apply than the record can name: every tag selector matches."""


_FLAGS_KNOWN = RecordFlag.ROOT | RecordFlag.LINEAGE_OVERFLOW | RecordFlag.TAGS_OVERFLOW


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHeader:
    """What a record says about its page; `parent` is None for the first page of a chain.

    `producer` computed the page between two readings of its wall clock (Unix ms). `lineage` are producers of
    ancestors, `tags` those of the page and its ancestors. Raises InvalidArgumentError, LimitExceededError.
    """

    namespace: NamespaceId
    key: PageKey
    parent: PageKey | None
    stamp: Stamp
    payload_bytes: int
    stored_bytes: int
    checksum_kind: ChecksumKind
    checksum: int
    codec: Codec = Codec.RAW
    producer: bytes = b""
    computed_from_ms: int = 0
    computed_until_ms: int = 0
    lineage: tuple[bytes, ...] = ()
    tags: tuple[bytes, ...] = ()
    lineage_overflow: bool = False
    tags_overflow: bool = False

    def __post_init__(self) -> None:
        namespace_id(self.namespace)
        page_key(self.key)
        if self.parent is not None and page_key(self.parent) == _NO_PARENT:
            raise InvalidArgumentError("a parent key of zeros; give None for the first page of a chain")
        log_incarnation(self.stamp.incarnation)
        _check_u64(self.stamp.revision, "stamp revision")
        if not isinstance(self.codec, Codec) or not isinstance(self.checksum_kind, ChecksumKind):
            raise InvalidArgumentError("codec and checksum kind are numbers of Codec and ChecksumKind")
        self._check_sizes()
        _check_u64(self.checksum, "checksum")
        if self.checksum_kind is ChecksumKind.CRC32 and self.checksum >> 32:
            raise InvalidArgumentError(f"a CRC-32 has 32 bits; got {self.checksum}")
        self._check_origin()

    def _check_sizes(self) -> None:
        for size, what in ((self.payload_bytes, "payload"), (self.stored_bytes, "stored payload")):
            _check_u64(size, f"{what} bytes")
            if not 1 <= size <= PAGE_BYTES_MAX:
                raise LimitExceededError(f"a {what} has 1 to {PAGE_BYTES_MAX} bytes; got {size}")
        if self.codec is Codec.RAW and self.stored_bytes != self.payload_bytes:
            raise InvalidArgumentError(
                f"raw payloads are stored as they are: {self.stored_bytes} of {self.payload_bytes} bytes"
            )

    def _check_origin(self) -> None:
        _check_u64(self.computed_from_ms, "computed_from_ms")
        _check_u64(self.computed_until_ms, "computed_until_ms")
        if self.computed_from_ms > self.computed_until_ms:
            raise InvalidArgumentError(
                f"computed from {self.computed_from_ms} ms until {self.computed_until_ms} ms is backwards"
            )
        if not isinstance(self.producer, bytes) or len(self.producer) > PRODUCER_BYTES_MAX:
            raise LimitExceededError(f"a producer has at most {PRODUCER_BYTES_MAX} bytes")
        if self.producer.endswith(b"\0"):
            raise InvalidArgumentError("a producer's name does not end with a zero byte")
        _check_names(
            self.lineage, "lineage producer", count_max=LINEAGE_PRODUCERS_MAX, bytes_max=PRODUCER_BYTES_MAX
        )
        _check_names(self.tags, "tag", count_max=TAGS_PER_RECORD_MAX, bytes_max=TAG_BYTES_MAX)

    @property
    def flags(self) -> RecordFlag:
        """Flags as they are stored."""
        flags = RecordFlag.NONE if self.parent is not None else RecordFlag.ROOT
        if self.lineage_overflow:
            flags |= RecordFlag.LINEAGE_OVERFLOW
        if self.tags_overflow:
            flags |= RecordFlag.TAGS_OVERFLOW
        return flags

    def encode(self) -> bytes:
        """Header bytes, CRC included; the payload follows them in a record."""
        variable = b"".join(bytes([len(name)]) + name for name in (*self.lineage, *self.tags))
        fixed = _FIXED.pack(
            MAGIC, SCHEMA_VERSION, int(self.flags), HEADER_BYTES_MIN + len(variable),
            self.namespace, self.key, _NO_PARENT if self.parent is None else self.parent,
            self.stamp.incarnation, self.stamp.revision,
            self.codec, self.checksum_kind, self.checksum, self.payload_bytes, self.stored_bytes,
            self.computed_from_ms, self.computed_until_ms,
            len(self.lineage), len(self.tags), len(self.producer), 0, self.producer,
        )  # fmt: skip
        return fixed + variable + _CRC.pack(zlib.crc32(fixed + variable))

    @classmethod
    def decode(cls, data: bytes) -> RecordHeader:
        """Decode exactly one header, nothing before or after it. Raises CorruptRecordError."""
        data = bytes(data)
        size = header_size(data)
        if size != len(data):
            raise CorruptRecordError(f"the header says {size} bytes; it has {len(data)}")
        (crc,) = _CRC.unpack_from(data, size - _CRC.size)
        if zlib.crc32(data[: -_CRC.size]) != crc:
            raise CorruptRecordError("the header's checksum does not match its bytes")
        try:
            header = _parse(data)
        except (StrataError, ValueError) as error:
            raise CorruptRecordError(f"the header contradicts itself: {error}") from error
        if header.encode() != data:
            raise CorruptRecordError("the header is not the encoding of what it says")
        return header


def header_size(data: bytes | memoryview) -> int:
    """Size that the first FIXED_BYTES of a record announce for its header. Raises CorruptRecordError."""
    if len(data) < HEADER_BYTES_MIN:
        raise CorruptRecordError(f"a record has at least {HEADER_BYTES_MIN} bytes; got {len(data)}")
    magic, version, _, size = struct.unpack_from("<4sHHI", data)
    if magic != MAGIC or version != SCHEMA_VERSION:
        raise CorruptRecordError(f"not a record of schema version {SCHEMA_VERSION} ({magic!r}, {version})")
    if not HEADER_BYTES_MIN <= size <= HEADER_BYTES_MAX:
        raise CorruptRecordError(
            f"the header says {size} bytes; {HEADER_BYTES_MIN} to {HEADER_BYTES_MAX} are"
        )
    return int(size)


def split_record(record: bytes | memoryview) -> tuple[RecordHeader, memoryview]:
    """Header and stored payload (a view) of a whole record; the payload's checksum is the caller's to check.

    Raises CorruptRecordError, also when the payload is shorter or longer than the header says.
    """
    view = memoryview(record)
    size = header_size(view)
    header = RecordHeader.decode(bytes(view[:size]))
    if len(view) - size != header.stored_bytes:
        raise CorruptRecordError(f"{len(view) - size} payload bytes; the header says {header.stored_bytes}")
    return header, view[size:]


def _parse(data: bytes) -> RecordHeader:
    (
        _, _, flag_bits, _, namespace, key, parent, incarnation, revision, codec, checksum_kind, checksum,
        payload_bytes, stored_bytes, from_ms, until_ms, lineage_count, tag_count, producer_bytes, _, producer,
    ) = _FIXED.unpack_from(data)  # fmt: skip
    if flag_bits & ~int(_FLAGS_KNOWN):
        raise CorruptRecordError(f"unknown flags {flag_bits:#x}")
    flags = RecordFlag(flag_bits)
    names = _names(data[FIXED_BYTES : -_CRC.size], lineage_count + tag_count)
    return RecordHeader(
        namespace=namespace,
        key=key,
        parent=None if RecordFlag.ROOT in flags else parent,
        stamp=Stamp(log_incarnation(incarnation), revision),
        payload_bytes=payload_bytes,
        stored_bytes=stored_bytes,
        checksum_kind=ChecksumKind(checksum_kind),
        checksum=checksum,
        codec=Codec(codec),
        producer=producer[:producer_bytes],
        computed_from_ms=from_ms,
        computed_until_ms=until_ms,
        lineage=names[:lineage_count],
        tags=names[lineage_count:],
        lineage_overflow=RecordFlag.LINEAGE_OVERFLOW in flags,
        tags_overflow=RecordFlag.TAGS_OVERFLOW in flags,
    )


def _names(data: bytes, count: int) -> tuple[bytes, ...]:
    names: list[bytes] = []
    at = 0
    for _ in range(count):
        if at >= len(data) or at + 1 + data[at] > len(data):
            raise CorruptRecordError("the variable part ends inside a name")
        names.append(data[at + 1 : at + 1 + data[at]])
        at += 1 + data[at]
    return tuple(names)


def _check_u64(number: int, what: str) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < _U64_END:
        raise InvalidArgumentError(f"{what} must be an integer of 64 bits without a sign; got {number!r}")


def _check_names(names: tuple[bytes, ...], what: str, *, count_max: int, bytes_max: int) -> None:
    if len(names) > count_max:
        raise LimitExceededError(
            f"{len(names)} {what}s; at most {count_max} are allowed: set the overflow flag"
        )
    for name in names:
        if not isinstance(name, bytes) or not 1 <= len(name) <= bytes_max:
            raise LimitExceededError(f"a {what} has 1 to {bytes_max} bytes; got {name!r}")
