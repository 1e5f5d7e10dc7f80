"""Pad masks: from padded batches to the real tokens of each row, and KV between padded batches and pages.

The key and the KV of a page depend on real tokens alone. Index arrays are writable numpy int64, which torch
takes as indices as well (`torch.from_numpy(columns)`); `compact`, `expand` and the page functions index in
ways that numpy arrays and torch tensors share, so that connectors need no second implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from kv_types.errors import InvalidArgumentError

TOKEN_ID_END = 1 << 32
Side = Literal["left", "right"]
ArrayT = TypeVar("ArrayT", bound=Any)
"""A numpy array or a torch tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class RowTokens:
    """Real tokens of one row: ids [n] u32, columns [n] i64 where they stand, positions [n] i64 = 0…n−1."""

    token_ids: NDArray[np.uint32]
    columns: NDArray[np.int64]
    positions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.columns)


def real_tokens(input_ids: Any, attention_mask: Any = None) -> list[RowTokens]:
    """Real tokens of each row of `input_ids` [B, S] where `attention_mask` [B, S] is 1 (None: everywhere).

    Pads may stand left, right or in between; an all-pad row is empty. Ids under a pad may be any integer.
    Takes lists, numpy arrays and whatever has `__array__` (torch CPU tensors). Raises InvalidArgumentError.
    """
    ids = _integers(input_ids, "input_ids")
    mask = np.ones(ids.shape, dtype=bool) if attention_mask is None else _mask(attention_mask, ids.shape)
    return [_row(row, ids[row], mask[row]) for row in range(ids.shape[0])]


def _row(row: int, ids: NDArray[Any], mask: NDArray[np.bool_]) -> RowTokens:
    columns = np.flatnonzero(mask).astype(np.int64)
    real = ids[columns]
    wrong = np.flatnonzero((real < 0) | (real >= TOKEN_ID_END))
    if wrong.size:
        at = int(wrong[0])
        raise InvalidArgumentError(
            f"input_ids[{row}, {int(columns[at])}] is {int(real[at])}, which is no u32: mask pads with 0"
        )
    return RowTokens(real.astype(np.uint32), columns, np.arange(len(columns), dtype=np.int64))


def _array(value: Any, name: str) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(f"{name} cannot be read as a host array: {error}") from error
    if array.ndim != 2:
        raise InvalidArgumentError(f"{name} must have shape [batch, tokens]; got {array.shape}")
    return array


def _integers(value: Any, name: str) -> NDArray[Any]:
    array = _array(value, name)
    if array.size == 0:  # an empty list has no integer type to check
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"{name} must hold integers; got {array.dtype}")
    return array


