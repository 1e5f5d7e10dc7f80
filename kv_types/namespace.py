"""Namespace: the complete identity of a computation, its canonical bytes and id, and how one is found.

Two workers may exchange pages exactly when the canonical bytes of their namespaces are equal. Everything that
shapes the bytes of a page is a field here; what cannot be named makes a computation uncacheable.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from kv_types.canonical import (
    Cursor,
    Parameters,
    ParameterValue,
    Value,
    decode_value,
    encode_parameters,
    encode_text,
    encode_value,
    parameters,
)
from kv_types.computation import (
    Adapter,
    AttentionKind,
    Geometry,
    KvDtype,
    Quantisation,
    QuantisationScheme,
    Rope,
    StoredAs,
    Weights,
    check_name,
)
from kv_types.errors import InvalidArgumentError, LimitExceededError, ProtocolError
from kv_types.ids import KEY_BYTES, NamespaceId
from kv_types.limits import NAMESPACE_BYTES_MAX, PAGE_TOKENS_MAX, POSITION_OFFSET_MAX
from kv_types.numbers import check_integer

__all__ = [
    "CANONICAL_LAYOUT",
    "Adapter",
    "AttentionKind",
    "Geometry",
    "KvDtype",
    "Namespace",
    "ParameterValue",
    "Parameters",
    "Quantisation",
    "QuantisationScheme",
    "Rope",
    "StoredAs",
    "Uncacheable",
    "UncacheableReason",
    "Weights",
    "identify",
    "kv_dtype_of",
    "parameters",
]

SCHEMA = b"SKNS"
SCHEMA_VERSION = 1
CANONICAL_LAYOUT = "canonical-1"
"""The layout that `kv_types.page_layout` describes; an engine's own layout has another name, with its ISA."""

_PREAMBLE = struct.Struct("<4sH")
_FIELD_ID = struct.Struct("<H")


@dataclass(frozen=True, kw_only=True, eq=False)
class Namespace:
    """Identity of a computation; equal exactly when the canonical bytes are.

    `position` holds position configuration beyond RoPE (ALiBi, learned positions, partial rotation…).
    `position_offset` is the position of the first real token where an engine does not start at zero.
    `numerics` holds what else shapes the numbers (digest of the model's settings, kernel of attention, arithmetic).
    `tenant` is a salt: pages of different tenants never meet.
    `stored_as`: pages may come back from L3 as a lossy codec leaves them; None: every bit as it was computed.
    Raises InvalidArgumentError, LimitExceededError.
    """

    model: str
    weights: Weights
    kv_dtype: KvDtype
    geometry: Geometry
    page_tokens: int
    adapter: Adapter | None = None
    quantisation: Quantisation | None = None
    rope: Rope | None = None
    position: Parameters = ()
    position_offset: int = 0
    layout: str = CANONICAL_LAYOUT
    tenant: str = ""
    numerics: Parameters = ()
    stored_as: StoredAs | None = None

    def __post_init__(self) -> None:
        check_name(self.model, "model")
        check_name(self.layout, "layout")
        encode_text(self.tenant, "tenant")
        for name, kind in _FIELD_TYPES:
            if not isinstance(getattr(self, name), kind):
                got = type(getattr(self, name)).__name__
                raise InvalidArgumentError(f"namespace field {name!r} must be a {kind}; got {got}")
        check_integer(self.page_tokens, "page_tokens", low=1, high=PAGE_TOKENS_MAX)
        check_integer(self.position_offset, "position_offset", low=0, high=POSITION_OFFSET_MAX)
        object.__setattr__(self, "position", parameters(self.position))
        object.__setattr__(self, "numerics", parameters(self.numerics))
        self._check_quantisation()
        if len(self.canonical) > NAMESPACE_BYTES_MAX:
            raise LimitExceededError(
                f"the namespace takes {len(self.canonical)} bytes; at most {NAMESPACE_BYTES_MAX} "
                "are allowed: shorten names or parameters"
            )

    def _check_quantisation(self) -> None:
        if self.kv_dtype is KvDtype.INT8 and self.quantisation is None:
            raise InvalidArgumentError("int8 pages mean nothing without scales: give a quantisation")
        if self.quantisation is not None and self.kv_dtype.item_bytes > 1:
            raise InvalidArgumentError(f"{self.kv_dtype} pages are not quantised: leave quantisation None")
        if self.stored_as is not None and self.kv_dtype.item_bytes == 1:
            raise InvalidArgumentError(
                f"{self.kv_dtype} pages have one byte a number already: leave stored_as None for them"
            )

    @cached_property
    def canonical(self) -> bytes:
        """Schema tag, version, then every field in order as (id u16, tag u8, length u32 LE, bytes)."""
        parts = [_PREAMBLE.pack(SCHEMA, SCHEMA_VERSION)]
        for field_id, name, value in self._fields():
            parts.append(_FIELD_ID.pack(field_id))
            if name in _PARAMETER_FIELDS and value is not None:
                parts.append(encode_parameters(value, name))
            else:
                parts.append(encode_value(value, name))
        return b"".join(parts)

    @cached_property
    def id(self) -> NamespaceId:
        """32 bytes: BLAKE2b-256 of `canonical`."""
        return NamespaceId(hashlib.blake2b(self.canonical, digest_size=KEY_BYTES).digest())

    def _fields(self) -> list[tuple[int, str, Any]]:
        sources = {"geometry": self.geometry, "weights": self.weights, "adapter": self.adapter}
        sources |= {"quantisation": self.quantisation, "rope": self.rope}
        fields: list[tuple[int, str, Any]] = []
        for field_id, name in _FIELDS if self.stored_as is None else (*_FIELDS, _STORED_AS):
            owner, _, attribute = name.rpartition(".")
            holder: object = sources[owner] if owner else self
            value = None if holder is None else getattr(holder, attribute)
            fields.append((field_id, name, str(value) if isinstance(value, StrEnum) else value))
        return fields

    @classmethod
    def from_canonical(cls, data: bytes) -> Namespace:
        """Decode strictly: encoding the result again must give the same bytes. Raises ProtocolError."""
        namespace = _decode(bytes(data))
        if namespace.canonical != data:
            raise ProtocolError("the namespace's encoding is not the canonical one of what it says")
        return namespace

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Namespace):
            return NotImplemented
        return self.canonical == other.canonical

    def __hash__(self) -> int:
        return hash(self.canonical)


