"""Identity of a Transformers model's computation: from modules, configuration and bytes to a namespace."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from inference_worker.connectors.config_fields import HARMLESS_FIELDS
from inference_worker.connectors.transformers_weights import (
    adapter_layers,
    merged_adapters,
    opaque_module,
    opaque_tensor,
    tensors_of,
    weights_digest,
)
from kv_types.errors import StrataError
from kv_types.namespace import (
    Adapter,
    AttentionKind,
    Geometry,
    Namespace,
    Parameters,
    ParameterValue,
    Rope,
    StoredAs,
    Uncacheable,
    UncacheableReason,
    Weights,
    identify,
    parameters,
)

GQA_MODEL_TYPES = frozenset(
    {
        "cohere",
        "gemma",
        "glm",
        "granite",
        "helium",
        "llama",
        "mistral",
        "mixtral",
        "olmo",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "stablelm",
        "starcoder2",
    }
)
"""Causal decoders whose cache is one rotated key and one value per token, layer and KV head."""

MLA_MODEL_TYPES = frozenset({"deepseek_v2", "deepseek_v3"})
"""Causal decoders whose cache is one latent and one rotated key part per token and layer."""

_LEARNED_POSITIONS = frozenset({"gpt2", "gpt_bigcode", "opt", "xglm", "biogpt"})
_ALIBI = frozenset({"bloom", "falcon", "mpt"})

# What a configuration says about names, files, defaults of calls and training, none of which shapes KV bytes.
_CONFIG_IGNORED = HARMLESS_FIELDS | {
    "_model_name_or_path",
    "architectures",
    "is_decoder",
    "max_position_embeddings",
}
_FULL, _SLIDING = "full_attention", "sliding_attention"


class UnsupportedModelError(StrataError):
    """Pages of this model cannot be named; `uncacheable` says why. Raised only where reuse was required."""

    code = "uncacheable"

    def __init__(self, uncacheable: Uncacheable) -> None:
        super().__init__(
            f"KV pages of this model cannot be reused ({uncacheable.reason}): {uncacheable.detail}. "
            "Leave require_cacheable=False to serve it without reuse."
        )
        self.uncacheable = uncacheable


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the caller says about the model: everything that cannot be read off it."""

    model_name: str | None
    weights: Weights | None
    adapter: Adapter | None
    page_tokens: int
    tenant: str
    stored_as: StoredAs | None = None


def identify_model(model: Any, declared: Declared) -> Namespace | Uncacheable:
    """Name the computation of a causal language model, or say why it cannot be named.

    The name is the caller's or the architecture's. Weights are the caller's version, else the digest of every
    parameter and buffer. Raises nothing for what the model is like.
    """
    config = model.config.get_text_config(decoder=True)
    problem = (
        _unsupported_kind(config)
        or _unsupported_frame(model, config)
        or _unsupported_placement(model)
        or _unsupported_adapter(model, declared.adapter)
    )
    if problem is not None:
        return problem
    weights = declared.weights
    if weights is None:
        digest = weights_digest(model)
        if isinstance(digest, Uncacheable):
            return digest
        weights = Weights(digest=digest)
    adapter = declared.adapter
    return identify(
        model=declared.model_name or type(base_model(model)).__name__,
        weights=weights,
        adapter=None if adapter is None else adapter.name,
        adapter_digest=None if adapter is None else adapter.digest,
        kv_dtype=str(model.dtype),
        geometry=_geometry(config),
        page_tokens=declared.page_tokens,
        rope=_rope(model, config),
        layer_kinds=layer_kinds(config),
        numerics=numerics(model, list(model.modules())),
        tenant=declared.tenant,
        stored_as=declared.stored_as,
    )


def layer_kinds(config: Any) -> list[str]:
    """One name a layer, told by the cache that Transformers itself would build for this configuration."""
    names = {DynamicLayer: _FULL, DynamicSlidingWindowLayer: _SLIDING}
    return [names.get(type(layer), type(layer).__name__) for layer in DynamicCache(config=config).layers]


