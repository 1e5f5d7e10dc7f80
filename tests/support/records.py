"""Pages, names and payloads for tests of record stores, and deadlines on the machine's own clock."""

from __future__ import annotations

import hashlib
from typing import Any

from cache_l3.record_store import RecordName
from kv_types.clock import BoottimeClock
from kv_types.errors import CorruptRecordError
from kv_types.ids import NamespaceId, PageKey, Stamp, log_incarnation
from kv_types.record import PageDescription, RecordHeader, header_size

CLOCK = BoottimeClock()
NAMESPACE = NamespaceId(b"\x4e" * 32)
INCARNATION = log_incarnation(b"\x49" * 16)


def within(seconds: float = 5.0) -> int:
    """A deadline."""
    return CLOCK.now_ns() + int(seconds * 1e9)


def key(number: int) -> PageKey:
    """One of many keys, spread as real ones are."""
    return PageKey(hashlib.blake2b(b"%d" % number, digest_size=32).digest())


def name(number: int, *, namespace: NamespaceId = NAMESPACE) -> RecordName:
    return RecordName(namespace, key(number))


def describe(number: int, *, size: int = 4096, **changes: Any) -> PageDescription:
    """A page of `size` bytes; with changes."""
    fields: dict[str, Any] = {
        "namespace": NAMESPACE, "key": key(number), "parent": None if number == 0 else key(number - 1),
        "stamp": Stamp(INCARNATION, 7), "payload_bytes": size, "birth": number + 1, "rests_on": number,
        "producer": b"node/worker", "tags": (b"tag",), "computed_from_ms": 1000, "computed_until_ms": 2000,
    }  # fmt: skip
    return PageDescription(**(fields | changes))


def payload(number: int, *, size: int = 4096) -> memoryview:
    """Bytes that no compression makes smaller, others for each number."""
    return memoryview(hashlib.shake_128(b"%d" % number).digest(size))


def floats(number: int, *, size: int = 4096) -> memoryview:
    """16-bit numbers near to each other, as those of a KV state are: their high bytes compress."""
    low = hashlib.shake_128(b"%d" % number).digest(size // 2)
    made = bytearray(size)
    made[0::2] = low[: (size + 1) // 2].ljust((size + 1) // 2, b"\0")
    made[1::2] = b"\x3c" * (size // 2)
    return memoryview(made)


def place(size: int = 4096) -> memoryview:
    """Where a load goes."""
    return memoryview(bytearray(b"\xee" * size))


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
