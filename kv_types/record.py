"""PageDescription and RecordHeader: how a page travels and rests outside the arena, as strict little-endian bytes.

A record is: fixed part | variable part (tags, each u8 length ‖ bytes) | CRC-32 of all before it | stored payload
(`stored_bytes`). Decoding verifies all but the payload's own checksum and takes only what encoding gives, so that a
flipped, cut or lengthened header is a CorruptRecordError and nothing else.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from kv_types.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    LimitExceededError,
    StrataError,
    UnreadableRecordError,
)
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
    PAGE_BYTES_MAX,
    PRODUCER_BYTES_MAX,
    RECORD_BYTES_MAX,
    TAG_BYTES_MAX,
    TAGS_PER_RECORD_MAX,
)
from kv_types.numbers import check_word

MAGIC = b"SKVR"
SCHEMA_VERSION = 2
"""Nothing was ever stored under 1."""

_FIXED = struct.Struct(
    "<4sHHI"  # magic, schema version, flags, header bytes (fixed + variable + CRC)
    "32s32s32s"  # namespace, key, parent
    "16sQ"  # stamp: incarnation, revision
    "QQ"  # birth, rests on
    "HHQQQ"  # codec, checksum kind, checksum, payload bytes, stored bytes
    "QQQ"  # computed from, until: wall clock of the producer; expires: of the sidecar; Unix ms
    f"BBH{PRODUCER_BYTES_MAX}s"  # tags, producer bytes, zero; producer padded with zeros
)
_CRC = struct.Struct("<I")
FIXED_BYTES = _FIXED.size
HEADER_BYTES_MIN = FIXED_BYTES + _CRC.size
HEADER_BYTES_MAX = HEADER_BYTES_MIN + TAGS_PER_RECORD_MAX * (1 + TAG_BYTES_MAX)
SIZE_AT = struct.calcsize("<4sHH")
"""Where the header says how long it is, u32."""
CHECKSUM_AT = struct.calcsize("<4sHHI32s32s32s16sQQQHH")
"""Where in a header the payload's checksum lies, 8 bytes: whoever moves the bytes may put it in, and the CRC anew behind it."""
RESTS_ON_NOTHING = 0
RESTS_ON_UNKNOWN = (1 << 64) - 1
_NO_PARENT = bytes(KEY_BYTES)

assert TAGS_PER_RECORD_MAX < 256
assert max(PRODUCER_BYTES_MAX, TAG_BYTES_MAX) < 256
assert PAGE_BYTES_MAX + HEADER_BYTES_MAX <= RECORD_BYTES_MAX, (
    "the largest page and its header must fit a record"
)


class Codec(IntEnum):
    """How the payload is stored. Numbers are never reused."""

    RAW = 0
    ZSTD_PLANES = 1
    """u8 width of elements ‖ one Zstandard frame of their bytes by significance: all first bytes, all second ones, …"""
    PLANES = 2
    """u8 width of elements ‖ sections: a plane for each byte of the elements turned left by one bit, then what is left over."""
    FP8_E4M3 = 3
    INT8 = 4
    """Sections: scales, one byte a number, what belongs to no number. Only in namespaces that are stored as that."""


class ChecksumKind(IntEnum):
    """What the payload checksum is of the stored bytes. Numbers are never reused."""

    CRC32 = 1
    XXH3_64 = 2


class RecordFlag(IntFlag):
    """Properties of a page. Bits are never reused."""

    NONE = 0
    ROOT = 1
    """The page is the first of its chain; it has no parent."""
    ORIGIN_UNKNOWN = 2
    """Its producer and tags can't be told any more: every selector that asks for them matches."""