def base_model(model: Any) -> Any:
    """Return the model inside the wrappers of torch.compile and PEFT, whose forward names no arguments."""
    inner = getattr(model, "_orig_mod", model)
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def active_adapters(modules: Sequence[Any]) -> tuple[str, ...]:
    """Adapters that take part in the forward pass now, told by the layers that apply them.

    What PEFT's wrapper says of itself does not change inside its `disable_adapter()`.
    """
    names: set[str] = set()
    for layer in adapter_layers(modules):
        if not layer._disable_adapters:
            names.update(layer.active_adapters)
    return tuple(sorted(names))


def _adapter_scales(modules: Sequence[Any]) -> list[dict[str, str]]:
    """What each layer multiplies the active adapters by: no tensor, so that no digest of tensors sees it."""
    return [
        {name: str(scales[name]) for name in layer.active_adapters if name in scales}
        for layer in adapter_layers(modules)
        if not layer._disable_adapters and isinstance(scales := getattr(layer, "scaling", None), Mapping)
    ]


def _unsupported_kind(config: Any) -> Uncacheable | None:
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "add_cross_attention", False):
        return Uncacheable(
            UncacheableReason.LAYER_KIND,
            f"model type {kind!r} attends to an encoder, so its KV depends on more than the tokens before it",
        )
    if kind in _LEARNED_POSITIONS or kind in _ALIBI:
        way = "learned absolute positions" if kind in _LEARNED_POSITIONS else "ALiBi"
        return Uncacheable(
            UncacheableReason.POSITION_UNNAMED, f"model type {kind!r} uses {way}, which has no name here yet"
        )
    for layer, name in enumerate(layer_kinds(config)):
        if name == _SLIDING:
            return Uncacheable(
                UncacheableReason.SLIDING_WINDOW,
                f"layer {layer} attends to a sliding window, so KV of a prefix is not kept whole",
            )
        if name != _FULL:
            return Uncacheable(
                UncacheableReason.LAYER_KIND,
                f"layer {layer} keeps a {name}, which is not one key and value a token",
            )
    if kind not in GQA_MODEL_TYPES | MLA_MODEL_TYPES:
        return Uncacheable(
            UncacheableReason.MODEL_UNSUPPORTED,
            f"model type {kind!r} is none of those whose KV is known to depend on earlier tokens alone: "
            f"{', '.join(sorted(GQA_MODEL_TYPES | MLA_MODEL_TYPES))}",
        )
    return None


def _unsupported_frame(model: Any, config: Any) -> Uncacheable | None:
    """Refuse what stands around a supported decoder or was switched in it, and lets tokens see later ones."""
    around = model.config.model_type
    if around != config.model_type:
        return Uncacheable(
            UncacheableReason.MODEL_UNSUPPORTED,
            f"model type {around!r} is built around a {config.model_type!r} decoder, and nobody has shown here "
            "that its KV depends on earlier tokens alone",
        )
    causal = getattr(config, "is_causal", True)
    if not causal or any(getattr(module, "is_causal", True) is False for module in model.modules()):
        return Uncacheable(
            UncacheableReason.MODEL_UNSUPPORTED,
            "is_causal is off, so KV of a prefix depends on the tokens after it",
        )
    return None


def _unsupported_placement(model: Any) -> Uncacheable | None:
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) <= 1:
        return None
    return Uncacheable(
        UncacheableReason.MODEL_UNSUPPORTED,
        f"the model lies on several devices ({', '.join(devices)}), and its cache would too",
    )


def _unsupported_adapter(model: Any, adapter: Adapter | None) -> Uncacheable | None:
    for config in (getattr(model, "peft_config", None) or {}).values():
        if getattr(config, "is_prompt_learning", False):
            return Uncacheable(
                UncacheableReason.POSITION_UNNAMED,
                "a learned prompt stands before the tokens, so their KV and positions depend on it",
            )
    active = active_adapters(list(model.modules()))
    if adapter is None and active:
        return Uncacheable(
            UncacheableReason.ADAPTER_WITHOUT_DIGEST,
            f"adapters {', '.join(active)} are active, and a name alone does not say what is in them: "
            "give adapter=Adapter(name, digest)",
        )
    if adapter is not None and active != (adapter.name,):
        return Uncacheable(
            UncacheableReason.INVALID,
            f"active adapters are {', '.join(active) or 'none'}, but {adapter.name!r} is declared",
        )
    return None


