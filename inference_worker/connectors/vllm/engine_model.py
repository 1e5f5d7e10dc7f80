"""What an engine's configuration says of a model's attention: whether pages of it can be kept, its geometry and rotation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kv_types.errors import InvalidArgumentError
from kv_types.namespace import (
    FULL_ATTENTION,
    AttentionKind,
    Geometry,
    KvDtype,
    ParameterValue,
    Rope,
    Uncacheable,
    UncacheableReason,
    kv_dtype_of,
    parameters,
)
from kv_types.numbers import check_integer

_SPECULATION_WITHOUT_LAYERS = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Ways to guess tokens that add no layers of their own to the KV cache."""
_PLAIN_SPECS = frozenset({"FullAttentionSpec", "MLAAttentionSpec"})
_ROPE_NAMES = {"deepseek_yarn": "yarn"}
"""Names under which vLLM keeps a rotation that configurations call otherwise."""
_SCALED_DTYPES = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRange:
    """A worker's place: tensor-parallel rank of so many, and pipeline rank of so many. Raises InvalidArgumentError."""

    tensor_rank: int = 0
    tensor_size: int = 1
    pipeline_rank: int = 0
    pipeline_size: int = 1

    def __post_init__(self) -> None:
        for size, rank, what in (
            (self.tensor_size, self.tensor_rank, "tensor"),
            (self.pipeline_size, self.pipeline_rank, "pipeline"),
        ):
            check_integer(size, f"{what}_size", low=1, high=65_536)
            check_integer(rank, f"{what}_rank", low=0, high=size - 1)

    def heads(self, total: int) -> tuple[int, int] | None:
        """KV heads [begin, end) of this rank; where there are more ranks than heads, several ranks have the same one.

        None where heads and ranks don't divide, which no engine would run.
        """
        if total >= self.tensor_size:
            if total % self.tensor_size:
                return None
            here = total // self.tensor_size
            return self.tensor_rank * here, (self.tensor_rank + 1) * here
        if total < 1 or self.tensor_size % total:
            return None
        head = self.tensor_rank // (self.tensor_size // total)
        return head, head + 1


def unsupported(vllm_config: Any, rank: RankRange, kv_cache_config: Any = None) -> Uncacheable | None:
    """Say why pages of this model and this way to run it can't be kept; None: nothing speaks against it."""
    return (
        _unsupported_kind(vllm_config.model_config)
        or _unsupported_layers(vllm_config.model_config)
        or _unsupported_run(vllm_config, rank)
        or _unsupported_groups(kv_cache_config)
        or _unsupported_position(vllm_config.model_config)
    )


def layer_kinds(model_config: Any) -> list[str]:
    """One name a layer where the configuration says so."""
    return [str(kind) for kind in getattr(model_config.hf_text_config, "layer_types", None) or ()]


def sliding_window(model_config: Any) -> int | None:
    """Window of the layers where the configuration doesn't tell layers apart."""
    if layer_kinds(model_config):
        return None
    text = model_config.hf_text_config
    window = getattr(text, "sliding_window", None)
    return None if window is None or getattr(text, "use_sliding_window", None) is False else int(window)


def kv_dtype(vllm_config: Any, *, is_rocm: bool) -> KvDtype | Uncacheable:
    """Type of the numbers in the engine's blocks. Scales of fp8 come with the weights, or are 1."""
    cache = vllm_config.cache_config
    name = str(cache.cache_dtype)
    if list(getattr(cache, "kv_cache_dtype_skip_layers", None) or ()):
        return _no(
            UncacheableReason.KV_DTYPE_UNKNOWN, "some layers keep their KV in another dtype than the rest"
        )
    if getattr(cache, "calculate_kv_scales", False):
        return _no(
            UncacheableReason.QUANTISATION_INCOMPLETE,
            "calculate_kv_scales makes scales of the first tokens that happen to come: nobody else has the same",
        )
    if name == "auto":
        name = str(vllm_config.model_config.dtype)
    if name == "fp8":
        name = "fp8_e4m3"
    if is_rocm and name in _SCALED_DTYPES:
        return _no(UncacheableReason.KV_DTYPE_UNKNOWN, f"{name} means other numbers on some of ROCm's GPUs")
    dtype = kv_dtype_of(name)
    if dtype is None:
        return _no(
            UncacheableReason.KV_DTYPE_UNKNOWN,
            f"KV dtype {name!r} is none of {', '.join(str(known) for known in KvDtype)}",
        )
    return dtype