_FIELD_TYPES: tuple[tuple[str, Any], ...] = (
    ("weights", Weights),
    ("kv_dtype", KvDtype),
    ("geometry", Geometry),
    ("adapter", Adapter | None),
    ("quantisation", Quantisation | None),
    ("rope", Rope | None),
    ("stored_as", StoredAs | None),
)

# Numbers are part of the encoding; a field that goes away leaves its number unused for ever.
_FIELDS: tuple[tuple[int, str], ...] = (
    (1, "model"),
    (2, "weights.digest"),
    (3, "weights.version"),
    (4, "adapter.name"),
    (5, "adapter.digest"),
    (6, "kv_dtype"),
    (7, "quantisation.scheme"),
    (8, "quantisation.scales_digest"),
    (9, "geometry.attention"),
    (10, "geometry.layers_total"),
    (11, "geometry.layer_begin"),
    (12, "geometry.layer_end"),
    (13, "geometry.kv_heads_total"),
    (14, "geometry.head_begin"),
    (15, "geometry.head_end"),
    (16, "geometry.head_dim"),
    (17, "geometry.value_head_dim"),
    (18, "geometry.latent_dim"),
    (19, "geometry.rope_dim"),
    (20, "rope.kind"),
    (21, "rope.theta"),
    (22, "rope.scaling"),
    (23, "position"),
    (24, "position_offset"),
    (25, "page_tokens"),
    (26, "layout"),
    (27, "tenant"),
    (28, "numerics"),
)
_STORED_AS = (29, "stored_as")
"""Stands behind the others where pages may be stored lossily, and nowhere else: other namespaces are called what they were."""
_PARAMETER_FIELDS = frozenset({"rope.scaling", "position", "numerics"})
_OPTIONAL_OWNERS = frozenset({"adapter", "quantisation", "rope"})


def _decode(data: bytes) -> Namespace:
    if len(data) > NAMESPACE_BYTES_MAX:
        raise ProtocolError(f"a namespace of {len(data)} bytes; at most {NAMESPACE_BYTES_MAX} are allowed")
    cursor = Cursor(data)
    schema, version = _PREAMBLE.unpack(cursor.take(_PREAMBLE.size, "namespace preamble"))
    if schema != SCHEMA or version != SCHEMA_VERSION:
        raise ProtocolError(f"not a namespace of schema version {SCHEMA_VERSION} (tag {schema!r}, {version})")
    values: dict[str, Value] = {}

    def read(field_id: int, name: str) -> None:
        (found,) = _FIELD_ID.unpack(cursor.take(_FIELD_ID.size, f"id of namespace field {name}"))
        if found != field_id:
            raise ProtocolError(f"namespace field {found} where {field_id} ({name}) must stand")
        values[name] = decode_value(cursor, name)

    for field in _FIELDS:
        read(*field)
    if data[len(data) - cursor.remaining :].startswith(_FIELD_ID.pack(_STORED_AS[0])):
        read(*_STORED_AS)
    if cursor.remaining:
        raise ProtocolError(f"{cursor.remaining} bytes follow the namespace's last field")
    try:
        return _assemble(values)
    except (InvalidArgumentError, TypeError, ValueError) as error:
        raise ProtocolError(f"the namespace's fields contradict themselves: {error}") from error


