"""Pad masks: keys and KV of a row do not depend on where its pads stand or on who shares its batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kv_types.errors import InvalidArgumentError
from kv_types.pad_masks import (
    RowTokens,
    Side,
    compact,
    expand,
    join_pages,
    pad_columns,
    place_pages,
    real_tokens,
    split_pages,
)
from kv_types.page_keys import page_keys
from tests.kv_types.samples import namespace

HEADS, DIM, PAGE_TOKENS = 3, 4, 8
SPACE = namespace(page_tokens=PAGE_TOKENS).id


def kv_of(tokens: NDArray[Any]) -> NDArray[np.float64]:
    """KV [H, n, D] whose every number says which token at which position, head and dimension it belongs to."""
    n = len(tokens)
    values = np.zeros((HEADS, n, DIM))
    values += tokens.astype(np.float64)[None, :, None] * 1e6
    values += np.arange(n)[None, :, None] * 1e2 + np.arange(HEADS)[:, None, None] * 10 + np.arange(DIM)
    return values


def padded_batch(
    rows: list[NDArray[Any]], columns: list[NDArray[np.int64]], width: int
) -> tuple[Any, Any, Any]:
    """(input_ids, attention_mask, KV) with rubbish under the pads, as a model would leave it."""
    ids = np.full((len(rows), width), 50_256)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    kv = np.full((len(rows), HEADS, width, DIM), np.nan)
    for row, (tokens, where) in enumerate(zip(rows, columns, strict=True)):
        ids[row, where] = tokens
        mask[row, where] = 1
        kv[row][:, where, :] = kv_of(tokens)
    return ids, mask, kv


def rows_of(lengths: list[int]) -> list[NDArray[Any]]:
    draw = np.random.default_rng(5)
    return [draw.integers(0, 50_000, length) for length in lengths]


@pytest.mark.parametrize("side", ["left", "right"])
def test_c28_padding_changes_neither_keys_nor_kv(side: Side) -> None:
    rows = rows_of([5, 37, 128])
    columns = pad_columns([5, 37, 128], side=side)
    ids, mask, kv = padded_batch(rows, columns, 128)
    for row, found in enumerate(real_tokens(ids, mask)):
        (alone,) = real_tokens(rows[row][None, :])
        assert np.array_equal(found.token_ids, alone.token_ids)
        assert np.array_equal(found.positions, alone.positions)
        assert np.array_equal(found.columns, columns[row])
        keys = page_keys(SPACE, found.token_ids, page_tokens=PAGE_TOKENS)
        assert keys == page_keys(SPACE, rows[row].tolist(), page_tokens=PAGE_TOKENS)
        assert len(keys) == 32 * (len(rows[row]) // PAGE_TOKENS)
        assert np.array_equal(compact(kv, row, found.columns), kv_of(rows[row]))


@pytest.mark.parametrize("side", ["left", "right"])
def test_c28_a_padded_batch_is_rebuilt_from_pages(side: Side) -> None:
    rows = rows_of([5, 37, 128])
    columns = pad_columns([5, 37, 128], side=side, width=140)
    _, _, kv = padded_batch(rows, columns, 140)
    rebuilt = np.full_like(kv, np.nan)
    for row, tokens in enumerate(rows):
        compacted = compact(kv, row, columns[row])
        pages = split_pages(compacted, PAGE_TOKENS)
        assert pages.shape == (len(tokens) // PAGE_TOKENS, HEADS, PAGE_TOKENS, DIM)
        written = place_pages(pages, rebuilt, row, columns[row])
        assert written == len(tokens) // PAGE_TOKENS * PAGE_TOKENS
        expand(compacted[:, written:, :], columns[row][written:], rebuilt, row)
    assert np.array_equal(rebuilt, kv, equal_nan=True)


@given(st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=1, max_size=4))
def test_any_mask_gives_the_tokens_under_it(masks: list[list[bool]]) -> None:
    ids = np.arange(12 * len(masks)).reshape(len(masks), 12)
    found = real_tokens(ids, masks)
    assert len(found) == len(masks)
    for row, mask in enumerate(masks):
        expected = [column for column, real in enumerate(mask) if real]
        assert found[row].columns.tolist() == expected
        assert found[row].token_ids.tolist() == [row * 12 + column for column in expected]
        assert found[row].positions.tolist() == list(range(len(expected)))
        assert len(found[row]) == len(expected)


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 6))
def test_holes_are_compacted_and_expanded_back(mask: list[bool], page_tokens: int) -> None:
    columns = np.flatnonzero(mask).astype(np.int64)
    tokens = np.arange(100, 100 + len(columns))
    _, _, kv = padded_batch([tokens], [columns], len(mask))
    compacted = compact(kv, 0, columns)
    assert np.array_equal(compacted, kv_of(tokens))
    pages = split_pages(compacted, page_tokens)
    for page in range(len(pages)):
        first = page * page_tokens
        assert np.array_equal(pages[page], kv_of(tokens)[:, first : first + page_tokens, :])
    rebuilt = np.full_like(kv, np.nan)
    expand(compacted, columns, rebuilt, 0)
    assert np.array_equal(rebuilt, kv, equal_nan=True)
    pads = [column for column, real in enumerate(mask) if not real]
    assert np.isnan(rebuilt[0][:, pads, :]).all()


def test_pages_may_start_inside_a_chain() -> None:
    (tokens,) = rows_of([32])
    (columns,) = pad_columns([32], side="left", width=40)
    pages = split_pages(kv_of(tokens), PAGE_TOKENS)
    target = np.zeros((1, HEADS, 40, DIM))
    assert place_pages(pages[2:], target, 0, columns, first_page=2) == 16
    assert np.array_equal(target[0][:, columns[16:], :], kv_of(tokens)[:, 16:, :])
    assert not target[0][:, columns[:16], :].any()
    with pytest.raises(InvalidArgumentError, match="24 to 40"):
        place_pages(pages[2:], target, 0, columns, first_page=3)
    with pytest.raises(InvalidArgumentError):
        place_pages(pages[2:], target, 0, columns, first_page=-1)


def test_without_a_mask_every_token_is_real() -> None:
    (row,) = real_tokens([[7, 8, 9]])
    assert (row.token_ids.tolist(), row.columns.tolist()) == ([7, 8, 9], [0, 1, 2])
    dtypes = [str(array.dtype) for array in (row.token_ids, row.columns, row.positions)]
    assert dtypes == ["uint32", "int64", "int64"]


def test_an_all_pad_row_is_empty() -> None:
    empty, full = real_tokens([[1, 2], [3, 4]], [[0, 0], [1, 1]])
    assert len(empty) == 0
    assert full.token_ids.tolist() == [3, 4]
    assert page_keys(SPACE, empty.token_ids, page_tokens=1) == b""
    kv: Any = np.zeros((2, HEADS, 2, DIM))
    assert compact(kv, 0, empty.columns).shape == (HEADS, 0, DIM)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
def test_empty_batches_are_no_error(shape: tuple[int, int]) -> None:
    found = real_tokens(np.zeros(shape, dtype=np.int64), np.ones(shape, dtype=bool))
    assert [len(row) for row in found] == [shape[1]] * shape[0]


def test_ids_under_a_pad_may_be_anything() -> None:
    (row,) = real_tokens([[-100, 5, 2**40]], [[0, 1, 0]])
    assert row.token_ids.tolist() == [5]


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.uint8])
def test_torch_tensors_in_and_index_arrays_back(mask_dtype: torch.dtype) -> None:
    ids = torch.tensor([[0, 0, 11, 12], [21, 22, 23, 24]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]).to(mask_dtype)
    rows = real_tokens(ids, mask)
    kv = torch.arange(2 * HEADS * 4 * DIM, dtype=torch.float32).reshape(2, HEADS, 4, DIM).to(torch.bfloat16)
    columns = torch.from_numpy(rows[0].columns)
    assert torch.equal(compact(kv, 0, rows[0].columns), kv[0][:, columns, :])
    assert torch.equal(compact(kv, 0, rows[0].columns), kv[0][:, 2:, :])
    target = torch.zeros_like(kv)
    pages = split_pages(compact(kv, 1, rows[1].columns), 2)
    assert tuple(pages.shape) == (2, HEADS, 2, DIM)
    assert torch.equal(join_pages(pages), kv[1])
    assert place_pages(pages, target, 1, rows[1].columns) == 4
    expand(compact(kv, 0, rows[0].columns), rows[0].columns, target, 0)
    assert torch.equal(target[1], kv[1])
    assert torch.equal(target[0][:, 2:, :], kv[0][:, 2:, :])
    assert not target[0][:, :2, :].any()


def test_pad_columns() -> None:
    assert [one.tolist() for one in pad_columns([1, 3], side="left")] == [[2], [0, 1, 2]]
    assert [one.tolist() for one in pad_columns([1, 3], side="right", width=4)] == [[0], [0, 1, 2]]
    assert [one.tolist() for one in pad_columns([0, 2], side="left")] == [[], [0, 1]]
    assert pad_columns([], side="left") == []
    for lengths, side, width in (([3], "left", 2), ([-1], "left", None), ([1], "middle", None)):
        with pytest.raises(InvalidArgumentError):
            pad_columns(lengths, side=side, width=width)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ids", "mask"),
    [
        ([1, 2, 3], None),
        ([[[1]]], None),
        ([[1.0, 2.0]], None),
        ([[True, False]], None),
        ([["a"]], None),
        ([[1, 2], [3]], None),
        (torch.empty((1, 2), dtype=torch.int64, device="meta"), None),
        ([[1, -1]], None),
        ([[1, 2**32]], [[1, 1]]),
        ([[1, 2]], [[1]]),
        ([[1, 2]], [1, 1]),
        ([[1, 2]], [[1, 2]]),
        ([[1, 2]], [[0, -1]]),
        ([[1, 2]], [[0.0, 1.0]]),
        ([[1, 2]], np.zeros((1, 1, 1, 2))),
    ],
)
def test_bad_batches_are_refused(ids: Any, mask: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        real_tokens(ids, mask)


def test_the_message_names_the_place_of_a_bad_token() -> None:
    with pytest.raises(InvalidArgumentError, match=r"input_ids\[1, 2\] is -100"):
        real_tokens([[1, 2, 3], [4, 5, -100]], [[1, 1, 1], [0, 1, 1]])


def test_kv_of_the_wrong_shape_is_refused() -> None:
    kv = np.zeros((1, HEADS, 4, DIM))
    columns = np.arange(4)
    for call in (
        lambda: compact(kv[0], 0, columns),
        lambda: compact(kv, 1, columns),
        lambda: compact(kv, -1, columns),
        lambda: compact(kv, 0, columns + 1),
        lambda: compact(kv, 0, columns - 1),
        lambda: expand(np.zeros((HEADS, 3, DIM)), columns, kv, 0),
        lambda: expand(np.zeros((HEADS, 4, DIM + 1)), columns, kv, 0),
        lambda: split_pages(kv, 2),
        lambda: split_pages(kv[0], 0),
        lambda: join_pages(kv[0]),
    ):
        with pytest.raises(InvalidArgumentError):
            call()
    assert isinstance(real_tokens([[1]])[0], RowTokens)
