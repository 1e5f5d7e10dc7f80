"""identify: a namespace, or the reason why a computation must not be cached."""

from __future__ import annotations

from typing import Any

import pytest

from kv_types.namespace import (
    KvDtype,
    Namespace,
    Quantisation,
    QuantisationScheme,
    Rope,
    Uncacheable,
    UncacheableReason,
    Weights,
    identify,
    kv_dtype_of,
    parameters,
)
from tests.kv_types.samples import geometry, mla, namespace


def _identify(**changes: Any) -> Namespace | Uncacheable:
    fields: dict[str, Any] = {
        "model": "model", "weights": Weights(version="1"), "kv_dtype": "torch.float16",
        "geometry": geometry(), "page_tokens": 16, "rope": Rope("default", 10_000.0),
        "layer_kinds": ("full_attention",) * 4,
    }  # fmt: skip
    return identify(**(fields | changes))


def test_what_is_named_completely_has_a_namespace() -> None:
    assert _identify() == namespace()


def test_a_model_without_rope_says_how_positions_enter() -> None:
    found = _identify(rope=None, position=parameters({"kind": "learned"}))
    assert isinstance(found, Namespace)


def test_mla_and_adapters_have_namespaces() -> None:
    found = _identify(geometry=mla(), adapter="a", adapter_digest=b"\x07" * 32)
    assert isinstance(found, Namespace)
    assert found.adapter is not None
    assert found.adapter.digest == b"\x07" * 32


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": None}, UncacheableReason.MODEL_UNNAMED),
        ({"model": ""}, UncacheableReason.MODEL_UNNAMED),
        ({"weights": None}, UncacheableReason.WEIGHTS_UNNAMED),
        ({"adapter": "a"}, UncacheableReason.ADAPTER_WITHOUT_DIGEST),
        ({"adapter_digest": b"\0" * 32}, UncacheableReason.INVALID),
        ({"adapter": "a", "adapter_digest": b"short"}, UncacheableReason.INVALID),
        ({"kv_dtype": None}, UncacheableReason.KV_DTYPE_UNKNOWN),
        ({"kv_dtype": "fp8"}, UncacheableReason.KV_DTYPE_UNKNOWN),
        ({"kv_dtype": "torch.float8_e4m3fnuz"}, UncacheableReason.KV_DTYPE_UNKNOWN),
        ({"kv_dtype": "int8"}, UncacheableReason.QUANTISATION_INCOMPLETE),
        ({"geometry": None}, UncacheableReason.GEOMETRY_UNKNOWN),
        ({"sliding_window": 4096}, UncacheableReason.SLIDING_WINDOW),
        ({"layer_kinds": ["full_attention", "sliding_attention"]}, UncacheableReason.SLIDING_WINDOW),
        ({"layer_kinds": ["full_attention", "linear_attention"]}, UncacheableReason.LAYER_KIND),
        ({"layer_kinds": ["mamba"]}, UncacheableReason.LAYER_KIND),
        ({"rope": Rope("dynamic", 1e4)}, UncacheableReason.ROPE_DYNAMIC),
        ({"rope": Rope("longrope", 1e4)}, UncacheableReason.ROPE_DYNAMIC),
        ({"rope": Rope("mrope", 1e4)}, UncacheableReason.ROPE_UNKNOWN),
        ({"rope": None}, UncacheableReason.POSITION_UNNAMED),
        ({"page_tokens": 0}, UncacheableReason.INVALID),
        ({"tenant": "\ud800"}, UncacheableReason.INVALID),
        ({"quantisation": Quantisation(QuantisationScheme.PER_HEAD_PAGE)}, UncacheableReason.INVALID),
    ],
)
def test_what_cannot_be_named_is_uncacheable_with_the_reason(
    changes: dict[str, Any], reason: UncacheableReason
) -> None:
    found = _identify(**changes)
    assert isinstance(found, Uncacheable)
    assert found.reason is reason
    assert len(found.detail) > 15


def test_c05_an_adapter_without_digest_is_uncacheable() -> None:
    found = _identify(adapter="lora")
    assert isinstance(found, Uncacheable)
    assert found.reason is UncacheableReason.ADAPTER_WITHOUT_DIGEST
    assert "lora" in found.detail


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn"])
def test_rotations_of_the_position_alone_are_cacheable(kind: str) -> None:
    assert isinstance(_identify(rope=Rope(kind, 1e4, parameters({"factor": 2.0}))), Namespace)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("torch.bfloat16", KvDtype.BF16),
        ("bf16", KvDtype.BF16),
        ("half", KvDtype.FP16),
        ("float32", KvDtype.FP32),
        ("torch.float8_e4m3fn", KvDtype.FP8_E4M3),
        ("float8_e5m2", KvDtype.FP8_E5M2),
        ("int8", KvDtype.INT8),
        ("auto", None),
        ("float64", None),
    ],
)
def test_dtype_names_are_exact(name: str, dtype: KvDtype | None) -> None:
    assert kv_dtype_of(name) is dtype
