"""Namespaces that several tests start from, and Hypothesis strategies for any valid one."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kv_types.namespace import (
    Adapter,
    AttentionKind,
    Geometry,
    KvDtype,
    Namespace,
    Quantisation,
    QuantisationScheme,
    Rope,
    StoredAs,
    Weights,
    parameters,
)


def geometry(**changes: Any) -> Geometry:
    """GQA, 4 layers, 2 heads of 8; with changes."""
    fields: dict[str, Any] = {
        "attention": AttentionKind.GQA, "layers_total": 4, "layer_begin": 0, "layer_end": 4,
        "kv_heads_total": 2, "head_begin": 0, "head_end": 2, "head_dim": 8,
    }  # fmt: skip
    return Geometry(**(fields | changes))


def mla(**changes: Any) -> Geometry:
    """MLA, 4 layers, latent 16, rope 4; with changes."""
    fields: dict[str, Any] = {
        "attention": AttentionKind.MLA, "layers_total": 4, "layer_begin": 0, "layer_end": 4,
        "latent_dim": 16, "rope_dim": 4,
    }  # fmt: skip
    return Geometry(**(fields | changes))


def namespace(**changes: Any) -> Namespace:
    """A complete small namespace; with changes."""
    fields: dict[str, Any] = {
        "model": "model", "weights": Weights(version="1"), "kv_dtype": KvDtype.FP16,
        "geometry": geometry(), "page_tokens": 16, "rope": Rope("default", 10_000.0),
    }  # fmt: skip
    return Namespace(**(fields | changes))


_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
_NAMES = _TEXT.filter(bool)
_DIGESTS = st.binary(min_size=32, max_size=32)
_VALUES = (
    st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | _TEXT
    | st.booleans()
    | st.lists(st.floats(allow_nan=False), max_size=4).map(tuple)
)
_PARAMETERS = st.dictionaries(_TEXT, _VALUES, max_size=4).map(parameters)


@st.composite
def _geometries(draw: st.DrawFn) -> Geometry:
    total = draw(st.integers(1, 100))
    begin = draw(st.integers(0, total - 1))
    layers: dict[str, Any] = {
        "layers_total": total,
        "layer_begin": begin,
        "layer_end": draw(st.integers(begin + 1, total)),
    }
    sizes = st.integers(1, 512)
    if draw(st.booleans()):
        return Geometry(
            attention=AttentionKind.MLA, latent_dim=draw(sizes), rope_dim=draw(st.integers(0, 99)), **layers
        )
    heads = draw(st.integers(1, 64))
    first = draw(st.integers(0, heads - 1))
    return Geometry(
        attention=AttentionKind.GQA, kv_heads_total=heads, head_begin=first,
        head_end=draw(st.integers(first + 1, heads)), head_dim=draw(sizes),
        value_head_dim=draw(st.integers(0, 512)), **layers,
    )  # fmt: skip


@st.composite
def namespaces(draw: st.DrawFn) -> Namespace:
    """Any valid namespace."""
    dtype = draw(st.sampled_from(KvDtype))
    inside = Quantisation(QuantisationScheme.PER_HEAD_PAGE)
    static = draw(_DIGESTS.map(lambda digest: Quantisation(QuantisationScheme.STATIC, digest)))
    schemes = [None] if dtype.item_bytes > 1 else [inside, static] + [None] * (dtype is not KvDtype.INT8)
    theta = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)
    return Namespace(
        model=draw(_NAMES),
        weights=draw(_DIGESTS.map(lambda d: Weights(digest=d)) | _NAMES.map(lambda v: Weights(version=v))),
        adapter=draw(st.none() | st.builds(Adapter, _NAMES, _DIGESTS)),
        kv_dtype=dtype,
        quantisation=draw(st.sampled_from(schemes)),
        geometry=draw(_geometries()),
        rope=draw(st.none() | st.builds(Rope, _NAMES, theta, _PARAMETERS)),
        position=draw(_PARAMETERS),
        position_offset=draw(st.integers(0, 2**31 - 1)),
        page_tokens=draw(st.integers(1, 4096)),
        layout=draw(_NAMES),
        tenant=draw(_TEXT),
        numerics=draw(_PARAMETERS),
        stored_as=draw(st.sampled_from([None, *StoredAs] if dtype.item_bytes > 1 else [None])),
    )
