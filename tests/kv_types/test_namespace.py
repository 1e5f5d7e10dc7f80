"""Namespaces: one encoding a computation, distinct for distinct ones, decoded strictly or not at all."""

from __future__ import annotations

import itertools
import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_types.errors import InvalidArgumentError, LimitExceededError, ProtocolError
from kv_types.limits import NAME_BYTES_MAX, NAMESPACE_BYTES_MAX, PARAMETERS_MAX
from kv_types.namespace import (
    Adapter,
    Geometry,
    KvDtype,
    Namespace,
    Quantisation,
    QuantisationScheme,
    Rope,
    Weights,
    parameters,
)
from tests.kv_types.samples import geometry, mla, namespace, namespaces

DIGEST, OTHER_DIGEST = b"\x01" * 32, b"\x02" * 32
PER_PAGE = Quantisation(QuantisationScheme.PER_HEAD_PAGE)


@given(namespaces())
def test_every_namespace_survives_its_encoding(original: Namespace) -> None:
    decoded = Namespace.from_canonical(original.canonical)
    assert decoded == original
    assert hash(decoded) == hash(original)
    assert decoded.id == original.id
    assert decoded.geometry == original.geometry
    assert (decoded.model, decoded.tenant, decoded.layout) == (
        original.model,
        original.tenant,
        original.layout,
    )


@given(namespaces(), namespaces())
def test_two_namespaces_are_equal_only_when_their_bytes_are(first: Namespace, second: Namespace) -> None:
    assert (first == second) == (first.canonical == second.canonical) == (first.id == second.id)


@settings(max_examples=300)
@given(st.binary(max_size=600))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Namespace.from_canonical(data)


