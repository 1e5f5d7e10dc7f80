"""Arguments that name part of a chain: checked once, with errors that say what is wrong."""

from __future__ import annotations

from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.ids import KEY_BYTES
from kv_types.limits import CHAIN_PAGES_MAX
from kv_types.numbers import check_integer
from kv_types.page_keys import Keys, pack_keys


def packed_chain(keys: Keys, start: int) -> tuple[bytes, int]:
    """Return the packed keys of a chain and how many pages follow `start`.

    Raises InvalidArgumentError when keys are not whole or `start` lies outside, LimitExceededError on too many.
    """
    try:
        packed = pack_keys(keys)
    except TypeError as error:
        raise InvalidArgumentError(
            f"keys are packed bytes or a list of PageKey; got {type(keys).__name__}"
        ) from error
    pages = len(packed) // KEY_BYTES
    if len(packed) % KEY_BYTES:
        raise InvalidArgumentError(f"packed keys are {KEY_BYTES} bytes each; got {len(packed)} bytes")
    if pages > CHAIN_PAGES_MAX:
        raise LimitExceededError(f"a chain of {pages} pages; at most {CHAIN_PAGES_MAX} are allowed")
    check_integer(start, "start", low=0, high=pages)
    return packed, pages - start


def pages_after(keys: Keys, start: int) -> int:
    """Return how many pages follow `start` in a chain; raises as `packed_chain`."""
    return packed_chain(keys, start)[1]