def _geometry(config: Any) -> Geometry | None:
    layers = config.num_hidden_layers
    if config.model_type in MLA_MODEL_TYPES:
        if not config.qk_rope_head_dim:
            return None  # the cache's second tensor would be empty, and the page would have no part for it
        return Geometry(
            attention=AttentionKind.MLA,
            layers_total=layers,
            layer_begin=0,
            layer_end=layers,
            latent_dim=config.kv_lora_rank,
            rope_dim=config.qk_rope_head_dim,
        )
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return Geometry(
        attention=AttentionKind.GQA,
        layers_total=layers,
        layer_begin=0,
        layer_end=layers,
        kv_heads_total=heads,
        head_begin=0,
        head_end=heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
    )


def _rope(model: Any, config: Any) -> Rope | None:
    """Read the rotation from the configuration, and its output scale from the module that will apply it."""
    given: Mapping[str, Any] | None = getattr(config, "rope_parameters", None)
    if not given or "rope_theta" not in given:
        return None
    rest = {k: v for k, v in given.items() if k not in {"rope_type", "rope_theta"} and v is not None}
    scales = sorted({float(m.attention_scaling) for m in model.modules() if hasattr(m, "attention_scaling")})
    rest["attention_scaling"] = tuple(scales)
    return Rope(
        kind=str(given.get("rope_type", "default")),
        theta=float(given["rope_theta"]),
        scaling=parameters({name: _parameter(value) for name, value in rest.items()}),
    )


def _parameter(value: Any) -> ParameterValue:
    if isinstance(value, list | tuple):
        return tuple(float(item) for item in value)
    return value if isinstance(value, bool | int | float | str) else repr(value)


def numerics(model: Any, modules: Sequence[Any]) -> Parameters:
    """Name what else shapes the bytes: the model's settings, kernels, arithmetic, kinds of numbers and device."""
    config = model.config.get_text_config(decoder=True)
    told = {k: v for k, v in model.config.to_dict().items() if k not in _CONFIG_IGNORED}
    return parameters(
        {
            "adapter_scales": _digest_text(_adapter_scales(modules)),
            "attention": str(config._attn_implementation),
            "compiled": hasattr(model, "_orig_mod")
            or getattr(model, "_compiled_call_impl", None) is not None,
            "compute": str(model.dtype).removeprefix("torch."),
            "config": _digest_text(told),
            "device": model.device.type,
            "experts": str(getattr(config, "_experts_implementation", None)),
            "matmul": _matmul_precision(model.device.type),
            "merged_adapters": ",".join(merged_adapters(modules)),
            "numbers": _digest_text(_kinds_of_numbers(modules)),
        }
    )


def _digest_text(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def _matmul_precision(device: str) -> str:
    """How float32 products are rounded on a kind of device, whichever of PyTorch's two ways it was set by."""
    backend: Any = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    told = getattr(getattr(backend, "matmul", None), "fp32_precision", None)
    if told is None:  # a PyTorch that knows only one setting for all; newer ones refuse to tell it at times
        return str(torch.get_float32_matmul_precision())
    given = (
        told,
        getattr(backend, "fp32_precision", "none"),
        getattr(torch.backends, "fp32_precision", "none"),
    )
    return str(next((value for value in given if value != "none"), "ieee"))


def _kinds_of_numbers(modules: Sequence[Any]) -> list[str]:
    """Types of the model's tensors, and what keeps weights in another way (quantised layers)."""
    tensors = tensors_of(modules)
    kinds = {str(dtype) for dtype in {tensor.dtype for tensor in tensors}}
    kinds |= {type(tensor).__name__ for tensor in tensors if opaque_tensor(tensor)}
    return sorted(kinds | {kind.__name__ for kind in set(map(type, modules)) if opaque_module(kind)})
