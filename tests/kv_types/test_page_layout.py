"""Page layouts: parts in canonical order, without overlap, for every kind of attention, dtype and shard."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.limits import PAGE_BYTES_MAX
from kv_types.namespace import Geometry, KvDtype, Quantisation, QuantisationScheme
from kv_types.page_layout import PageLayout, PartRole, check_page_bytes
from tests.kv_types.samples import geometry, mla, namespace

PER_PAGE = Quantisation(QuantisationScheme.PER_HEAD_PAGE)
STATIC = Quantisation(QuantisationScheme.STATIC, b"\x01" * 32)


@pytest.mark.parametrize(
    "dtype", [KvDtype.FP32, KvDtype.FP16, KvDtype.BF16, KvDtype.FP8_E4M3, KvDtype.FP8_E5M2]
)
def test_gqa_keys_then_values_by_layer(dtype: KvDtype) -> None:
    layout = PageLayout.of(namespace(kv_dtype=dtype))
    part_bytes = 2 * 16 * 8 * dtype.item_bytes
    assert layout.page_bytes == 4 * 2 * part_bytes
    expected = [(layer, role) for layer in range(4) for role in (PartRole.KEY, PartRole.VALUE)]
    assert [(part.layer, part.role) for part in layout.parts()] == expected
    assert [part.offset for part in layout.parts()] == [n * part_bytes for n in range(8)]
    assert {part.shape for part in layout.parts()} == {(2, 16, 8)}
    assert {part.dtype for part in layout.parts()} == {dtype}


def test_a_shard_holds_its_own_layers_and_heads() -> None:
    shard = geometry(layer_begin=1, layer_end=3, head_begin=1, head_end=2, value_head_dim=4)
    layout = PageLayout.of(namespace(geometry=shard))
    assert [(part.layer, part.role, part.shape) for part in layout.parts()] == [
        (1, PartRole.KEY, (1, 16, 8)),
        (1, PartRole.VALUE, (1, 16, 4)),
        (2, PartRole.KEY, (1, 16, 8)),
        (2, PartRole.VALUE, (1, 16, 4)),
    ]
    assert layout.part(2, PartRole.VALUE) == layout.parts()[3]
    with pytest.raises(InvalidArgumentError):
        layout.part(0, PartRole.KEY)
    with pytest.raises(InvalidArgumentError):
        layout.part(1, PartRole.LATENT)


@pytest.mark.parametrize("dtype", [KvDtype.INT8, KvDtype.FP8_E4M3])
def test_scales_follow_their_part(dtype: KvDtype) -> None:
    layout = PageLayout.of(namespace(kv_dtype=dtype, quantisation=PER_PAGE))
    roles = [PartRole.KEY, PartRole.KEY_SCALE, PartRole.VALUE, PartRole.VALUE_SCALE]
    assert [part.role for part in layout.parts()] == roles * 4
    scale = layout.part(0, PartRole.KEY_SCALE)
    assert (scale.shape, scale.dtype, scale.offset, scale.size_bytes) == ((2,), KvDtype.FP32, 2 * 16 * 8, 8)
    assert layout.page_bytes == 4 * 2 * (2 * 16 * 8 + 8)


def test_fixed_scales_are_not_in_the_page() -> None:
    layout = PageLayout.of(namespace(kv_dtype=KvDtype.INT8, quantisation=STATIC))
    assert layout.page_bytes == 4 * 2 * 2 * 16 * 8
    assert {part.role for part in layout.parts()} == {PartRole.KEY, PartRole.VALUE}


def test_mla_latent_then_rope() -> None:
    layout = PageLayout.of(namespace(geometry=mla(layer_begin=2), kv_dtype=KvDtype.BF16))
    assert [(part.layer, part.role, part.shape) for part in layout.parts()] == [
        (2, PartRole.LATENT, (16, 16)),
        (2, PartRole.ROPE, (16, 4)),
        (3, PartRole.LATENT, (16, 16)),
        (3, PartRole.ROPE, (16, 4)),
    ]
    assert layout.page_bytes == 2 * 16 * 20 * 2
    without = PageLayout.of(namespace(geometry=mla(rope_dim=0)))
    assert {part.role for part in without.parts()} == {PartRole.LATENT}


def test_mla_scales_are_one_a_part() -> None:
    layout = PageLayout.of(namespace(geometry=mla(), kv_dtype=KvDtype.FP8_E5M2, quantisation=PER_PAGE))
    assert [part.role for part in layout.parts()][:4] == [
        PartRole.LATENT,
        PartRole.LATENT_SCALE,
        PartRole.ROPE,
        PartRole.ROPE_SCALE,
    ]
    assert layout.part(3, PartRole.ROPE_SCALE).shape == (1,)


@given(
    st.sampled_from(KvDtype),
    st.sampled_from([None, PER_PAGE, STATIC]),
    st.integers(1, 7),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(1, 9),
    st.booleans(),
)
def test_parts_neither_overlap_nor_reach_beyond_the_page(
    dtype: KvDtype,
    scales: Quantisation | None,
    tokens: int,
    heads: int,
    dim: int,
    other_dim: int,
    latent: bool,
) -> None:
    if dtype.item_bytes > 1:
        scales = None
    elif dtype is KvDtype.INT8 and scales is None:
        scales = STATIC
    shape: Geometry = (
        mla(latent_dim=dim, rope_dim=other_dim)
        if latent
        else geometry(kv_heads_total=heads, head_end=heads, head_dim=dim, value_head_dim=other_dim)
    )
    space = namespace(kv_dtype=dtype, quantisation=scales, page_tokens=tokens, geometry=shape)
    layout = PageLayout.of(space)
    parts = layout.parts()
    assert parts[0].offset == 0
    for before, after in itertools.pairwise(parts):
        assert 0 <= after.offset - (before.offset + before.size_bytes) < after.dtype.item_bytes
    widest = max(part.dtype.item_bytes for part in parts)
    assert 0 <= layout.page_bytes - (parts[-1].offset + parts[-1].size_bytes) < widest
    assert layout.page_bytes % widest == 0
    assert all(part.offset % part.dtype.item_bytes == 0 for part in parts)
    assert layout.page_tokens == tokens
    check_page_bytes(space, layout.page_bytes)


def test_a_page_beyond_the_limit_is_refused_with_the_numbers() -> None:
    wide = geometry(layers_total=128, layer_end=128, kv_heads_total=64, head_end=64, head_dim=256)
    with pytest.raises(LimitExceededError, match="fewer page_tokens"):
        PageLayout.of(namespace(geometry=wide, page_tokens=4096))
    huge = geometry(
        layers_total=4096, layer_end=4096, kv_heads_total=65_536, head_end=65_536, head_dim=65_536
    )
    with pytest.raises(LimitExceededError, match=str(PAGE_BYTES_MAX)):
        PageLayout.of(namespace(geometry=huge, page_tokens=4096))


def test_scales_count_towards_the_limit() -> None:
    exact = geometry(layers_total=1, layer_end=1, kv_heads_total=2048, head_end=2048, head_dim=1024)
    fits = namespace(geometry=exact, page_tokens=16, kv_dtype=KvDtype.FP8_E4M3)
    assert PageLayout.of(fits).page_bytes == PAGE_BYTES_MAX
    with pytest.raises(LimitExceededError):
        PageLayout.of(
            namespace(geometry=exact, page_tokens=16, kv_dtype=KvDtype.FP8_E4M3, quantisation=PER_PAGE)
        )


def test_an_engine_layout_is_its_own_affair() -> None:
    own = namespace(layout="engine-avx512")
    with pytest.raises(InvalidArgumentError, match="engine-avx512"):
        PageLayout.of(own)
    check_page_bytes(own, 12_345)


@pytest.mark.parametrize("page_bytes", [0, -1, PAGE_BYTES_MAX + 1])
def test_a_stated_page_size_is_bounded(page_bytes: int) -> None:
    for space in (namespace(), namespace(layout="engine-avx512")):
        with pytest.raises(LimitExceededError):
            check_page_bytes(space, page_bytes)


def test_a_stated_page_size_must_be_that_of_the_geometry() -> None:
    right = PageLayout.of(namespace()).page_bytes
    with pytest.raises(InvalidArgumentError, match=str(right)):
        check_page_bytes(namespace(), right + 1)
