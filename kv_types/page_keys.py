"""Page keys: 32-byte BLAKE2b chains over real token ids, in batch and token by token.

key = BLAKE2b-256(parent key, or the namespace id for the first page ‖ token ids as u32 LE ‖ encoded extras),
without personalisation, salt or key parameters. Extras are digests of content that shapes a page beside its
tokens (images…): count u32 LE, then each as (length u32 LE ‖ bytes). Without extras nothing is appended.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from kv_types.errors import InvalidArgumentError, InvalidIdentifierError, LimitExceededError
from kv_types.ids import DIGEST_BYTES, KEY_BYTES, NamespaceId, PageKey, namespace_id
from kv_types.limits import (
    CHAIN_PAGES_MAX,
    EXTRA_DIGEST_BYTES_MAX,
    EXTRA_DIGESTS_PER_PAGE_MAX,
    LOOK_UP_ROWS_MAX,
    PAGE_TOKENS_MAX,
)
from kv_types.numbers import check_integer

Keys = bytes | Sequence[PageKey]
"""A chain from the root: packed (n × 32 bytes) or as a sequence of keys."""

TokenIds = Any
"""Ints, or a one-dimensional integer array that has the buffer protocol (numpy) or `__array__` (torch)."""

Extras = Mapping[int, Sequence[bytes]]
"""Page index in the chain → content digests of that page, in a fixed order."""

TOKEN_ID_END = 1 << 32
_TOKEN_BYTES = 4
_LENGTH = struct.Struct("<I")
# array's "I" is C's unsigned int: four bytes on every platform that the arena supports
assert array("I").itemsize == _TOKEN_BYTES


def key_digests(packed: bytes) -> bytes:
    """The first DIGEST_BYTES of each of packed keys, concatenated: enough to tell pages apart."""
    return memoryview(packed).cast("B").cast("Q")[:: KEY_BYTES // DIGEST_BYTES].tobytes()


def pack_keys(keys: Keys) -> bytes:
    """Concatenate keys (or check already packed ones). Raises InvalidIdentifierError, LimitExceededError."""
    if isinstance(keys, bytes):
        packed = keys
    elif isinstance(keys, bytearray | memoryview):
        packed = bytes(keys)
    else:
        for index, key in enumerate(keys):
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                got = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
                raise InvalidIdentifierError(f"page key {index} must be {KEY_BYTES} bytes; got {got}")
        packed = b"".join(keys)
    if len(packed) % KEY_BYTES:
        raise InvalidIdentifierError(
            f"packed page keys have {len(packed)} bytes, which is no multiple of {KEY_BYTES}"
        )
    _check_chain(len(packed) // KEY_BYTES)
    return packed


def unpack_keys(packed: bytes) -> list[PageKey]:
    """Split packed keys. Raises InvalidIdentifierError, LimitExceededError."""
    packed = pack_keys(packed)
    return [PageKey(packed[at : at + KEY_BYTES]) for at in range(0, len(packed), KEY_BYTES)]


def page_keys(
    namespace: NamespaceId, token_ids: TokenIds, *, page_tokens: int, extras: Extras | None = None
) -> bytes:
    """Packed keys of the full pages of one row of real tokens; tokens beyond the last full page have no key.

    Extras of pages that are not full are ignored. Raises InvalidArgumentError (token ids that are not
    integers in 0 … 2³²−1, wrong sizes), LimitExceededError.
    """
    _check_page_tokens(page_tokens)
    tokens = _token_bytes(token_ids)
    step = page_tokens * _TOKEN_BYTES
    _check_chain(len(tokens) // step)
    return b"".join(_digests(namespace_id(namespace), tokens, step, _encode_extras(extras)))


def page_keys_batch(
    namespace: NamespaceId,
    rows: Sequence[TokenIds],
    *,
    page_tokens: int,
    extras: Sequence[Extras | None] | None = None,
) -> list[bytes]:
    """`page_keys` of each row. Raises as it does, and when there are more extras or rows than may be."""
    if len(rows) > LOOK_UP_ROWS_MAX:
        raise LimitExceededError(f"{len(rows)} rows; at most {LOOK_UP_ROWS_MAX} are allowed in one batch")
    if extras is None:
        extras = [None] * len(rows)
    if len(extras) != len(rows):
        raise InvalidArgumentError(f"{len(extras)} extras for {len(rows)} rows; give one a row (None: none)")
    return [
        page_keys(namespace, row, page_tokens=page_tokens, extras=extra)
        for row, extra in zip(rows, extras, strict=True)
    ]


class KeyChain:
    """The keys of one growing row. Not thread-safe; `copy` branches it (one turn, several continuations)."""

    def __init__(self, namespace: NamespaceId, page_tokens: int) -> None:
        """Raises InvalidIdentifierError, InvalidArgumentError."""
        _check_page_tokens(page_tokens)
        self._parent: bytes = namespace_id(namespace)
        self._page_tokens = page_tokens
        self._digests: list[bytes] = []
        self._tail = bytearray()
        self._extras: dict[int, list[bytes]] = {}

    def extend(self, token_ids: TokenIds, *, extras: Extras | None = None) -> int:
        """Append real tokens; returns how many pages became full.

        Extras name a page by its index in the chain and must be there before the page is full; those of one
        page given in several calls are appended. On an error nothing has changed. Raises as `page_keys` does.
        """
        tokens = bytes(self._tail) + _token_bytes(token_ids)
        step = self._page_tokens * _TOKEN_BYTES
        pages = len(tokens) // step
        _check_chain(len(self._digests) + pages)
        merged = self._merged(extras)
        new = _digests(self._parent, tokens, step, _encode_extras(merged), first_page=self.pages)
        self._digests += new
        self._parent = self._digests[-1] if self._digests else self._parent
        self._tail = bytearray(tokens[pages * step :])
        self._extras = {page: digests for page, digests in merged.items() if page >= self.pages}
        return pages

    def _merged(self, extras: Extras | None) -> dict[int, list[bytes]]:
        merged = {page: list(digests) for page, digests in self._extras.items()}
        for page, digests in (extras or {}).items():
            if isinstance(page, int) and 0 <= page < self.pages:
                raise InvalidArgumentError(f"page {page} is full already; its extras came too late")
            merged.setdefault(page, []).extend(digests)
        return merged

    @property
    def keys(self) -> list[PageKey]:
        """Keys of the full pages, root first (a new list)."""
        return [PageKey(digest) for digest in self._digests]

    @property
    def packed(self) -> bytes:
        """Keys of the full pages, n × 32 bytes."""
        return b"".join(self._digests)

    @property
    def pages(self) -> int:
        """Full pages so far."""
        return len(self._digests)

    @property
    def tokens(self) -> int:
        """Tokens so far, those of the unfinished page included."""
        return len(self._digests) * self._page_tokens + len(self._tail) // _TOKEN_BYTES

    def copy(self) -> KeyChain:
        """Make an independent chain of the same state."""
        twin = KeyChain.__new__(KeyChain)
        twin._parent = self._parent
        twin._page_tokens = self._page_tokens
        twin._digests = list(self._digests)
        twin._tail = bytearray(self._tail)
        twin._extras = {page: list(digests) for page, digests in self._extras.items()}
        return twin


def _digests(
    parent: bytes, tokens: bytes, step: int, extras: Mapping[int, bytes], *, first_page: int = 0
) -> list[bytes]:
    """Keys of the full pages at the front of `tokens`, `step` bytes each."""
    digests: list[bytes] = []
    for page in range(len(tokens) // step):
        data = parent + tokens[page * step : (page + 1) * step]
        if extras:
            data += extras.get(first_page + page, b"")
        parent = blake2b(data, digest_size=KEY_BYTES).digest()
        digests.append(parent)
    return digests


def _token_bytes(token_ids: TokenIds) -> bytes:
    """Token ids as u32 LE bytes."""
    if isinstance(token_ids, bytes | bytearray | str):
        raise InvalidArgumentError(
            f"token ids must be integers, not {type(token_ids).__name__}: pass a sequence or array of ids"
        )
    if isinstance(token_ids, list | tuple):
        return _from_numbers(token_ids)
    view = _as_view(token_ids)
    return _from_numbers(list(token_ids)) if view is None else _from_view(view)


def _as_view(token_ids: TokenIds) -> memoryview | None:
    source = token_ids
    try:
        return memoryview(source)
    except (TypeError, ValueError, BufferError):
        pass
    if hasattr(source, "__array__"):
        try:
            return memoryview(source.__array__())
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise InvalidArgumentError(f"token ids cannot be read as a host array: {error}") from error
    if not isinstance(source, Iterable):
        raise InvalidArgumentError(f"token ids must be a sequence or array; got {type(source).__name__}")
    return None


def _from_numbers(numbers: Sequence[int]) -> bytes:
    # array() takes bools and whatever has __index__, so that kinds are looked at first
    for kind in set(map(type, numbers)):
        if kind is bool or not hasattr(kind, "__index__"):
            raise InvalidArgumentError(f"token ids must be integers; one is a {kind.__name__}")
    try:
        packed = array("I", numbers)
    except (OverflowError, TypeError) as error:
        raise InvalidArgumentError(_range_problem(numbers)) from error
    return _little_endian(packed)


def _range_problem(numbers: Sequence[int]) -> str:
    for index, number in enumerate(numbers):
        if not 0 <= int(number) < TOKEN_ID_END:
            return f"token id {int(number)} at index {index} is not a u32: remove pads first"
    return "token ids must be integers"


def _from_view(view: memoryview) -> bytes:
    if view.ndim != 1:
        raise InvalidArgumentError(f"token ids must have one dimension, one row at a time; got {view.ndim}")
    kind = view.format.lstrip("@=<") if sys.byteorder == "little" else view.format.lstrip("@=>")
    if len(kind) != 1 or kind not in "bBhHiIlLqQnN":
        raise InvalidArgumentError(
            f"token ids must be integers in native byte order; got an array of format {view.format!r}"
        )
    if sys.byteorder == "little" and view.itemsize == _TOKEN_BYTES:
        raw = view.tobytes()
        # a signed id is negative exactly when its last byte has the top bit, which ASCII never has
        if kind.islower() and not raw[3::_TOKEN_BYTES].isascii():
            raise InvalidArgumentError(_range_problem(view.tolist()))
        return raw
    # whoever holds a numpy or torch array has imported numpy; nobody else is made to
    numpy = sys.modules.get("numpy")
    return _from_numbers(view.tolist()) if numpy is None else _from_array(numpy.asarray(view))


def _from_array(ids: Any) -> bytes:
    """Ids of a numpy array, checked without making a Python int of each."""
    narrow = ids.astype("<u4")
    if not bool((narrow == ids).all()):
        raise InvalidArgumentError(_range_problem(ids.tolist()))
    return bytes(narrow.tobytes())


def _little_endian(packed: array[int]) -> bytes:
    if sys.byteorder != "little":
        packed.byteswap()
    return packed.tobytes()


def _encode_extras(extras: Extras | None) -> dict[int, bytes]:
    return {page: _encode_page_extras(page, digests) for page, digests in (extras or {}).items() if digests}


def _encode_page_extras(page: int, digests: Sequence[bytes]) -> bytes:
    if isinstance(page, bool) or not isinstance(page, int) or page < 0:
        raise InvalidArgumentError(f"extras name a page by its index from 0; got {page!r}")
    if len(digests) > EXTRA_DIGESTS_PER_PAGE_MAX:
        raise LimitExceededError(
            f"page {page} has {len(digests)} extras; at most {EXTRA_DIGESTS_PER_PAGE_MAX} are allowed"
        )
    for digest in digests:
        if not isinstance(digest, bytes) or not 1 <= len(digest) <= EXTRA_DIGEST_BYTES_MAX:
            got = f"{len(digest)} bytes" if isinstance(digest, bytes) else type(digest).__name__
            raise InvalidArgumentError(
                f"an extra digest of page {page} must be 1 to {EXTRA_DIGEST_BYTES_MAX} bytes; got {got}"
            )
    return _LENGTH.pack(len(digests)) + b"".join(_LENGTH.pack(len(digest)) + digest for digest in digests)


def _check_page_tokens(page_tokens: int) -> None:
    check_integer(page_tokens, "page_tokens", low=1, high=PAGE_TOKENS_MAX)


def _check_chain(pages: int) -> None:
    if pages > CHAIN_PAGES_MAX:
        raise LimitExceededError(f"a chain of {pages} pages; at most {CHAIN_PAGES_MAX} are allowed")