@settings(max_examples=60, deadline=None)
@given(namespaces(), st.integers(0, 2**32))
def test_a_mutated_encoding_is_refused_or_another_namespace(original: Namespace, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(40):
        mutated = _mutate(bytearray(original.canonical), draw)
        try:
            decoded = Namespace.from_canonical(mutated)
        except ProtocolError:
            continue
        assert decoded.canonical == mutated
        assert (decoded == original) == (mutated == original.canonical)


def _mutate(data: bytearray, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    match draw.randrange(6):
        case 0:
            data[at] ^= 1 << draw.randrange(8)
        case 1:
            del data[at:]
        case 2:
            data += draw.randbytes(draw.randint(1, 20))
        case 3:
            del data[at : at + draw.randint(1, 9)]
        case 4:
            data[at:at] = data[at : at + draw.randint(1, 40)]
        case _:
            data[at : at + 4] = struct.pack("<I", draw.choice([0, 1, 2**31, 2**32 - 1]))
    return bytes(data)


def test_every_prefix_of_an_encoding_is_refused() -> None:
    data = namespace(position=parameters({"kind": "alibi", "slopes": [0.5, 0.25]})).canonical
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            Namespace.from_canonical(data[:size])
    with pytest.raises(ProtocolError, match="follow"):
        Namespace.from_canonical(data + b"\0")


def test_fields_out_of_order_are_refused() -> None:
    data = namespace(tenant="t", layout="l").canonical
    layout, tenant = _field(26, 2, b"l"), _field(27, 2, b"t")
    assert layout + tenant in data
    with pytest.raises(ProtocolError, match="field 27 where 26"):
        Namespace.from_canonical(data.replace(layout + tenant, tenant + layout))


def test_an_unknown_field_is_refused() -> None:
    data = namespace(tenant="t").canonical
    with pytest.raises(ProtocolError, match="field 99"):
        Namespace.from_canonical(data.replace(_field(27, 2, b"t"), _field(99, 2, b"t")))


def test_parameters_in_the_wrong_order_are_refused() -> None:
    data = namespace(position=parameters({"a": 1, "b": 2})).canonical
    first, second = _text(b"a") + _integer(1), _text(b"b") + _integer(2)
    assert first + second in data
    with pytest.raises(ProtocolError, match="order"):
        Namespace.from_canonical(data.replace(first + second, second + first))
    with pytest.raises(ProtocolError, match="twice"):
        Namespace.from_canonical(data.replace(first + second, first + _text(b"a") + _integer(2)))


def test_nested_parameters_are_refused_at_any_depth() -> None:
    data = namespace().canonical
    inner = b""
    for _ in range(900):
        body = _text(b"") + inner if inner else b""
        inner = struct.pack("<BI", 7, len(body)) + body
    body = _text(b"n") + inner
    nested = data.replace(_field(28, 7, b""), _field(28, 7, body))
    assert len(nested) < NAMESPACE_BYTES_MAX
    with pytest.raises(ProtocolError, match="nest"):
        Namespace.from_canonical(nested)


def test_a_nan_from_outside_is_refused() -> None:
    data = namespace(position=parameters({"f": 1.5})).canonical
    nan = struct.pack("<d", float("nan"))
    with pytest.raises(ProtocolError, match="NaN"):
        Namespace.from_canonical(data.replace(struct.pack("<d", 1.5), nan))


def test_another_spelling_of_the_same_namespace_is_refused() -> None:
    data = namespace().canonical
    theta = _field(21, 4, struct.pack("<d", 10_000.0))
    value_head_dim = _field(17, 3, struct.pack("<q", 8))
    for right, other in (
        (theta, _field(21, 3, struct.pack("<q", 10_000))),
        (value_head_dim, _field(17, 3, struct.pack("<q", 0))),
        (_field(23, 7, b""), _field(23, 6, b"")),
    ):
        assert data.count(right) == 1
        with pytest.raises(ProtocolError, match="canonical"):
            Namespace.from_canonical(data.replace(right, other))


def test_a_contradiction_from_outside_is_a_protocol_error() -> None:
    data = namespace().canonical
    with pytest.raises(ProtocolError, match="contradict"):
        Namespace.from_canonical(data.replace(_field(6, 2, b"fp16"), _field(6, 2, b"int8")))
    with pytest.raises(ProtocolError, match="contradict"):
        Namespace.from_canonical(data.replace(_field(6, 2, b"fp16"), _field(6, 2, b"fp17")))


def _field(number: int, tag: int, body: bytes) -> bytes:
    return struct.pack("<HBI", number, tag, len(body)) + body


def _text(body: bytes) -> bytes:
    return struct.pack("<BI", 2, len(body)) + body


def _integer(value: int) -> bytes:
    return struct.pack("<BIq", 3, 8, value)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"model": "model2"},
    {"weights": Weights(version="2")},
    {"weights": Weights(digest=DIGEST)},
    {"weights": Weights(digest=OTHER_DIGEST)},
    {"adapter": Adapter("a", DIGEST)},
    {"adapter": Adapter("a", OTHER_DIGEST)},
    {"adapter": Adapter("b", DIGEST)},
    *({"kv_dtype": dtype} for dtype in (KvDtype.FP32, KvDtype.BF16, KvDtype.FP8_E4M3, KvDtype.FP8_E5M2)),
    {"kv_dtype": KvDtype.FP8_E4M3, "quantisation": PER_PAGE},
    {"kv_dtype": KvDtype.FP8_E4M3, "quantisation": Quantisation(QuantisationScheme.STATIC, DIGEST)},
    {"kv_dtype": KvDtype.FP8_E4M3, "quantisation": Quantisation(QuantisationScheme.STATIC, OTHER_DIGEST)},
    {"kv_dtype": KvDtype.INT8, "quantisation": PER_PAGE},
    {"geometry": geometry(layers_total=5)},
    {"geometry": geometry(layer_begin=1)},
    {"geometry": geometry(layer_end=3)},
    {"geometry": geometry(kv_heads_total=3)},
    {"geometry": geometry(head_begin=1)},
    {"geometry": geometry(head_end=1)},
    {"geometry": geometry(head_dim=16)},
    {"geometry": geometry(value_head_dim=16)},
    {"geometry": mla()},
    {"geometry": mla(latent_dim=17)},
    {"geometry": mla(rope_dim=5)},
    {"rope": None},
    {"rope": Rope("linear", 10_000.0)},
    {"rope": Rope("default", 10_001.0)},
    {"rope": Rope("default", 10_000.0, parameters({"factor": 8.0}))},
    {"rope": Rope("default", 10_000.0, parameters({"factor": 8}))},
    {"rope": Rope("default", 10_000.0, parameters({"factor": True}))},
    {"rope": Rope("default", 10_000.0, parameters({"factor": 1}))},
    {"rope": Rope("default", 10_000.0, parameters({"factor": 1.0}))},
    {"rope": Rope("default", 10_000.0, parameters({"factor": "1"}))},
    {"position": parameters({"factor": 8.0})},
    {"numerics": parameters({"factor": 8.0})},
    {"position": parameters({"kind": ""})},
    {"position": parameters({"kind": []})},
    {"position_offset": 1},
    {"page_tokens": 32},
    {"layout": "engine-x86"},
    {"tenant": "t"},
]