def _assemble(values: dict[str, Value]) -> Namespace:
    def owned(owner: str) -> dict[str, Any] | None:
        group = {
            name.partition(".")[2]: value for name, value in values.items() if name.startswith(owner + ".")
        }
        if owner in _OPTIONAL_OWNERS and all(value is None for value in group.values()):
            return None
        return group

    def known(kind: type[StrEnum], value: Value) -> Any:
        if not isinstance(value, str):
            raise TypeError(f"{kind.__name__} must be text")
        return kind(value)

    geometry, weights = owned("geometry") or {}, owned("weights") or {}
    adapter, quantisation, rope = owned("adapter"), owned("quantisation"), owned("rope")
    geometry["attention"] = known(AttentionKind, geometry["attention"])
    if quantisation is not None:
        quantisation["scheme"] = known(QuantisationScheme, quantisation["scheme"])
    plain: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
    plain["kv_dtype"] = known(KvDtype, plain["kv_dtype"])
    if "stored_as" in plain:
        plain["stored_as"] = known(StoredAs, plain["stored_as"])
    return Namespace(
        weights=Weights(**weights),
        geometry=Geometry(**geometry),
        adapter=None if adapter is None else Adapter(**adapter),
        quantisation=None if quantisation is None else Quantisation(**quantisation),
        rope=None if rope is None else Rope(**rope),
        **plain,
    )


class UncacheableReason(StrEnum):
    """Why pages of a computation have no identity."""

    MODEL_UNNAMED = "model_unnamed"
    MODEL_UNSUPPORTED = "model_unsupported"
    """A kind of model whose KV nobody has shown to depend on the tokens before it alone."""
    WEIGHTS_UNNAMED = "weights_unnamed"
    ADAPTER_WITHOUT_DIGEST = "adapter_without_digest"
    KV_DTYPE_UNKNOWN = "kv_dtype_unknown"
    QUANTISATION_INCOMPLETE = "quantisation_incomplete"
    GEOMETRY_UNKNOWN = "geometry_unknown"
    SLIDING_WINDOW = "sliding_window"
    LAYER_KIND = "layer_kind"
    """A layer whose state is not one key and value per token: state-space, linear or chunked attention…"""
    ROPE_DYNAMIC = "rope_dynamic"
    """Rotation that depends on how long the sequence becomes: dynamic NTK, longrope."""
    ROPE_UNKNOWN = "rope_unknown"
    POSITION_UNNAMED = "position_unnamed"
    INPUT_UNNAMED = "input_unnamed"
    """A request whose input is more than tokens, and the rest has no digest: embeddings, some images…"""
    INVALID = "invalid"
    """A value is out of range or contradicts another one."""


@dataclass(frozen=True, slots=True)
class Uncacheable:
    """The computation cannot be named, so none of its pages may be stored or looked up."""

    reason: UncacheableReason
    detail: str