def _mask(value: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    array = _array(value, "attention_mask")
    if array.shape != shape:
        raise InvalidArgumentError(f"attention_mask has shape {array.shape}, but input_ids {shape}")
    if array.size and array.dtype.kind not in "biu":
        raise InvalidArgumentError(
            f"attention_mask must hold 0 and 1 as integers or bools; got {array.dtype} (an additive mask?)"
        )
    if array.size and not bool(((array == 0) | (array == 1)).all()):
        raise InvalidArgumentError("attention_mask must hold 0 and 1 only")
    return array.astype(bool)


def pad_columns(lengths: Sequence[int], *, side: Side, width: int | None = None) -> list[NDArray[np.int64]]:
    """Columns [length] of each row in a batch padded on one side to `width` (None: the longest row).

    Raises InvalidArgumentError.
    """
    if side not in {"left", "right"}:
        raise InvalidArgumentError(f"side must be 'left' or 'right'; got {side!r}")
    longest = max(lengths, default=0)
    width = longest if width is None else width
    if min(lengths, default=0) < 0 or longest > width:
        raise InvalidArgumentError(f"rows of {list(lengths)} tokens do not fit a width of {width}")
    starts = [width - length if side == "left" else 0 for length in lengths]
    return [
        np.arange(start, start + length, dtype=np.int64)
        for start, length in zip(starts, lengths, strict=True)
    ]


def compact(padded: ArrayT, row: int, columns: NDArray[np.int64]) -> ArrayT:
    """Real tokens [H, n, D] of one row of padded KV [B, H, S, D], as a copy. Raises InvalidArgumentError."""
    _check_padded(padded, row, columns)
    return cast("ArrayT", padded[row][:, columns, :])


def expand(compacted: ArrayT, columns: NDArray[np.int64], padded: ArrayT, row: int) -> None:
    """Write the KV [H, n, D] of one row to its columns of padded KV [B, H, S, D]; pads stay as they are.

    Raises InvalidArgumentError.
    """
    _check_padded(padded, row, columns)
    heads, _, dim = tuple(padded.shape)[1:]
    if tuple(compacted.shape) != (heads, len(columns), dim):
        raise InvalidArgumentError(
            f"KV {tuple(compacted.shape)} does not fit {len(columns)} columns of {tuple(padded.shape)}"
        )
    padded[row][:, columns, :] = compacted


def split_pages(compacted: ArrayT, page_tokens: int) -> ArrayT:
    """Full pages [pages, H, page_tokens, D] of compacted KV [H, n, D]; the tokens after them are left out.

    Raises InvalidArgumentError.
    """
    if page_tokens < 1:
        raise InvalidArgumentError(f"page_tokens must be at least 1; got {page_tokens}")
    _check_dimensions(compacted, 3, "compacted KV", "[heads, tokens, dim]")
    heads, tokens, dim = tuple(compacted.shape)
    pages = tokens // page_tokens
    whole = compacted[:, : pages * page_tokens, :].reshape(heads, pages, page_tokens, dim)
    return cast("ArrayT", whole.swapaxes(0, 1))


def join_pages(pages: ArrayT) -> ArrayT:
    """Compacted KV [H, pages × page_tokens, D] of pages [pages, H, page_tokens, D].

    Raises InvalidArgumentError.
    """
    _check_dimensions(pages, 4, "pages", "[pages, heads, page_tokens, dim]")
    count, heads, page_tokens, dim = tuple(pages.shape)
    return cast("ArrayT", pages.swapaxes(0, 1).reshape(heads, count * page_tokens, dim))


def place_pages(
    pages: ArrayT, padded: ArrayT, row: int, columns: NDArray[np.int64], *, first_page: int = 0
) -> int:
    """Write pages [pages, H, page_tokens, D], the chain's from `first_page` on, into a batch [B, H, S, D].

    `columns` are the row's (all its real tokens); a page beyond them is an error. Returns the tokens written.
    Raises InvalidArgumentError.
    """
    joined = join_pages(pages)
    page_tokens = int(pages.shape[2])
    begin = first_page * page_tokens
    end = begin + int(joined.shape[1])
    if first_page < 0 or end > len(columns):
        raise InvalidArgumentError(
            f"pages hold the tokens {begin} to {end} of a row that has {len(columns)} real tokens"
        )
    expand(joined, columns[begin:end], padded, row)
    return end - begin


def _check_padded(padded: Any, row: int, columns: NDArray[np.int64]) -> None:
    _check_dimensions(padded, 4, "padded KV", "[batch, heads, tokens, dim]")
    batch, _, width, _ = tuple(padded.shape)
    if not 0 <= row < batch:
        raise InvalidArgumentError(f"row {row} of a batch of {batch}")
    if len(columns) and (int(columns.min()) < 0 or int(columns.max()) >= width):
        raise InvalidArgumentError(
            f"columns {int(columns.min())} to {int(columns.max())} of padded KV that is {width} tokens wide"
        )


def _check_dimensions(array: Any, wanted: int, name: str, meaning: str) -> None:
    if len(array.shape) != wanted:
        raise InvalidArgumentError(f"{name} must have shape {meaning}; got {tuple(array.shape)}")