def test_each_field_alone_makes_another_namespace() -> None:
    made = [namespace(**changes) for changes in VARIANTS]
    assert len({one.id for one in made}) == len(VARIANTS)
    assert len(set(made)) == len(VARIANTS)


def test_c02_kv_dtypes_are_other_namespaces() -> None:
    ids = {
        namespace(kv_dtype=dtype, quantisation=PER_PAGE if dtype is KvDtype.INT8 else None).id
        for dtype in KvDtype
    }
    assert len(ids) == len(KvDtype)


def test_c03_fields_do_not_run_into_each_other() -> None:
    separators = ["", ",", "|", "/", "\0", "a", "bc", "ab", "c", "a\0b", '"', "None", "1"]
    made: list[Namespace] = []
    for model, tenant in itertools.product([s for s in separators if s], separators):
        made.append(namespace(model=model, tenant=tenant))
    made += [namespace(adapter=Adapter("X", DIGEST)), namespace(tenant="X"), namespace(layout="X")]
    made += [namespace(weights=Weights(version="X")), namespace(position=parameters({"X": ""}))]
    made += [namespace(position=parameters({"": "X"})), namespace(position=parameters({"a": "bc"}))]
    made += [namespace(position=parameters({"ab": "c"})), namespace(numerics=parameters({"ab": "c"}))]
    assert len({one.id for one in made}) == len(made)


def test_c03_unicode_is_taken_as_it_is_spelled() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert namespace(model=composed).id != namespace(model=decomposed).id


def test_c05_an_adapter_is_its_content() -> None:
    assert (
        namespace(adapter=Adapter("same", DIGEST)).id != namespace(adapter=Adapter("same", OTHER_DIGEST)).id
    )


def test_c33_other_layers_or_dtype_are_another_namespace() -> None:
    first = namespace()
    assert first.id != namespace(geometry=geometry(layers_total=5, layer_end=5)).id
    assert first.id != namespace(kv_dtype=KvDtype.FP8_E4M3).id


def test_c37_a_tenant_is_a_namespace_of_its_own() -> None:
    assert namespace(tenant="a").id != namespace(tenant="b").id != namespace().id


def test_none_is_not_empty() -> None:
    without = namespace(rope=None)
    assert without.canonical != namespace(rope=Rope("default", 1.0)).canonical
    assert parameters({}) == ()
    with pytest.raises(InvalidArgumentError, match="int, float, str, bool"):
        parameters({"kind": None})


def test_a_value_head_dim_of_zero_is_the_head_dim() -> None:
    assert namespace(geometry=geometry(value_head_dim=8)) == namespace()
    assert geometry().value_head_dim == 8


