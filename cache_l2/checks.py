"""What callers of the store hand in, checked; and what they get back."""

from __future__ import annotations

from collections.abc import Sequence

from kv_types.errors import BufferMismatchError, InvalidArgumentError, LimitExceededError
from kv_types.ids import KEY_BYTES
from kv_types.limits import BATCH_PAGES_MAX, TTL_S_MAX
from kv_types.outcomes import Hit, LookUpOutcome, Miss, MissReason, Tier

_SECOND_NS = 1_000_000_000


def expiry_s(ttl_s: int, now_ns: int) -> int:
    """Return the boot-clock second after which a page's time is over; 0: never. Raises InvalidArgumentError."""
    if ttl_s < 0:
        raise InvalidArgumentError(f"a time to live of {ttl_s} s; it is 0 (never) or more")
    return -(-now_ns // _SECOND_NS) + min(ttl_s, TTL_S_MAX) if ttl_s else 0


def unix_ms_of(expiry_s: int, now_ns: int, wall_ms: int) -> int:
    """Return the end of a page's time on the boot clock as one that other nodes know, Unix ms; 0: never."""
    return max(1, wall_ms + expiry_s * 1000 - now_ns // 1_000_000) if expiry_s else 0


def boot_expiry_s(expires_ms: int, now_ns: int, wall_ms: int) -> int:
    """Return the boot-clock second, to within one, after which it is past a Unix time in ms; 0: never."""
    if not expires_ms:
        return 0
    left_ns = max(0, expires_ms - wall_ms) * 1_000_000
    return -(-now_ns // _SECOND_NS) + min(left_ns // _SECOND_NS, TTL_S_MAX)


def look_up_outcome(pages: int, reason: int) -> LookUpOutcome:
    """Return the outcome of a look-up that found `pages` pages and ended for a MissReason's number."""
    return Hit(pages, Tier.L2, MissReason(reason)) if pages else Miss(MissReason(reason))


def check_batch(keys: bytes) -> int:
    """Return the pages of packed keys that fit one batch. Raises InvalidArgumentError, LimitExceededError."""
    pages, rest = divmod(len(keys), KEY_BYTES)
    if rest:
        raise InvalidArgumentError(f"packed keys are n × {KEY_BYTES} bytes; got {len(keys)}")
    if pages > BATCH_PAGES_MAX:
        raise LimitExceededError(f"a batch of {pages} pages exceeds {BATCH_PAGES_MAX}: split it")
    return pages


def check_buffers(
    buffers: Sequence[memoryview], count: int, page_bytes: int, what: str, *, writable: bool
) -> None:
    """Raise BufferMismatchError unless there is one contiguous buffer of a page's size a page."""
    if len(buffers) != count:
        raise BufferMismatchError(f"{len(buffers)} {what} buffers for {count} pages: give one a page")
    for index, buffer in enumerate(buffers):
        if buffer.nbytes != page_bytes:
            raise BufferMismatchError(f"{what} {index} has {buffer.nbytes} bytes; a page has {page_bytes}")
        if not buffer.c_contiguous or (writable and buffer.readonly):
            raise BufferMismatchError(f"{what} {index} is not contiguous or not writable")