FULL_ATTENTION = "full_attention"
ROPE_KINDS = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotations that are a function of the position alone."""
ROPE_KINDS_DYNAMIC = frozenset({"dynamic", "longrope", "su"})

_DTYPE_NAMES = {
    "float32": KvDtype.FP32,
    "float": KvDtype.FP32,
    "float16": KvDtype.FP16,
    "half": KvDtype.FP16,
    "bfloat16": KvDtype.BF16,
    "float8_e4m3fn": KvDtype.FP8_E4M3,
    "float8_e5m2": KvDtype.FP8_E5M2,
} | {str(dtype): dtype for dtype in KvDtype}


def kv_dtype_of(name: str) -> KvDtype | None:
    """KvDtype of a name as engines write it ("torch.bfloat16", "bf16"…), or None when it names none.

    "fp8" alone is ambiguous, and e4m3fnuz means other numbers: both are None.
    """
    return _DTYPE_NAMES.get(name.removeprefix("torch."))


def identify(
    *,
    model: str | None,
    weights: Weights | None,
    kv_dtype: KvDtype | str | None,
    geometry: Geometry | None,
    page_tokens: int,
    adapter: str | None = None,
    adapter_digest: bytes | None = None,
    quantisation: Quantisation | None = None,
    rope: Rope | None = None,
    position: Parameters = (),
    position_offset: int = 0,
    sliding_window: int | None = None,
    layer_kinds: Sequence[str] = (),
    layout: str = CANONICAL_LAYOUT,
    tenant: str = "",
    numerics: Parameters = (),
    stored_as: StoredAs | None = None,
) -> Namespace | Uncacheable:
    """Name a computation, or say why it cannot be named. Never raises for what a model is like.

    `layer_kinds`: one name a layer where the model says so; anything but "full_attention" is refused.
    `sliding_window`: tokens, or None when every layer attends to the whole prefix. A model without RoPE must
    say in `position` how its positions enter: parameters({"kind": "learned"}), or "none".
    """
    dtype = kv_dtype_of(kv_dtype) if isinstance(kv_dtype, str) else kv_dtype
    problem = (
        _unnamed(model=model, weights=weights, adapter=adapter, adapter_digest=adapter_digest)
        or _unsupported_layers(geometry, sliding_window, layer_kinds)
        or _unsupported_numbers(dtype, kv_dtype, quantisation)
        or _unsupported_position(rope, position)
    )
    if problem is not None:
        return problem
    assert model is not None
    assert weights is not None
    assert dtype is not None
    assert geometry is not None
    try:
        return Namespace(
            model=model,
            weights=weights,
            adapter=None if adapter is None else Adapter(adapter, adapter_digest or b""),
            kv_dtype=dtype,
            quantisation=quantisation,
            geometry=geometry,
            rope=rope,
            position=position,
            position_offset=position_offset,
            page_tokens=page_tokens,
            layout=layout,
            tenant=tenant,
            numerics=numerics,
            stored_as=stored_as,
        )
    except InvalidArgumentError as error:
        return Uncacheable(UncacheableReason.INVALID, str(error))


def _unnamed(
    *, model: str | None, weights: Weights | None, adapter: str | None, adapter_digest: bytes | None
) -> Uncacheable | None:
    if not model:
        return Uncacheable(UncacheableReason.MODEL_UNNAMED, "the model has no name")
    if weights is None:
        return Uncacheable(
            UncacheableReason.WEIGHTS_UNNAMED,
            f"model {model!r}: neither a weights digest nor a version is known",
        )
    if adapter is not None and adapter_digest is None:
        return Uncacheable(
            UncacheableReason.ADAPTER_WITHOUT_DIGEST,
            f"adapter {adapter!r}: a name alone does not say what is in it; give its content digest",
        )
    if adapter is None and adapter_digest is not None:
        return Uncacheable(UncacheableReason.INVALID, "an adapter digest is given without the adapter's name")
    return None


def _unsupported_layers(
    geometry: Geometry | None, sliding_window: int | None, layer_kinds: Sequence[str]
) -> Uncacheable | None:
    if geometry is None:
        return Uncacheable(UncacheableReason.GEOMETRY_UNKNOWN, "layers, heads and their sizes are not known")
    if sliding_window is not None:
        return Uncacheable(
            UncacheableReason.SLIDING_WINDOW,
            f"layers attend to the last {sliding_window} tokens: the state of a prefix is not kept whole",
        )
    for layer, kind in enumerate(layer_kinds):
        if kind == "sliding_attention":
            return Uncacheable(UncacheableReason.SLIDING_WINDOW, f"layer {layer} uses a sliding window")
        if kind != FULL_ATTENTION:
            return Uncacheable(
                UncacheableReason.LAYER_KIND,
                f"layer {layer} is {kind!r}; only {FULL_ATTENTION!r} layers are kept",
            )
    return None


def _unsupported_numbers(
    dtype: KvDtype | None, given: KvDtype | str | None, quantisation: Quantisation | None
) -> Uncacheable | None:
    if dtype is None:
        return Uncacheable(
            UncacheableReason.KV_DTYPE_UNKNOWN,
            f"KV dtype {given!r} is none of {', '.join(str(known) for known in KvDtype)}",
        )
    if dtype is KvDtype.INT8 and quantisation is None:
        return Uncacheable(
            UncacheableReason.QUANTISATION_INCOMPLETE, "int8 KV without its scales: say where they come from"
        )
    return None


def _unsupported_position(rope: Rope | None, position: Parameters) -> Uncacheable | None:
    if rope is None:
        if position:
            return None
        return Uncacheable(
            UncacheableReason.POSITION_UNNAMED, "the model has no RoPE; say in `position` how positions enter"
        )
    if rope.kind in ROPE_KINDS_DYNAMIC:
        return Uncacheable(
            UncacheableReason.ROPE_DYNAMIC,
            f"rope kind {rope.kind!r}: the keys of a prefix depend on how long the sequence becomes",
        )
    if rope.kind not in ROPE_KINDS:
        return Uncacheable(
            UncacheableReason.ROPE_UNKNOWN,
            f"rope kind {rope.kind!r} is none of {', '.join(sorted(ROPE_KINDS))}",
        )
    return None
