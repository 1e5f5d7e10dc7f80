"""Gather and scatter: pages and a contiguous cache hold the same numbers, by the native copies and by torch's, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cache_l1.transfer_contiguous import ContiguousCopies
from cache_l2 import _native
from kv_types.errors import BufferMismatchError, InvalidArgumentError
from kv_types.namespace import AttentionKind, Geometry, KvDtype
from kv_types.page_layout import PageLayout
from tests.kv_types.samples import namespace

CAPACITY = 11
TOKENS = 4
COLUMNS = 30
GQA = Geometry(
    attention=AttentionKind.GQA, layers_total=3, layer_begin=0, layer_end=3,
    kv_heads_total=2, head_begin=0, head_end=2, head_dim=8,
)  # fmt: skip
MLA = Geometry(
    attention=AttentionKind.MLA, layers_total=2, layer_begin=0, layer_end=2, latent_dim=12, rope_dim=4,
)  # fmt: skip
KINDS = {"gqa": GQA, "mla": MLA}
WAYS = {"native": _native, "torch": None}


def copies_of(kind: str, way: str) -> ContiguousCopies:
    layout = PageLayout.of(namespace(geometry=KINDS[kind], kv_dtype=KvDtype.BF16, page_tokens=TOKENS))
    return ContiguousCopies(layout, torch.bfloat16, native=WAYS[way])


def some_pages(copies: ContiguousCopies, *, seed: int = 3) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (CAPACITY, copies.page_bytes), dtype=torch.uint8, generator=draw)


def empty_cache(copies: ContiguousCopies, *, layout: str = "rows") -> list[torch.Tensor]:
    """One tensor a part, as engines have them: a head's columns adjacent, or all heads of a column."""
    if layout == "rows":
        return [torch.zeros((one.heads, COLUMNS, one.width), dtype=copies.dtype) for one in copies.parts]
    return [
        torch.zeros((COLUMNS, one.heads, one.width), dtype=copies.dtype).transpose(0, 1)
        for one in copies.parts
    ]


def bits(tensors: list[torch.Tensor]) -> list[bytes]:
    return [one.contiguous().view(torch.uint8).numpy().tobytes() for one in tensors]


def naive(
    copies: ContiguousCopies, pages: torch.Tensor, numbers: list[int], column: int
) -> list[torch.Tensor]:
    """Number by number, from what a page is said to be."""
    cache = empty_cache(copies)
    for place, number in enumerate(numbers):
        at = 0
        numbers_of_page = pages[number].view(torch.bfloat16)
        for part, tensor in zip(copies.parts, cache, strict=True):
            for head in range(part.heads):
                for token in range(TOKENS):
                    tensor[head, column + place * TOKENS + token] = numbers_of_page[at : at + part.width]
                    at += part.width
    return cache


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", [[4], [2, 3, 4], [9, 0, 5, 1], [7, 7], []], ids=str)
@pytest.mark.parametrize("column", [0, 3])
def test_gather_gives_the_numbers_of_the_pages(
    way: str, layout: str, kind: str, numbers: list[int], column: int
) -> None:
    copies = copies_of(kind, way)
    pages, cache = some_pages(copies), empty_cache(copies, layout=layout)
    copies.gather(pages, numbers, cache, column=column)
    assert bits(cache) == bits(naive(copies, pages, numbers, column))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", [[4], [2, 3, 4], [9, 0, 5, 1], []], ids=str)
def test_scatter_is_the_reverse_and_touches_no_other_page(
    way: str, layout: str, kind: str, numbers: list[int]
) -> None:
    copies = copies_of(kind, way)
    source, cache = some_pages(copies), empty_cache(copies, layout=layout)
    copies.gather(source, numbers, cache, column=2)
    before = some_pages(copies, seed=4)
    target = before.clone()
    copies.scatter(cache, target, numbers, column=2)
    others = [number for number in range(CAPACITY) if number not in numbers]
    assert torch.equal(target[numbers], source[numbers])
    assert torch.equal(target[others], before[others])


@pytest.mark.parametrize("tokens", range(TOKENS + 1))
def test_a_part_of_a_page_goes_alone(tokens: int) -> None:
    copies = copies_of("gqa", "native")
    pages, cache = some_pages(copies), empty_cache(copies)
    copies.copy_part_of_page(pages, 6, cache, column=5, tokens=tokens)
    whole = naive(copies, pages, [6], 5)
    for ours, theirs in zip(cache, whole, strict=True):
        assert torch.equal(ours[:, : 5 + tokens].view(torch.int16), theirs[:, : 5 + tokens].view(torch.int16))
        assert not ours[:, 5 + tokens :].any()


@pytest.mark.parametrize("way", WAYS)
def test_what_does_not_fit_is_refused_before_a_byte_is_copied(way: str) -> None:
    copies = copies_of("gqa", way)
    pages, cache = some_pages(copies), empty_cache(copies)
    short, odd = [one[:, :7] for one in cache], [one.to(torch.float16) for one in cache]
    bad: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (InvalidArgumentError, "pages 1 to 11 of 11", {"numbers": [1, CAPACITY]}),
        (InvalidArgumentError, "pages -1 to", {"numbers": [-1]}),
        (BufferMismatchError, "one a part", {"targets": cache[1:]}),
        (BufferMismatchError, "columns 0 to 8", {"targets": short}),
        (BufferMismatchError, "float16", {"targets": odd}),
        (BufferMismatchError, "columns 27 to", {"column": 27}),
        (BufferMismatchError, "columns -1 to", {"column": -1}),
        (BufferMismatchError, "pages are uint8", {"pages": pages[:, 1:]}),
        (BufferMismatchError, "pages are uint8", {"pages": pages.view(torch.int8)}),
    ]
    for error, text, changes in bad:
        given: dict[str, Any] = {"pages": pages, "numbers": [0, 1], "targets": cache, "column": 0} | changes
        with pytest.raises(error, match=text):
            copies.gather(given["pages"], given["numbers"], given["targets"], column=given["column"])
        with pytest.raises(error, match=text):
            copies.scatter(given["targets"], given["pages"], given["numbers"], column=given["column"])
    assert not any(one.any() for one in cache)
    with pytest.raises(InvalidArgumentError, match="5 tokens"):
        copies.copy_part_of_page(pages, 0, cache, column=0, tokens=5)