def geometry_of(
    vllm_config: Any, rank: RankRange, *, dtype: KvDtype, block_tokens: int, bytes_per_block: int
) -> Geometry | Uncacheable:
    """Layers and heads of a rank's shard, held against the size of the blocks that the engine really has.

    A model whose layers differ, share their KV or keep more than keys and values has blocks of another size.
    """
    model = vllm_config.model_config
    layers = int(model.get_total_num_hidden_layers())
    head_size = int(model.get_head_size())
    try:
        if model.use_mla:
            latent = int(model.hf_text_config.kv_lora_rank)
            numbers = head_size
            geometry = Geometry(
                attention=AttentionKind.MLA,
                layers_total=layers,
                layer_begin=0,
                layer_end=layers,
                latent_dim=latent,
                rope_dim=head_size - latent,
            )
        else:
            total = int(model.get_total_num_kv_heads())
            heads = rank.heads(total)
            if heads is None:
                return _no(
                    UncacheableReason.GEOMETRY_UNKNOWN,
                    f"{total} KV heads on {rank.tensor_size} ranks don't divide",
                )
            numbers = (heads[1] - heads[0]) * 2 * head_size
            geometry = Geometry(
                attention=AttentionKind.GQA,
                layers_total=layers,
                layer_begin=0,
                layer_end=layers,
                kv_heads_total=total,
                head_begin=heads[0],
                head_end=heads[1],
                head_dim=head_size,
            )
    except (InvalidArgumentError, AttributeError, TypeError) as error:
        return _no(UncacheableReason.GEOMETRY_UNKNOWN, f"layers, heads and their sizes: {error}")
    expected = layers * numbers * block_tokens * dtype.item_bytes
    if expected != bytes_per_block:
        return _no(
            UncacheableReason.GEOMETRY_UNKNOWN,
            f"by its configuration a block of {block_tokens} tokens takes {expected} bytes over {layers} layers; the "
            f"engine's takes {bytes_per_block}: layers differ, share KV, or keep something else",
        )
    return geometry


def rope_of(model_config: Any) -> Rope | None:
    """Read the rotation from the configuration as the engine has it; None where it has none, or one for each kind of layer."""
    given = getattr(model_config.hf_text_config, "rope_parameters", None)
    if not isinstance(given, Mapping) or "rope_theta" not in given:
        return None
    told = str(given.get("rope_type", "default"))
    rest = {
        str(name): _parameter(value)
        for name, value in given.items()
        if name not in {"rope_type", "type", "rope_theta"} and value is not None
    }
    if told in _ROPE_NAMES:
        rest["engine_name"] = told
    return Rope(kind=_ROPE_NAMES.get(told, told), theta=float(given["rope_theta"]), scaling=parameters(rest))


def _parameter(value: Any) -> ParameterValue:
    if isinstance(value, list | tuple):
        return tuple(float(item) for item in value)
    return value if isinstance(value, bool | int | float | str) else repr(value)


def _no(reason: UncacheableReason, detail: str) -> Uncacheable:
    return Uncacheable(reason, detail)


def _unsupported_kind(model: Any) -> Uncacheable | None:
    kind = str(getattr(model.hf_config, "model_type", ""))
    if getattr(model, "is_encoder_decoder", False):
        return _no(
            UncacheableReason.LAYER_KIND,
            f"model type {kind!r} attends to an encoder, so its KV depends on more than the tokens before it",
        )
    for flag in ("is_hybrid", "is_attention_free", "has_inner_state"):
        if getattr(model, flag, False):
            return _no(
                UncacheableReason.LAYER_KIND, f"model type {kind!r} keeps states that aren't keys and values"
            )
    text = model.hf_text_config
    is_causal = getattr(model.hf_config, "is_causal", True) and getattr(text, "is_causal", True)
    if getattr(model, "attn_type", "decoder") != "decoder" or not is_causal:
        return _no(
            UncacheableReason.MODEL_UNSUPPORTED,
            f"attention of model type {kind!r} isn't that of a causal decoder",
        )
    for flag in ("is_mm_prefix_lm", "is_diffusion"):
        if getattr(model, flag, False):
            return _no(
                UncacheableReason.MODEL_UNSUPPORTED,
                f"in model type {kind!r} tokens attend to later ones ({flag})",
            )
    if getattr(model, "runner_type", "generate") != "generate":
        return _no(
            UncacheableReason.MODEL_UNSUPPORTED, "only models that generate text are kept, not pooling ones"
        )
    return None


