"""Identity of a worker's shard: what of an engine's configuration names it, what doesn't, and what has no name."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_worker.connectors.vllm.engine_numerics import Machine, digest_text, plain
from inference_worker.connectors.vllm.file_digests import DigestMemory
from inference_worker.connectors.vllm.identity import (
    PhysicalLayout,
    RankRange,
    blocks_of_a_page,
    namespace_of,
)
from inference_worker.connectors.vllm.plan import Variant
from inference_worker.connectors.vllm.settings import ConnectorSettings
from kv_types.errors import ConfigError, InvalidArgumentError
from kv_types.limits import ENGINE_PAGE_TOKENS_MAX, PAGE_BYTES_MAX
from kv_types.namespace import Adapter, KvDtype, Namespace, UncacheableReason, Weights
from tests.connectors.vllm.engine_objects import (
    BLOCK,
    BLOCK_BYTES,
    LAYERS,
    MACHINE,
    Change,
    FullAttentionSpec,
    HfConfig,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    groups,
    layer,
    layout,
    mla_config,
    vllm_config,
)
from tests.connectors.vllm.files import write_model
from tests.connectors.vllm.identities import base_of, named, reason_of


def test_a_llama_is_named() -> None:
    identity = named(vllm_config(), kv_cache_config=groups(FullAttentionSpec(sliding_window=None)))
    base = identity.base
    assert isinstance(base, Namespace)
    assert (base.model, base.weights, base.kv_dtype) == ("/models/tiny", Weights(version="v1"), KvDtype.FP32)
    assert (base.geometry.kv_heads_total, base.geometry.head_dim, base.geometry.layers) == (2, 64, LAYERS)
    assert base.page_tokens == identity.page_tokens == identity.blocks_per_page * BLOCK
    assert identity.page_bytes == identity.blocks_per_page * BLOCK_BYTES
    assert identity.block_tokens == BLOCK
    assert pickle.loads(pickle.dumps(identity)) == identity


def _set(path: str, value: Any) -> Change:
    def change(config: Any) -> None:
        *holders, name = path.split(".")
        for holder in holders:
            config = getattr(config, holder)
        setattr(config, name, value)

    return change


def _text(name: str, value: Any) -> tuple[str, Change]:
    return f"config {name}", _set(f"model_config.hf_text_config.{name}", value)


def _rope(**told: Any) -> Change:
    return _set(
        "model_config.hf_text_config.rope_parameters", {"rope_type": "default", "rope_theta": 1e4, **told}
    )


SHAPING: list[tuple[str, Change]] = [
    ("model", _set("model_config.model", "/models/other")),
    ("architecture", _set("model_config.architecture", "OtherForCausalLM")),
    ("model_impl", _set("model_config.model_impl", "transformers")),
    ("class overrides", _set("model_config.model_class_overrides", {"a": "b"})),
    ("compute dtype", _set("model_config.dtype", "torch.bfloat16")),
    ("weights' quantisation", _set("model_config.quantization", "fp8")),
    ("weights' quantisation's settings", _set("model_config.quantization_config", {"bits": 4})),
    ("quantisation object", _set("quant_config", SimpleNamespace(group_size=64))),
    ("quantised while loading", _set("load_config.load_format", "bitsandbytes")),
    ("rope theta", _rope(rope_theta=5e5)),
    ("rope kind", _rope(rope_type="linear", factor=2.0)),
    ("rope's parameters", _rope(partial_rotary_factor=0.5)),
    ("attention backend asked for", _set("attention_config.backend", "FLASH_ATTN")),
    ("attention backend", _set("compilation_config.static_forward_context", {"l": layer("OTHER")})),
    ("instruction set", _set("compilation_config.static_forward_context", {"l": layer(isa="amx")})),
    ("custom ops", _set("compilation_config.custom_ops", ["all", "-rotary_embedding"])),
    ("compilation", _set("compilation_config.mode", 3)),
    ("compiler's passes", _set("compilation_config.pass_config", SimpleNamespace(fuse_norm_quant=True))),
    ("compiler's settings", _set("compilation_config.inductor_compile_config", {"a": 1})),
    ("kernels", _set("kernel_config.linear_backend", "cutlass")),
    ("experts' ranks", _set("parallel_config.enable_expert_parallel", True)),
    ("device", _set("device_config.device_type", "cuda")),
    ("adapters' dtype", _set("lora_config", SimpleNamespace(lora_dtype="bfloat16"))),
    ("encoders' dtype", _set("model_config.multimodal_config", SimpleNamespace(mm_encoder_attn_dtype="fp8"))),
    ("a platform's own settings", _set("additional_config", {"fast": True})),
    ("code of the model's", _set("model_config.trust_remote_code", True)),
    _text("rms_norm_eps", 1e-5),
    _text("hidden_act", "gelu"),
    _text("attention_bias", True),
    _text("architectures", ["X"]),
    _text("max_position_embeddings", 8192),
    _text("something_new", 1),
    _text("text_config", {"inner": 1}),
    _text("quantization_config", {"quant_method": "fp8"}),
]

HARMLESS: list[tuple[str, Change]] = [
    ("served name", _set("model_config.served_model_name", "x")),
    ("longest sequence", _set("model_config.max_model_len", 100)),
    ("seed", _set("model_config.seed", 7)),
    ("tokenizer", _set("model_config.tokenizer", "x")),
    ("memory", _set("cache_config.gpu_memory_utilization", 0.5)),
    ("blocks", _set("cache_config.num_gpu_blocks_override", 10)),
    ("local prefix cache", _set("cache_config.enable_prefix_caching", False)),
    ("batch", _set("scheduler_config.max_num_seqs", 99)),
    ("captured sizes", _set("compilation_config.cudagraph_capture_sizes", [1, 2])),
    ("warm-up", _set("kernel_config.enable_jit_warmup", True)),
    ("data-parallel ranks", _set("parallel_config.data_parallel_size", 4)),
    ("where files go", _set("load_config.download_dir", "/x")),
    ("format of the same files", _set("load_config.load_format", "safetensors")),
    ("speculation without layers", _set("speculative_config", SimpleNamespace(method="ngram"))),
    ("a window that isn't used", _text("sliding_window", None)[1]),
    _text("use_cache", False),
    _text("eos_token_id", 5),
    _text("transformers_version", "5.24.0"),
    _text("initializer_range", 0.5),
    _text("attention_dropout", 0.1),
    _text("_name_or_path", "/elsewhere"),
    _text("dtype", "float32"),
]


@pytest.mark.parametrize(("what", "change"), SHAPING, ids=[what for what, _ in SHAPING])
def test_what_shapes_bytes_changes_the_namespace(what: str, change: Change) -> None:
    config = vllm_config()
    before = base_of(config).id
    change(config)
    halved = layout(bytes_per_block=BLOCK_BYTES // 2) if what == "compute dtype" else layout()
    assert base_of(config, layout=halved).id != before


@pytest.mark.parametrize(("what", "change"), HARMLESS, ids=[what for what, _ in HARMLESS])
def test_what_is_harmless_does_not(what: str, change: Change) -> None:
    config = vllm_config()
    # what a configuration doesn't say and what it says as None are two things to a digest
    config.model_config.hf_text_config.sliding_window = None
    before = base_of(config).id
    change(config)
    assert base_of(config).id == before


@pytest.mark.parametrize(
    "changed",
    [
        {"engine_version": "0.33.0"},
        {"torch_version": "2.14.0"},
        {"architecture": "aarch64"},
        {"cpu_flags": "AVX2"},
        {"matmul": "high"},
        {"environment": (("VLLM_BATCH_INVARIANT", "1"),)},
    ],
    ids=str,
)
def test_the_machine_is_part_of_the_name(changed: dict[str, Any]) -> None:
    told = {name: getattr(MACHINE, name) for name in Machine.__slots__}
    assert base_of(vllm_config()).id != base_of(vllm_config(), machine=Machine(**{**told, **changed})).id


def test_a_gpu_is_named_by_what_its_kernels_are_chosen_by() -> None:
    config = vllm_config()
    config.device_config.device_type = "cuda"
    told = {name: getattr(MACHINE, name) for name in Machine.__slots__}
    machines = [Machine(**{**told, "capability": name}) for name in ("8.0", "9.0")]
    assert len({base_of(config, machine=machine).id for machine in machines}) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"layout": layout(name="other")},
        {"layout": layout(block_tokens=BLOCK * 2, bytes_per_block=BLOCK_BYTES * 2)},
        {"settings": ConnectorSettings(weights_version="v2")},
        {"settings": ConnectorSettings(weights_version="v1", model_name="other")},
        {"settings": ConnectorSettings(weights_version="v1", page_tokens=BLOCK)},
    ],
    ids=str,
)
def test_layout_and_settings_are_part_of_the_name(changed: dict[str, Any]) -> None:
    assert base_of(vllm_config()).id != base_of(vllm_config(), **changed).id


def test_the_machine_of_this_process_is_the_same_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    before = Machine.of_this_process()
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    assert Machine.of_this_process() == before
    for name in ("VLLM_BATCH_INVARIANT", "VLLM_B12X_MOE_FP4_FORCE_A16", "NVIDIA_TF32_OVERRIDE"):
        monkeypatch.setenv(name, "1")
        assert Machine.of_this_process() != before
        monkeypatch.delenv(name)


UNNAMED: list[tuple[str, Change, UncacheableReason]] = [
    ("window", _text("sliding_window", 4096)[1], UncacheableReason.SLIDING_WINDOW),
    (
        "hybrid windows",
        _text("layer_types", ["full_attention", "sliding_attention"])[1],
        UncacheableReason.SLIDING_WINDOW,
    ),
    ("linear layers", _text("layer_types", ["linear_attention"])[1], UncacheableReason.LAYER_KIND),
    ("chunks", _text("attention_chunk_size", 8192)[1], UncacheableReason.LAYER_KIND),
    ("dual chunks", _text("dual_chunk_attention_config", {"a": 1})[1], UncacheableReason.LAYER_KIND),
    ("sparse", _text("index_topk", 2048)[1], UncacheableReason.LAYER_KIND),
    ("hybrid", _set("model_config.is_hybrid", True), UncacheableReason.LAYER_KIND),
    ("state", _set("model_config.has_inner_state", True), UncacheableReason.LAYER_KIND),
    ("no attention", _set("model_config.is_attention_free", True), UncacheableReason.LAYER_KIND),
    ("encoder", _set("model_config.is_encoder_decoder", True), UncacheableReason.LAYER_KIND),
    ("no decoder", _set("model_config.attn_type", "encoder_only"), UncacheableReason.MODEL_UNSUPPORTED),
    ("not causal", _text("is_causal", False)[1], UncacheableReason.MODEL_UNSUPPORTED),
    ("images both ways", _set("model_config.is_mm_prefix_lm", True), UncacheableReason.MODEL_UNSUPPORTED),
    ("diffusion", _set("model_config.is_diffusion", True), UncacheableReason.MODEL_UNSUPPORTED),
    ("pooling", _set("model_config.runner_type", "pooling"), UncacheableReason.MODEL_UNSUPPORTED),
    ("pipeline", _set("parallel_config.pipeline_parallel_size", 2), UncacheableReason.MODEL_UNSUPPORTED),
    ("dcp", _set("parallel_config.decode_context_parallel_size", 2), UncacheableReason.MODEL_UNSUPPORTED),
    ("pcp", _set("parallel_config.prefill_context_parallel_size", 2), UncacheableReason.MODEL_UNSUPPORTED),
    ("other ranks", _set("parallel_config.tensor_parallel_size", 2), UncacheableReason.MODEL_UNSUPPORTED),
    (
        "eagle",
        _set("speculative_config", SimpleNamespace(method="eagle3")),
        UncacheableReason.MODEL_UNSUPPORTED,
    ),
    ("fast prefill", _set("cache_config.kv_sharing_fast_prefill", True), UncacheableReason.MODEL_UNSUPPORTED),
    ("noops", _set("model_config.has_noops", True), UncacheableReason.GEOMETRY_UNKNOWN),
    ("mrope", _set("model_config.uses_mrope", True), UncacheableReason.POSITION_UNNAMED),
    ("mrope by sections", _rope(mrope_section=[1, 2]), UncacheableReason.POSITION_UNNAMED),
    ("alibi", _set("model_config.uses_alibi", True), UncacheableReason.POSITION_UNNAMED),
    ("no rotation", _text("rope_parameters", None)[1], UncacheableReason.POSITION_UNNAMED),
    ("rotations", _text("rope_parameters", {"full_attention": {}})[1], UncacheableReason.ROPE_UNKNOWN),
    ("dynamic", _rope(rope_type="dynamic", factor=2.0), UncacheableReason.ROPE_DYNAMIC),
    ("longrope", _rope(rope_type="longrope"), UncacheableReason.ROPE_DYNAMIC),
    ("some rotation", _rope(rope_type="proportional"), UncacheableReason.ROPE_UNKNOWN),
    ("kv dtype", _set("cache_config.cache_dtype", "nvfp4"), UncacheableReason.KV_DTYPE_UNKNOWN),
    ("kv dtypes", _set("cache_config.kv_cache_dtype_skip_layers", ["0"]), UncacheableReason.KV_DTYPE_UNKNOWN),
    ("int8", _set("cache_config.cache_dtype", "int8"), UncacheableReason.QUANTISATION_INCOMPLETE),
    ("scales", _set("cache_config.calculate_kv_scales", True), UncacheableReason.QUANTISATION_INCOMPLETE),
    ("other blocks", _text("head_dim", 128)[1], UncacheableReason.GEOMETRY_UNKNOWN),
    ("other layers", _text("num_hidden_layers", 3)[1], UncacheableReason.GEOMETRY_UNKNOWN),
]


@pytest.mark.parametrize(("what", "change", "reason"), UNNAMED, ids=[what for what, _, _ in UNNAMED])
def test_what_has_no_name(what: str, change: Change, reason: UncacheableReason) -> None:
    config = vllm_config()
    change(config)
    # int8 passes with blocks of its size; what is asked here is only whether it may be kept
    blocks = layout(bytes_per_block=BLOCK_BYTES // 4) if what == "int8" else layout()
    assert reason_of(config, layout=blocks) is reason


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (SlidingWindowSpec(sliding_window=128), UncacheableReason.SLIDING_WINDOW),
        (FullAttentionSpec(sliding_window=128), UncacheableReason.SLIDING_WINDOW),
        (FullAttentionSpec(attention_chunk_size=128), UncacheableReason.LAYER_KIND),
        (FullAttentionSpec(non_causal=True), UncacheableReason.MODEL_UNSUPPORTED),
        (MLAAttentionSpec(tokens_per_state=4), UncacheableReason.LAYER_KIND),
        (MambaSpec(), UncacheableReason.LAYER_KIND),
        (UniformTypeKVCacheSpecs(kv_cache_specs={"a": MambaSpec()}), UncacheableReason.LAYER_KIND),
    ],
    ids=str,
)
def test_what_the_engine_does_counts_whatever_it_was_told(spec: Any, reason: UncacheableReason) -> None:
    assert reason_of(vllm_config(), kv_cache_config=groups(spec)) is reason


def test_several_groups_of_layers_have_no_name() -> None:
    both = groups(FullAttentionSpec(), FullAttentionSpec())
    assert reason_of(vllm_config(), kv_cache_config=both) is UncacheableReason.LAYER_KIND
    uniform = groups(UniformTypeKVCacheSpecs(kv_cache_specs={"a": FullAttentionSpec()}))
    assert isinstance(named(vllm_config(), kv_cache_config=uniform).base, Namespace)


def test_a_window_that_all_layers_disown_is_none() -> None:
    config = vllm_config(sliding_window=4096, layer_types=["full_attention"] * LAYERS)
    assert isinstance(named(config).base, Namespace)
    config = vllm_config(sliding_window=4096, use_sliding_window=False)
    assert isinstance(named(config).base, Namespace)


def test_code_that_comes_with_a_model_is_named(tmp_path: Path) -> None:
    config = vllm_config(tmp_path)
    config.model_config.trust_remote_code = True
    names = []
    for code in ("a = 1", "a = 2"):
        (tmp_path / "modeling.py").write_text(code)
        names.append(base_of(config).id)
    config.model_config.code_revision = "other"
    assert len({*names, base_of(config).id}) == 3


def test_latent_attention_is_named() -> None:
    blocks = PhysicalLayout(name="mla", block_tokens=16, bytes_per_block=LAYERS * 16 * 576 * 4)
    geometry = base_of(mla_config(), layout=blocks).geometry
    assert (geometry.latent_dim, geometry.rope_dim, geometry.heads) == (512, 64, 0)
    config = mla_config()
    config.parallel_config.tensor_parallel_size = 2
    ranks = [RankRange(tensor_rank=rank, tensor_size=2) for rank in range(2)]
    assert len({base_of(config, layout=blocks, rank=rank).id for rank in ranks}) == 1


@pytest.mark.parametrize(
    ("name", "kind"), [("deepseek_yarn", "yarn"), ("yarn", "yarn"), ("llama3", "llama3")]
)
def test_rotations_by_the_engines_names(name: str, kind: str) -> None:
    config = vllm_config()
    _rope(rope_type=name, factor=4.0, beta_fast=32, extra=[1, 2])(config)
    rope = base_of(config).rope
    assert rope is not None
    assert rope.kind == kind
    assert dict(rope.scaling)["extra"] == (1.0, 2.0)


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp8", "fp8_e4m3"), ("fp8_e4m3", "fp8_e4m3"), ("fp8_e5m2", "fp8_e5m2")]
)
def test_fp8_blocks_are_named_but_not_on_rocm(name: str, dtype: str) -> None:
    config = vllm_config()
    config.cache_config.cache_dtype = name
    blocks = layout(bytes_per_block=BLOCK_BYTES // 4)
    assert base_of(config, layout=blocks).kv_dtype == KvDtype(dtype)
    told = {name: getattr(MACHINE, name) for name in Machine.__slots__}
    rocm = Machine(**{**told, "is_rocm": True})
    assert reason_of(config, layout=blocks, machine=rocm) is UncacheableReason.KV_DTYPE_UNKNOWN


@pytest.mark.parametrize(
    ("total", "size", "ranges"),
    [
        (2, 1, [(0, 2)]),
        (2, 2, [(0, 1), (1, 2)]),
        (2, 4, [(0, 1), (0, 1), (1, 2), (1, 2)]),
        (8, 2, [(0, 4), (4, 8)]),
        (1, 3, [(0, 1)] * 3),
        (3, 2, [None, None]),
        (2, 3, [None] * 3),
    ],
)
def test_heads_of_ranks(total: int, size: int, ranges: list[tuple[int, int] | None]) -> None:
    assert [RankRange(tensor_rank=rank, tensor_size=size).heads(total) for rank in range(size)] == ranges


def test_ranks_have_their_own_shards_and_replicas_the_same() -> None:
    config = vllm_config()
    config.parallel_config.tensor_parallel_size = 4
    blocks = layout(bytes_per_block=BLOCK_BYTES // 2)
    ids = [base_of(config, layout=blocks, rank=RankRange(tensor_rank=r, tensor_size=4)).id for r in range(4)]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    config.parallel_config.tensor_parallel_size = 2
    half = base_of(config, layout=blocks, rank=RankRange(tensor_rank=0, tensor_size=2)).id
    assert half != ids[0]  # sums over other numbers of ranks are rounded in another order


@pytest.mark.parametrize(
    "wrong", [{"tensor_rank": 1}, {"tensor_rank": -1}, {"tensor_size": 0}, {"pipeline_rank": 2}]
)
def test_ranks_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError):
        RankRange(**wrong)


@given(st.integers(1, 5000), st.integers(1, 1 << 28))
def test_pages_hold_as_much_as_is_worth_while(block_tokens: int, bytes_per_block: int) -> None:
    shape = PhysicalLayout(name="x", block_tokens=block_tokens, bytes_per_block=bytes_per_block)
    blocks = blocks_of_a_page(shape)
    tokens, size = blocks * block_tokens, blocks * bytes_per_block
    if blocks > 1:
        assert tokens <= ENGINE_PAGE_TOKENS_MAX
        assert size <= PAGE_BYTES_MAX
        fewer = blocks - 1
        assert fewer * block_tokens < 64 or fewer * bytes_per_block < 256 * 1024
    more = blocks + 1
    if tokens < 64 or size < 256 * 1024:
        assert more * block_tokens > ENGINE_PAGE_TOKENS_MAX or more * bytes_per_block > PAGE_BYTES_MAX


@pytest.mark.parametrize(
    ("block_tokens", "bytes_per_token", "blocks"),
    [
        (16, 4096, 4),
        (16, 1024, 16),
        (32, 131072, 2),
        (128, 8192, 1),
        (128, 1024, 2),
        (256, 10, 1),
        (512, 10, 1),
    ],
)
def test_pages_of_usual_sizes(block_tokens: int, bytes_per_token: int, blocks: int) -> None:
    shape = PhysicalLayout(
        name="x", block_tokens=block_tokens, bytes_per_block=block_tokens * bytes_per_token
    )
    assert blocks_of_a_page(shape) == blocks


def test_pages_of_the_operators_size() -> None:
    settings = ConnectorSettings(weights_version="v", page_tokens=4 * BLOCK)
    assert named(vllm_config(), settings=settings).blocks_per_page == 4
    with pytest.raises(ConfigError, match="multiple"):
        named(vllm_config(), settings=ConnectorSettings(weights_version="v", page_tokens=BLOCK + 1))
    huge = layout(bytes_per_block=PAGE_BYTES_MAX)
    with pytest.raises(ConfigError, match="fewer page_tokens"):
        named(vllm_config(), settings=settings, layout=huge)


def test_a_block_larger_than_any_page_has_no_name() -> None:
    assert (
        reason_of(vllm_config(), layout=layout(bytes_per_block=PAGE_BYTES_MAX + 1))
        is UncacheableReason.INVALID
    )
    assert reason_of(vllm_config(), layout=layout(block_tokens=8192)) is UncacheableReason.INVALID


def test_a_layout_of_a_long_name_counts_by_its_digest() -> None:
    names = [base_of(vllm_config(), layout=layout(name="x" * 1020 + end)) for end in "ab"]
    assert names[0].id != names[1].id


def test_a_name_too_long_is_no_error() -> None:
    assert reason_of(vllm_config(model="m" * 2000)) is UncacheableReason.INVALID


def test_who_requires_pages_is_told_at_the_start_that_there_are_none() -> None:
    settings = ConnectorSettings(weights_version="v", require_cacheable=True)
    config = vllm_config()
    named(config, settings=settings)
    config.model_config.is_hybrid = True
    with pytest.raises(ConfigError, match="require_cacheable"):
        named(config, settings=settings)


def test_who_follows_weights_names_them_by_a_version(tmp_path: Path) -> None:
    config = vllm_config(write_model(tmp_path / "m"))
    with pytest.raises(ConfigError, match="follow_weights"):
        named(config, settings=ConnectorSettings(follow_weights=True), memory=DigestMemory(tmp_path / "x"))
    settings = ConnectorSettings(follow_weights=True, weights_version="v1")
    assert isinstance(named(config, settings=settings).base, Namespace)


def test_variants() -> None:
    base = base_of(vllm_config())
    adapter = Adapter("a", b"d" * 32)
    variants = [
        Variant(),
        Variant(weights_version="v2"),
        Variant(adapter=adapter),
        Variant(adapter=Adapter("a", b"e" * 32)),
        Variant(tenant="t"),
        Variant("v2", adapter, "t"),
    ]
    made = [namespace_of(base, variant) for variant in variants]
    assert made[0] == base
    assert len({namespace.id for namespace in made}) == len(variants)
    assert (made[-1].weights, made[-1].adapter, made[-1].tenant) == (Weights(version="v2"), adapter, "t")
    assert {namespace.numerics for namespace in made} == {base.numerics}


class Opaque:
    """Something of the engine's that has a place in memory."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._hidden = object()


def test_digests_of_objects_tell_their_content_and_not_their_place() -> None:
    assert digest_text(Opaque(1)) == digest_text(Opaque(1)) != digest_text(Opaque(2))
    assert digest_text({"a", "b"}) == digest_text({"b", "a"})
    assert digest_text([1, 2]) != digest_text([2, 1])
    assert plain(Opaque) == plain(Opaque)
    assert "0x" not in str(plain([Opaque(Opaque), print, HfConfig(a=1), UncacheableReason.INVALID]))
    endless: list[Any] = []
    endless.append(endless)
    assert digest_text(endless) == digest_text(endless)
