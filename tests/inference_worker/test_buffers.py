"""Buffers: what may be brought, and errors that name the index, the bytes needed and the bytes there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from inference_worker.buffers import page_views
from kv_types.errors import BufferMismatchError

PAGE = 64


def views(buffers: Any, *, pages: int = 2, writable: bool = True) -> list[memoryview]:
    what = "destination" if writable else "source"
    return page_views(buffers, pages=pages, page_bytes=PAGE, writable=writable, what=what)


@pytest.mark.parametrize(
    "buffers",
    [
        [bytearray(PAGE), bytearray(PAGE)],
        (np.zeros(PAGE, np.uint8), np.zeros((4, 4), np.float32)),
        [torch.zeros(8, 4, dtype=torch.bfloat16), torch.zeros(PAGE, dtype=torch.float8_e4m3fn)],
        bytearray(2 * PAGE),
        np.zeros((2, PAGE), np.uint8),
        torch.zeros(2, 8, 4, dtype=torch.bfloat16),
        bytearray(2 * PAGE + 5),
    ],
    ids=["bytearrays", "numpy", "torch", "one", "one-numpy", "one-torch", "one-longer"],
)
def test_writes_reach_the_callers_memory(buffers: Any) -> None:
    first, second = views(buffers)
    first[:] = b"\x01" * PAGE
    second[:] = b"\x02" * PAGE
    again = views(buffers)
    assert (bytes(again[0]), bytes(again[1])) == (b"\x01" * PAGE, b"\x02" * PAGE)


def test_a_tensor_with_an_offset_is_seen_where_it_lies() -> None:
    whole = torch.zeros(4, PAGE, dtype=torch.uint8)
    views([whole[2], whole[3]])[0][:] = b"\x07" * PAGE
    assert whole[2].eq(7).all()
    assert whole[:2].eq(0).all()


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ([bytearray(PAGE)], "2 pages need 2 destinations; got 1"),
        ([bytearray(PAGE), bytearray(PAGE - 1)], r"destination 1 holds 63 bytes; .* has 64"),
        ([bytearray(PAGE), bytes(PAGE)], "destination 1 is read-only"),
        ([bytearray(PAGE), "text"], "destination 1 is of type str"),
        ([np.zeros((8, 16), np.uint8)[:, ::2], bytearray(PAGE)], "destination 0 is not contiguous"),
        ([torch.zeros(8, 8).t(), bytearray(PAGE)], "destination 0 is not contiguous"),
        ([torch.zeros(PAGE, requires_grad=True), bytearray(PAGE)], "destination 0 .*grad"),
        ([torch.zeros(PAGE, device="meta"), bytearray(PAGE)], "destination 0 does not hand out"),
        (bytearray(PAGE), "holds 64 bytes; 2 pages of 64 bytes need 128"),
        (3, "of type int"),
    ],
)
def test_what_does_not_fit_is_named(buffers: Any, message: str) -> None:
    with pytest.raises(BufferMismatchError, match=message):
        views(buffers)


def test_a_source_may_be_read_only_but_not_longer() -> None:
    assert bytes(views(bytes(range(128)), writable=False)[1]) == bytes(range(64, 128))
    with pytest.raises(BufferMismatchError, match="holds 129 bytes"):
        views(bytes(129), writable=False)