_CODECS = frozenset(Codec)
_CHECKSUM_KINDS = frozenset(ChecksumKind)
_FLAGS_KNOWN = RecordFlag.ROOT | RecordFlag.ORIGIN_UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class PageDescription:
    """Which page it is and how it came to be; `parent` is None for the first page of a chain.

    `birth` is drawn when a page is committed for the first time anywhere and travels with it: one computation, one
    birth. `rests_on` is the line of the deepest page that its request reused (the births from the root down
    to it, as one number: a page may stand on others elsewhere, and what was computed from it may not), or RESTS_ON_NOTHING, or
    RESTS_ON_UNKNOWN. `producer` computed it between two readings of its wall clock (Unix ms); `tags` are its request's.
    `expires_ms` is when its time is over, by the wall clock of the sidecar that stored it (Unix ms), 0 for never.
    Raises InvalidArgumentError, LimitExceededError.
    """

    namespace: NamespaceId
    key: PageKey
    parent: PageKey | None
    stamp: Stamp
    payload_bytes: int
    birth: int
    rests_on: int = RESTS_ON_NOTHING
    producer: bytes = b""
    tags: tuple[bytes, ...] = ()
    computed_from_ms: int = 0
    computed_until_ms: int = 0
    expires_ms: int = 0
    origin_unknown: bool = False

    def __post_init__(self) -> None:
        namespace_id(self.namespace)
        page_key(self.key)
        if self.parent is not None and page_key(self.parent) == _NO_PARENT:
            raise InvalidArgumentError("a parent key of zeros; give None for the first page of a chain")
        log_incarnation(self.stamp.incarnation)
        _check_u64(self.stamp.revision, "stamp revision")
        _check_size(self.payload_bytes, "payload")
        _check_u64(self.birth, "birth")
        if self.birth in (RESTS_ON_NOTHING, RESTS_ON_UNKNOWN):
            raise InvalidArgumentError(f"a birth is none of the numbers with a meaning; got {self.birth}")
        _check_u64(self.rests_on, "rests_on")
        _check_u64(self.expires_ms, "expires_ms")
        self._check_origin()

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
        if len(self.tags) > TAGS_PER_RECORD_MAX:
            raise LimitExceededError(f"{len(self.tags)} tags; at most {TAGS_PER_RECORD_MAX} are allowed")
        for tag in self.tags:
            if not isinstance(tag, bytes) or not 1 <= len(tag) <= TAG_BYTES_MAX:
                raise LimitExceededError(f"a tag has 1 to {TAG_BYTES_MAX} bytes; got {tag!r}")

    @property
    def flags(self) -> RecordFlag:
        """Flags as they are stored."""
        flags = RecordFlag.NONE if self.parent is not None else RecordFlag.ROOT
        return flags | RecordFlag.ORIGIN_UNKNOWN if self.origin_unknown else flags


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHeader:
    """A page's description and how its payload is stored. `checksum` is that of the stored bytes.

    Raises InvalidArgumentError, LimitExceededError.
    """

    page: PageDescription
    stored_bytes: int
    checksum_kind: ChecksumKind
    checksum: int
    codec: Codec = Codec.RAW

    def __post_init__(self) -> None:
        if not isinstance(self.codec, Codec) or not isinstance(self.checksum_kind, ChecksumKind):
            raise InvalidArgumentError("codec and checksum kind are numbers of Codec and ChecksumKind")
        _check_size(self.stored_bytes, "stored payload")
        stored, whole = self.stored_bytes, self.page.payload_bytes
        if stored != whole if self.codec is Codec.RAW else stored >= whole:
            raise InvalidArgumentError(
                f"a payload of {whole} bytes is stored as it is, or in fewer: {stored} by {self.codec.name}"
            )
        _check_u64(self.checksum, "checksum")
        if self.checksum_kind is ChecksumKind.CRC32 and self.checksum >> 32:
            raise InvalidArgumentError(f"a CRC-32 has 32 bits; got {self.checksum}")

    @property
    def record_bytes(self) -> int:
        """Size of the whole record."""
        return HEADER_BYTES_MIN + sum(1 + len(tag) for tag in self.page.tags) + self.stored_bytes

    def encode(self) -> bytes:
        """Header bytes, CRC included; the stored payload follows them in a record."""
        page = self.page
        variable = b"".join(bytes([len(tag)]) + tag for tag in page.tags)
        fixed = _FIXED.pack(
            MAGIC, SCHEMA_VERSION, int(page.flags), HEADER_BYTES_MIN + len(variable),
            page.namespace, page.key, _NO_PARENT if page.parent is None else page.parent,
            page.stamp.incarnation, page.stamp.revision, page.birth, page.rests_on,
            self.codec, self.checksum_kind, self.checksum, page.payload_bytes, self.stored_bytes,
            page.computed_from_ms, page.computed_until_ms, page.expires_ms,
            len(page.tags), len(page.producer), 0, page.producer,
        )  # fmt: skip
        return fixed + variable + _CRC.pack(zlib.crc32(fixed + variable))

    @classmethod
    def decode(cls, data: bytes) -> RecordHeader:
        """Decode exactly one header, nothing before or after it.

        Raises CorruptRecordError; UnreadableRecordError where it is whole, and of a kind that came after this version.
        """
        data = bytes(data)
        size = header_size(data)
        if size != len(data):
            raise CorruptRecordError(f"the header says {size} bytes; it has {len(data)}")
        (crc,) = _CRC.unpack_from(data, size - _CRC.size)
        if zlib.crc32(data[: -_CRC.size]) != crc:
            raise CorruptRecordError("the header's checksum does not match its bytes")
        try:
            header = _parse(data)
        except UnreadableRecordError:
            raise
        except (StrataError, ValueError) as error:
            raise CorruptRecordError(f"the header contradicts itself: {error}") from error
        if header.encode() != data:
            raise CorruptRecordError("the header is not the encoding of what it says")
        return header


