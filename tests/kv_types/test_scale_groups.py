"""Scale groups cover a page's numbers, each once, as its layout has them; what a layout does not tell is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings

from cache_l2.namespaces import NamespaceRegistry
from inference_worker.namespaces import page_bytes_of
from kv_types.errors import InvalidArgumentError, LayoutConflictError, LimitExceededError, ProtocolError
from kv_types.namespace import (
    Geometry,
    KvDtype,
    Namespace,
    Quantisation,
    QuantisationScheme,
    StoredAs,
    Uncacheable,
    UncacheableReason,
    Weights,
    identify,
    parameters,
)
from kv_types.page_layout import PageLayout, PartRole
from kv_types.scale_groups import ScaledArray, check_stored_as, error_bound, scaled_arrays
from tests.kv_types.samples import geometry, mla, namespace, namespaces

ENGINE = "an engine's own"


def check_cover(of: Namespace, page_bytes: int) -> tuple[ScaledArray, ...]:
    """The arrays stand one behind another, have whole groups, and leave out less than a number at each seam."""
    arrays, item, end = scaled_arrays(of, page_bytes), of.kv_dtype.item_bytes, 0
    for one in arrays:
        assert 0 <= one.offset - end < item
        assert one.rows % one.rows_a_scale == 0
        end = one.offset + one.rows * one.columns * item
    assert 0 <= page_bytes - end < item
    return arrays


@settings(deadline=None)
@given(namespaces())
def test_arrays_cover_every_canonical_page(given_space: Namespace) -> None:
    assume(given_space.stored_as is not None)
    space = replace(given_space, layout="canonical-1")
    try:
        layout = PageLayout.of(space)
    except LimitExceededError:
        assume(False)
    assert len(check_cover(space, layout.page_bytes)) == len(layout.parts())


def test_fp8_has_a_scale_a_head_and_int8_one_a_channel_of_keys_and_one_a_token_of_values() -> None:
    space = namespace(stored_as=StoredAs.FP8_E4M3)
    layout = PageLayout.of(space)
    for one, part in zip(scaled_arrays(space, layout.page_bytes), layout.parts(), strict=True):
        assert one == ScaledArray(part.offset, 2 * 16, 8, 16, by_column=False)
    for one, part in zip(
        scaled_arrays(replace(space, stored_as=StoredAs.INT8), layout.page_bytes), layout.parts(), strict=True
    ):
        assert (one.rows_a_scale, one.by_column) == ((16, True) if part.role is PartRole.KEY else (1, False))


@pytest.mark.parametrize("stored_as", StoredAs)
@pytest.mark.parametrize(
    ("shape", "columns"),
    [(geometry(head_dim=64), 64), (geometry(head_dim=64, value_head_dim=48), 16), (mla(), 20)],
    ids=["gqa", "unequal", "mla"],
)
def test_an_engines_own_layout_has_a_scale_for_so_many_neighbours_as_a_head_has_numbers(
    shape: Geometry, columns: int, stored_as: StoredAs
) -> None:
    space = namespace(geometry=shape, layout=ENGINE, stored_as=stored_as)
    numbers = shape.heads * (shape.head_dim + shape.value_head_dim) + shape.latent_dim + shape.rope_dim
    size = shape.layers * numbers * space.page_tokens * 2
    arrays = check_cover(space, size)
    assert {(one.columns, one.rows_a_scale, one.by_column) for one in arrays} == {(columns, 1, False)}
    assert len(arrays) == shape.layers
    for wrong in (size + 2, size - 2, 2 * size):
        with pytest.raises(InvalidArgumentError, match="leave stored_as None"):
            check_stored_as(space, wrong)
        with pytest.raises(LayoutConflictError, match="stored_as"):
            NamespaceRegistry().register(space.canonical, wrong)
        with pytest.raises(InvalidArgumentError):
            page_bytes_of(space, wrong)
    assert (
        NamespaceRegistry().register(space.canonical, size).page_bytes == page_bytes_of(space, size) == size
    )


def test_a_namespace_that_says_nothing_has_no_scales() -> None:
    check_stored_as(namespace(), 4096)
    with pytest.raises(InvalidArgumentError):
        scaled_arrays(namespace(), 4096)


@pytest.mark.parametrize("dtype", [KvDtype.FP8_E4M3, KvDtype.FP8_E5M2, KvDtype.INT8])
def test_pages_of_one_byte_a_number_are_not_made_smaller(dtype: KvDtype) -> None:
    inside = Quantisation(QuantisationScheme.PER_HEAD_PAGE)
    with pytest.raises(InvalidArgumentError, match="stored_as"):
        namespace(kv_dtype=dtype, quantisation=inside, stored_as=StoredAs.INT8)
    told = identify(
        model="m", weights=Weights(version="1"), kv_dtype=dtype, geometry=geometry(), page_tokens=16, quantisation=inside,
        position=parameters({"kind": "none"}), stored_as=StoredAs.FP8_E4M3,
    )  # fmt: skip
    assert isinstance(told, Uncacheable)
    assert (told.reason, "stored_as" in told.detail) == (UncacheableReason.INVALID, True)


@pytest.mark.parametrize("dtype", [KvDtype.BF16, KvDtype.FP16, KvDtype.FP32])
def test_bounds_say_that_int8_is_finer_than_fp8(dtype: KvDtype) -> None:
    assert 1 / 254 < error_bound(StoredAs.INT8, dtype) < error_bound(StoredAs.FP8_E4M3, dtype) < 0.1


def test_it_is_part_of_the_name_and_others_are_called_what_they_were() -> None:
    plain = namespace()
    lossy = [namespace(stored_as=stored_as) for stored_as in StoredAs]
    assert len({space.id for space in (plain, *lossy)}) == 3
    assert plain.canonical.endswith(b"\x1c\x00\x07\x00\x00\x00\x00"), "numerics is the last field"
    for space in lossy:
        assert (
            space.canonical
            == plain.canonical
            + b"\x1d\x00\x02"
            + len(str(space.stored_as)).to_bytes(4, "little")
            + str(space.stored_as).encode()
        )
        assert Namespace.from_canonical(space.canonical).stored_as is space.stored_as


@pytest.mark.parametrize(
    "end",
    [b"\x1d\x00\x00\x00\x00\x00\x00", b"\x1d\x00\x02\x04\x00\x00\x00int4", b"\x1d\x00\x02\x00\x00\x00\x00", b"\x1d\x00", b"\x1d",
     b"\x1d\x00\x02\x04\x00\x00\x00int8\x00", b"\x1e\x00\x02\x04\x00\x00\x00int8"],
    ids=["none", "unknown", "empty", "cut", "half an id", "more", "another"],
)  # fmt: skip
def test_ends_that_no_encoder_writes_are_refused(end: bytes) -> None:
    with pytest.raises(ProtocolError):
        Namespace.from_canonical(namespace().canonical + end)


@pytest.mark.parametrize("value", ["fp8_e4m3", 8, True], ids=str)
def test_only_a_codec_is_a_codec(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="stored_as"):
        namespace(stored_as=value)