def test_parameters_are_put_into_one_order() -> None:
    assert parameters({"b": 1, "a": [1, 2.5]}) == (("a", (1.0, 2.5)), ("b", 1))
    unordered = Namespace(
        model="model", weights=Weights(version="1"), kv_dtype=KvDtype.FP16, geometry=geometry(),
        page_tokens=16, rope=Rope("default", 10_000.0, (("b", 1), ("a", 2))),
    )  # fmt: skip
    assert unordered.rope is not None
    assert unordered.rope.scaling == (("a", 2), ("b", 1))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model": ""}, "model is empty"),
        ({"model": "x" * (NAME_BYTES_MAX + 1)}, "UTF-8 bytes"),
        ({"model": "\ud800"}, "Unicode"),
        ({"model": b"bytes"}, "string"),
        ({"tenant": "\udfff"}, "Unicode"),
        ({"page_tokens": 0}, "page_tokens"),
        ({"page_tokens": True}, "integer"),
        ({"page_tokens": 4097}, "page_tokens"),
        ({"position_offset": -1}, "position_offset"),
        ({"kv_dtype": "fp16"}, "kv_dtype"),
        ({"weights": None}, "weights"),
        ({"kv_dtype": KvDtype.INT8}, "scales"),
        ({"quantisation": PER_PAGE}, "not quantised"),
        ({"position": (("x", float("nan")),)}, "NaN"),
        ({"position": (("x", (1.0, float("nan"))),)}, "NaN"),
        ({"position": (("x", 2**63),)}, "64 bits"),
        ({"position": (("x", (2**53 + 1,)),)}, "exactly"),
        ({"position": (("x", [10**400]),)}, "no float"),
        ({"position": (("x", {}),)}, "is a dict"),
        ({"position": (("x", 1), ("x", 2))}, "twice"),
        ({"position": tuple((str(n), n) for n in range(PARAMETERS_MAX + 1))}, "parameters"),
        ({"position": tuple((f"{n:02}" * 500, "y" * 900) for n in range(9))}, "the namespace takes"),
    ],
)
def test_bad_fields_are_named(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        namespace(**changes)


@pytest.mark.parametrize("changes", [{"model": "x" * 2000}, {"position": parameters({"a": "b"}) * 65}])
def test_what_is_too_much_is_a_limit(changes: dict[str, Any]) -> None:
    with pytest.raises(LimitExceededError):
        namespace(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_end": 0},
        {"layer_end": 5},
        {"layer_begin": 4},
        {"layer_begin": -1},
        {"layers_total": 0},
        {"layers_total": 4.0},
        {"head_end": 3},
        {"head_begin": 2},
        {"head_dim": 0},
        {"latent_dim": 1},
        {"rope_dim": 1},
        {"value_head_dim": -1},
        {"attention": "gqa"},
    ],
)
def test_a_geometry_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        geometry(**changes)


@pytest.mark.parametrize(
    "changes", [{"latent_dim": 0}, {"head_dim": 1}, {"kv_heads_total": 1}, {"rope_dim": -1}]
)
def test_an_mla_geometry_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        mla(**changes)


def test_shards_know_their_size() -> None:
    shard = geometry(layer_begin=1, layer_end=3, head_begin=1, head_end=2)
    assert (shard.layers, shard.heads) == (2, 1)
    assert isinstance(mla(), Geometry)
    assert mla().heads == 0


@pytest.mark.parametrize(
    "make",
    [
        Weights,
        lambda: Weights(digest=DIGEST, version="1"),
        lambda: Weights(digest=b"short"),
        lambda: Weights(version=""),
        lambda: Adapter("", DIGEST),
        lambda: Adapter("a", b""),
        lambda: Quantisation(QuantisationScheme.STATIC),
        lambda: Quantisation(QuantisationScheme.PER_HEAD_PAGE, DIGEST),
        lambda: Quantisation("static", DIGEST),  # type: ignore[arg-type]
        lambda: Rope("default", 0.0),
        lambda: Rope("default", float("inf")),
        lambda: Rope("default", float("nan")),
        lambda: Rope("default", True),
        lambda: Rope("default", "1e4"),  # type: ignore[arg-type]
        lambda: Rope("default", 10**400),
        lambda: Rope("", 1.0),
    ],
)
def test_parts_that_cannot_be_are_refused(make: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        make()
