"""Identifiers: fixed-size byte strings with their own types, so that none is taken for another."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NewType

from kv_types.errors import InvalidIdentifierError

NamespaceId = NewType("NamespaceId", bytes)
"""32 bytes: BLAKE2b-256 of a namespace's canonical encoding."""

PageKey = NewType("PageKey", bytes)
"""32 bytes: BLAKE2b-256 of (parent key or namespace id ‖ token ids as little-endian u32 ‖ extra digests)."""

LifeId = NewType("LifeId", bytes)
"""16 random bytes: one life of a sidecar."""

LogIncarnation = NewType("LogIncarnation", bytes)
"""16 random bytes: one life of the invalidation log."""

KEY_BYTES = 32
DIGEST_BYTES = 8
"""Of a page key, what a recording of look-ups tells pages apart by: its first bytes."""
LIFE_BYTES = 16
INCARNATION_BYTES = 16

NO_LIFE = LifeId(bytes(LIFE_BYTES))
"""Stands for the life while no header can be read; no sidecar's life, which is random."""


NO_INCARNATION = LogIncarnation(bytes(INCARNATION_BYTES))
"""Stands for the incarnation before a sidecar has joined a log; no stamp of it may commit anything."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Log position that a request loaded before it reused anything (protocol rule R1).

    `revision` counts records of the log; it can be compared only within one `incarnation`.
    """

    incarnation: LogIncarnation
    revision: int


def namespace_id(value: bytes) -> NamespaceId:
    """Check and type 32 bytes as a namespace id; raises InvalidIdentifierError."""
    return NamespaceId(_exact(value, KEY_BYTES, "namespace id"))


def page_key(value: bytes) -> PageKey:
    """Check and type 32 bytes as a page key; raises InvalidIdentifierError."""
    return PageKey(_exact(value, KEY_BYTES, "page key"))


def log_incarnation(value: bytes) -> LogIncarnation:
    """Check and type 16 bytes as a log incarnation; raises InvalidIdentifierError."""
    return LogIncarnation(_exact(value, INCARNATION_BYTES, "log incarnation"))


def new_life_id() -> LifeId:
    """Draw a life id from the operating system's random source."""
    return LifeId(os.urandom(LIFE_BYTES))


def new_log_incarnation() -> LogIncarnation:
    """Draw a log incarnation from the operating system's random source."""
    return LogIncarnation(os.urandom(INCARNATION_BYTES))


def _exact(value: bytes, size: int, what: str) -> bytes:
    if not isinstance(value, bytes) or len(value) != size:
        got = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
        raise InvalidIdentifierError(f"a {what} is exactly {size} bytes; got {got}")
    return value