def header_size(data: bytes | memoryview) -> int:
    """Size that a record says its header has, by its first HEADER_BYTES_MIN bytes. Raises CorruptRecordError."""
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


def _parse(data: bytes) -> RecordHeader:
    (
        _, _, flag_bits, _, namespace, key, parent, incarnation, revision, birth, rests_on,
        codec, checksum_kind, checksum, payload_bytes, stored_bytes, from_ms, until_ms, expires_ms,
        tag_count, producer_bytes, _, producer,
    ) = _FIXED.unpack_from(data)  # fmt: skip
    flags = RecordFlag(flag_bits & int(_FLAGS_KNOWN))
    page = PageDescription(
        namespace=namespace,
        key=key,
        parent=None if RecordFlag.ROOT in flags else parent,
        stamp=Stamp(log_incarnation(incarnation), revision),
        payload_bytes=payload_bytes,
        birth=birth,
        rests_on=rests_on,
        producer=producer[:producer_bytes],
        tags=_tags(data[FIXED_BYTES : -_CRC.size], tag_count),
        computed_from_ms=from_ms,
        computed_until_ms=until_ms,
        expires_ms=expires_ms,
        origin_unknown=RecordFlag.ORIGIN_UNKNOWN in flags,
    )
    if flag_bits != flags or codec not in _CODECS or checksum_kind not in _CHECKSUM_KINDS:
        raise UnreadableRecordError(
            f"flags {flag_bits:#x}, codec {codec} or kind of checksum {checksum_kind} is of a newer version; upgrade this sidecar"
        )
    return RecordHeader(
        page=page,
        stored_bytes=stored_bytes,
        checksum_kind=ChecksumKind(checksum_kind),
        checksum=checksum,
        codec=Codec(codec),
    )


def _tags(data: bytes, count: int) -> tuple[bytes, ...]:
    tags: list[bytes] = []
    at = 0
    for _ in range(count):
        if at >= len(data) or at + 1 + data[at] > len(data):
            raise CorruptRecordError("the variable part ends inside a tag")
        tags.append(data[at + 1 : at + 1 + data[at]])
        at += 1 + data[at]
    return tuple(tags)


def _check_u64(number: int, what: str) -> None:
    if type(number) is not int or not 0 <= number < 1 << 64:  # nearly never: headers come by the hundred
        check_word(number, what)


def _check_size(size: int, what: str) -> None:
    _check_u64(size, f"{what} bytes")
    if not 1 <= size <= PAGE_BYTES_MAX:
        raise LimitExceededError(f"a {what} has 1 to {PAGE_BYTES_MAX} bytes; got {size}")
