"""DevicePages: raw bytes in and out of tensors of any dtype, shape and strides, and of plain buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cache_l1.device_pages import TORCH_DTYPES, DevicePages
from kv_types.errors import BufferMismatchError, InvalidArgumentError
from kv_types.limits import PAGE_BYTES_MAX
from kv_types.namespace import KvDtype, Quantisation, QuantisationScheme
from kv_types.page_layout import PageLayout
from tests.kv_types.samples import geometry, mla, namespace

PATTERN = bytes(range(256)) * 3


def pages(page_bytes: int = 48, capacity: int = 3) -> DevicePages:
    return DevicePages(capacity=capacity, page_bytes=page_bytes)


def raw(store: DevicePages, page: int) -> bytes:
    return bytes(store.raw(page).numpy())


@pytest.mark.parametrize("dtype", [*TORCH_DTYPES.values(), torch.uint8, torch.int64])
def test_tensors_go_in_and_out_as_bytes(dtype: torch.dtype) -> None:
    store = pages()
    source = torch.frombuffer(bytearray(PATTERN[:48]), dtype=torch.uint8).view(dtype).reshape(2, -1)
    store.write(1, source)
    assert raw(store, 1) == PATTERN[:48]
    assert raw(store, 0) == raw(store, 2) == bytes(48)
    destination = torch.zeros_like(source)
    store.read(1, destination)
    assert destination.view(torch.uint8).flatten().tolist() == list(PATTERN[:48])


@pytest.mark.parametrize("page_bytes", [48, 50])
def test_strided_tensors_are_gathered_and_scattered(page_bytes: int) -> None:
    store = pages(page_bytes)
    values = torch.arange(page_bytes // 2, dtype=torch.int16)
    wide = torch.zeros((page_bytes // 2, 3), dtype=torch.int16)
    wide[:, 1] = values
    store.write(1, wide[:, 1])
    assert raw(store, 1) == values.numpy().tobytes()
    target = torch.full((page_bytes // 2, 2), -1, dtype=torch.int16)
    store.read(1, target[:, 0])
    assert torch.equal(target[:, 0], values)
    assert (target[:, 1] == -1).all()


def test_a_page_of_odd_size_takes_wide_numbers() -> None:
    store = pages(51)
    store.write(1, torch.arange(51, dtype=torch.uint8))
    with pytest.raises(BufferMismatchError, match="52 bytes; a page has 51"):
        store.write(1, torch.zeros(13, dtype=torch.float32))
    with pytest.raises(BufferMismatchError):
        store.read(1, torch.zeros(13, dtype=torch.float32))
    assert raw(store, 1) == bytes(range(51))


@pytest.mark.parametrize(
    "buffer",
    [
        PATTERN[:48],
        bytearray(PATTERN[:48]),
        memoryview(PATTERN)[:48],
        np.frombuffer(PATTERN[:48], dtype=np.float16),
        np.frombuffer(PATTERN[:48], dtype=np.uint8).reshape(6, 8),
    ],
    ids=lambda buffer: type(buffer).__name__,
)
def test_plain_buffers_go_in(buffer: Any) -> None:
    store = pages()
    store.write(2, buffer)
    assert raw(store, 2) == PATTERN[:48]


def test_plain_buffers_are_filled() -> None:
    store = pages()
    store.write(0, PATTERN[:48])
    for destination in (bytearray(48), memoryview(bytearray(48)), np.zeros(24, dtype=np.float16)):
        store.read(0, destination)
        assert bytes(memoryview(destination).cast("B")) == PATTERN[:48]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [b"", bytes(47), bytes(49), memoryview(bytes(96))[::2], "text", 7, [1] * 48]
)
def test_wrong_sources_are_refused(wrong: Any) -> None:
    store = pages()
    with pytest.raises(BufferMismatchError):
        store.write(0, wrong)
    assert raw(store, 0) == bytes(48)


@pytest.mark.parametrize(
    "wrong", [bytes(48), bytearray(47), memoryview(bytearray(96))[::2], None, torch.zeros(47)]
)
def test_wrong_destinations_are_refused(wrong: Any) -> None:
    with pytest.raises(BufferMismatchError):
        pages().read(0, wrong)


@pytest.mark.parametrize("page", [-1, 3])
def test_pages_outside_are_refused(page: int) -> None:
    store = pages()
    for call in (
        lambda: store.raw(page),
        lambda: store.write(page, bytes(48)),
        lambda: store.read(page, bytearray(48)),
    ):
        with pytest.raises(InvalidArgumentError):
            call()


@pytest.mark.parametrize(("capacity", "page_bytes"), [(0, 48), (1, 0), (1, PAGE_BYTES_MAX + 1)])
def test_a_store_has_pages_of_a_size(capacity: int, page_bytes: int) -> None:
    with pytest.raises(InvalidArgumentError):
        DevicePages(capacity=capacity, page_bytes=page_bytes)


@pytest.mark.parametrize("dtype", list(KvDtype))
@pytest.mark.parametrize("attention", ["gqa", "mla"])
def test_parts_are_views_of_the_page(dtype: KvDtype, attention: str) -> None:
    quantisation = Quantisation(QuantisationScheme.PER_HEAD_PAGE) if dtype.item_bytes == 1 else None
    shape = geometry(head_dim=3, value_head_dim=5) if attention == "gqa" else mla(latent_dim=5, rope_dim=3)
    layout = PageLayout.of(
        namespace(kv_dtype=dtype, quantisation=quantisation, geometry=shape, page_tokens=3)
    )
    store = DevicePages(capacity=2, page_bytes=layout.page_bytes)
    filled = torch.zeros(layout.page_bytes, dtype=torch.uint8)
    for number, (part, view) in enumerate(store.views(1, layout)):
        assert tuple(view.shape) == part.shape
        assert view.dtype == TORCH_DTYPES[part.dtype]
        view.view(torch.uint8).fill_(number + 1)
        filled[part.offset : part.offset + part.size_bytes] = number + 1
    assert torch.equal(store.raw(1), filled), "no part writes into another one"
    assert not store.raw(0).any()


def test_a_part_that_does_not_fit_is_refused() -> None:
    layout = PageLayout.of(namespace())
    small = DevicePages(capacity=1, page_bytes=layout.page_bytes - 2)
    with pytest.raises(InvalidArgumentError, match="ends at byte"):
        small.view(0, layout.parts()[-1])
    odd = DevicePages(capacity=2, page_bytes=layout.page_bytes + 1)
    with pytest.raises(InvalidArgumentError, match="aligned"):
        odd.view(1, layout.parts()[0])


def test_it_says_what_it_is() -> None:
    store = pages()
    assert (store.capacity, store.page_bytes, store.device) == (3, 48, torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pages_on_a_gpu_hold_the_same_bytes() -> None:
    store = DevicePages(capacity=2, page_bytes=48, device="cuda")
    for source in (PATTERN[:48], torch.frombuffer(bytearray(PATTERN[:48]), dtype=torch.float16).cuda()):
        store.write(1, bytes(48))
        store.write(1, source)
        destination, tensor = bytearray(48), torch.zeros(24, dtype=torch.bfloat16, device="cuda")
        store.read(1, destination)
        store.read(1, tensor)
        assert bytes(destination) == PATTERN[:48]
        assert tensor.view(torch.uint8).cpu().tolist() == list(PATTERN[:48])