def _unsupported_layers(model: Any) -> Uncacheable | None:
    text = model.hf_text_config
    if getattr(text, "attention_chunk_size", None) or getattr(model, "attention_chunk_size", None):
        return _no(UncacheableReason.LAYER_KIND, "layers attend to chunks (attention_chunk_size)")
    for name in ("dual_chunk_attention_config", "index_topk", "compress_ratios", "sparse_attention_config"):
        if getattr(text, name, None):
            return _no(UncacheableReason.LAYER_KIND, f"layers attend sparsely or in chunks ({name})")
    if getattr(model, "rswa_window", None):
        return _no(UncacheableReason.SLIDING_WINDOW, "layers attend to a window that replays (rswa_window)")
    if getattr(model, "has_noops", False) or getattr(text, "is_heterogeneous", False):
        return _no(UncacheableReason.GEOMETRY_UNKNOWN, "layers of this model differ from one another")
    return None


def _unsupported_run(vllm_config: Any, rank: RankRange) -> Uncacheable | None:
    parallel = vllm_config.parallel_config
    for name in (
        "pipeline_parallel_size",
        "prefill_context_parallel_size",
        "decode_context_parallel_size",
    ):
        if int(getattr(parallel, name, 1) or 1) > 1:
            return _no(UncacheableReason.MODEL_UNSUPPORTED, f"{name} above 1 isn't supported yet")
    if rank.pipeline_size > 1 or rank.tensor_size != int(parallel.tensor_parallel_size):
        return _no(
            UncacheableReason.MODEL_UNSUPPORTED, f"this worker is {rank}, which the configuration contradicts"
        )
    speculation = getattr(vllm_config, "speculative_config", None)
    method = None if speculation is None else getattr(speculation, "method", None)
    if speculation is not None and method not in _SPECULATION_WITHOUT_LAYERS:
        return _no(
            UncacheableReason.MODEL_UNSUPPORTED,
            f"speculative decoding by {method!r} keeps KV of layers of its own among the model's; "
            f"{', '.join(sorted(_SPECULATION_WITHOUT_LAYERS))} don't",
        )
    if getattr(vllm_config.cache_config, "kv_sharing_fast_prefill", False):
        return _no(
            UncacheableReason.MODEL_UNSUPPORTED, "kv_sharing_fast_prefill leaves KV of some tokens out"
        )
    if getattr(vllm_config, "diffusion_config", None) is not None:
        return _no(UncacheableReason.MODEL_UNSUPPORTED, "diffusion writes KV of a token more than once")
    return None


def _unsupported_groups(kv_cache_config: Any) -> Uncacheable | None:
    """Judge by the groups of layers as the engine keeps their KV, where they are known."""
    if kv_cache_config is None:
        return None
    groups = list(kv_cache_config.kv_cache_groups)
    for group in groups:
        for spec in _single_specs(group.kv_cache_spec):
            problem = _unsupported_spec(spec)
            if problem is not None:
                return problem
    if len(groups) != 1:
        return _no(
            UncacheableReason.LAYER_KIND, f"the engine keeps layers in {len(groups)} groups; one is supported"
        )
    return None


def _unsupported_spec(spec: Any) -> Uncacheable | None:
    name = type(spec).__name__
    if getattr(spec, "sliding_window", None) is not None:
        return _no(
            UncacheableReason.SLIDING_WINDOW, f"layers attend to the last {spec.sliding_window} tokens"
        )
    if name not in _PLAIN_SPECS or getattr(spec, "attention_chunk_size", None) is not None:
        return _no(
            UncacheableReason.LAYER_KIND, f"the engine keeps layers by {name}; only {FULL_ATTENTION} is kept"
        )
    if getattr(spec, "non_causal", False):
        return _no(UncacheableReason.MODEL_UNSUPPORTED, "tokens attend to later ones (non_causal)")
    if getattr(spec, "tokens_per_state", 1) != 1:
        return _no(UncacheableReason.LAYER_KIND, "one state of a layer stands for more or less than a token")
    return None


def _single_specs(spec: Any) -> Iterable[Any]:
    inner = getattr(spec, "kv_cache_specs", None)
    return [spec] if inner is None else inner.values()


def _unsupported_position(model: Any) -> Uncacheable | None:
    text = model.hf_text_config
    rope = getattr(text, "rope_parameters", None)
    has_sections = isinstance(rope, Mapping) and any(str(name).endswith("_section") for name in rope)
    if getattr(model, "uses_mrope", False) or has_sections:
        return _no(
            UncacheableReason.POSITION_UNNAMED,
            "positions have several dimensions (mrope), which have no name here yet",
        )
    if getattr(model, "uses_alibi", False):
        return _no(UncacheableReason.POSITION_UNNAMED, "positions enter by ALiBi, which has no name here yet")
    if isinstance(rope, Mapping) and rope and all(isinstance(value, Mapping) for value in rope.values()):
        return _no(UncacheableReason.ROPE_UNKNOWN, "each kind of layer has a rotation of its own")
    return None
