"""What a computation is made of: weights, adapter, numbers, rotation and geometry, each checked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kv_types.canonical import Parameters, encode_float, encode_text, parameters
from kv_types.errors import InvalidArgumentError
from kv_types.limits import HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX
from kv_types.numbers import check_integer

DIGEST_BYTES = 32


class AttentionKind(StrEnum):
    """How attention keeps its state."""

    GQA = "gqa"
    """Keys and values per KV head (multi-head and multi-query attention are cases of it)."""
    MLA = "mla"
    """One latent and one RoPE part per token, shared by all heads."""


class KvDtype(StrEnum):
    """Type of the numbers in a page."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    INT8 = "int8"

    @property
    def item_bytes(self) -> int:
        """Bytes of one number."""
        return _ITEM_BYTES[self]


_ITEM_BYTES = {
    KvDtype.FP32: 4,
    KvDtype.FP16: 2,
    KvDtype.BF16: 2,
    KvDtype.FP8_E4M3: 1,
    KvDtype.FP8_E5M2: 1,
    KvDtype.INT8: 1,
}


class StoredAs(StrEnum):
    """How pages outside this node may be kept in fewer bits than they were computed with: part of what they are called."""

    FP8_E4M3 = "fp8_e4m3"
    INT8 = "int8"


def stored_as_named(name: StoredAs | str | None) -> StoredAs | None:
    """What a setting names; None stays None. Raises InvalidArgumentError."""
    if name is not None and name not in list(StoredAs):
        known = ", ".join(repr(str(one)) for one in StoredAs)
        raise InvalidArgumentError(
            f"stored_as is one of {known}, or None for pages bit for bit; got {name!r}"
        )
    return None if name is None else StoredAs(name)


class QuantisationScheme(StrEnum):
    """Where the scales of quantised pages come from."""

    STATIC = "static"
    """Fixed scales that every worker loads with the weights; a digest of them is part of the identity."""
    PER_HEAD_PAGE = "per_head_page"
    """One fp32 scale per head and page, which travels inside the page."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Scheme, and for fixed scales their 32-byte digest. Raises InvalidArgumentError when they disagree."""

    scheme: QuantisationScheme
    scales_digest: bytes | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.scheme, QuantisationScheme):
            raise InvalidArgumentError(f"quantisation scheme {self.scheme!r} is none of QuantisationScheme's")
        if (self.scheme is QuantisationScheme.STATIC) != (self.scales_digest is not None):
            raise InvalidArgumentError("fixed scales need their digest, scales inside the page have none")
        if self.scales_digest is not None:
            _check_digest(self.scales_digest, "scales digest")


@dataclass(frozen=True, slots=True)
class Weights:
    """What names the weights: exactly one of a 32-byte content digest and an explicit version.

    Raises InvalidArgumentError.
    """

    digest: bytes | None = None
    version: str | None = None

    def __post_init__(self) -> None:
        if (self.digest is None) == (self.version is None):
            raise InvalidArgumentError("weights are named by a digest or by a version, exactly one of them")
        if self.digest is not None:
            _check_digest(self.digest, "weights digest")
        if self.version is not None:
            check_name(self.version, "weights version")


@dataclass(frozen=True, slots=True)
class Adapter:
    """Name and 32-byte content digest of an adapter (LoRA and the like). Raises InvalidArgumentError."""

    name: str
    digest: bytes

    def __post_init__(self) -> None:
        check_name(self.name, "adapter name")
        _check_digest(self.digest, "adapter digest")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: its kind as the model's configuration names it, base and scaling parameters.

    Raises InvalidArgumentError.
    """

    kind: str
    theta: float
    scaling: Parameters = ()

    def __post_init__(self) -> None:
        check_name(self.kind, "rope kind")
        if isinstance(self.theta, bool) or not isinstance(self.theta, int | float):
            raise InvalidArgumentError(f"rope theta must be a number; got {type(self.theta).__name__}")
        try:
            theta = float(self.theta)
        except OverflowError as error:
            raise InvalidArgumentError("rope theta is larger than a float can be") from error
        encode_float(theta, "rope theta")
        if not 0.0 < theta < float("inf"):
            raise InvalidArgumentError(f"rope theta must be positive and finite; got {theta}")
        object.__setattr__(self, "theta", theta)
        object.__setattr__(self, "scaling", parameters(self.scaling))


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Which layers and heads a page holds, and their sizes.

    GQA uses heads and head sizes (`value_head_dim` 0 stands for `head_dim` and is stored as it); MLA uses
    `latent_dim` and `rope_dim`. Fields of the other kind are 0. Ranges are half-open.
    Raises InvalidArgumentError.
    """

    attention: AttentionKind
    layers_total: int
    layer_begin: int
    layer_end: int
    kv_heads_total: int = 0
    head_begin: int = 0
    head_end: int = 0
    head_dim: int = 0
    value_head_dim: int = 0
    latent_dim: int = 0
    rope_dim: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.attention, AttentionKind):
            raise InvalidArgumentError(f"attention {self.attention!r} is none of AttentionKind's")
        _check_range(self.layers_total, self.layer_begin, self.layer_end, LAYERS_MAX, "layer")
        if self.attention is AttentionKind.GQA:
            self._check_gqa()
        else:
            self._check_mla()

    def _check_gqa(self) -> None:
        _check_range(self.kv_heads_total, self.head_begin, self.head_end, HEADS_MAX, "KV head")
        check_integer(self.head_dim, "head_dim", low=1, high=HEAD_DIM_MAX)
        check_integer(self.value_head_dim, "value_head_dim", low=0, high=HEAD_DIM_MAX)
        if self.latent_dim or self.rope_dim:
            raise InvalidArgumentError("latent_dim and rope_dim belong to MLA; leave them 0 for GQA")
        check_integer(self.latent_dim, "latent_dim", low=0, high=0)
        check_integer(self.rope_dim, "rope_dim", low=0, high=0)
        if self.value_head_dim == 0:
            object.__setattr__(self, "value_head_dim", self.head_dim)

    def _check_mla(self) -> None:
        check_integer(self.latent_dim, "latent_dim", low=1, high=HEAD_DIM_MAX)
        check_integer(self.rope_dim, "rope_dim", low=0, high=HEAD_DIM_MAX)
        for name in ("kv_heads_total", "head_begin", "head_end", "head_dim", "value_head_dim"):
            if getattr(self, name) != 0:
                raise InvalidArgumentError(f"{name} belongs to GQA; leave it 0 for MLA")
            check_integer(getattr(self, name), name, low=0, high=0)

    @property
    def layers(self) -> int:
        """Layers in this shard."""
        return self.layer_end - self.layer_begin

    @property
    def heads(self) -> int:
        """KV heads in this shard; 0 for MLA."""
        return self.head_end - self.head_begin


def check_name(value: str, what: str) -> None:
    """Raise InvalidArgumentError unless `value` is non-empty text; LimitExceededError when it is too long."""
    if not encode_text(value, what):
        raise InvalidArgumentError(f"{what} is empty")


def _check_digest(value: bytes, what: str) -> None:
    if not isinstance(value, bytes) or len(value) != DIGEST_BYTES:
        got = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
        raise InvalidArgumentError(f"a {what} is exactly {DIGEST_BYTES} bytes; got {got}")


def _check_range(total: int, begin: int, end: int, total_max: int, what: str) -> None:
    check_integer(total, f"{what}s in total", low=1, high=total_max)
    check_integer(begin, f"first {what}", low=0, high=total - 1)
    check_integer(end, f"end of the {what} range", low=begin + 1, high=total)
