"""The engine's own objects, imitated: configurations, groups of layers and requests, as far as the connector reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from inference_worker.connectors.vllm.identity import Machine, PhysicalLayout

Change = Callable[[Any], None]

MACHINE = Machine(
    engine_version="0.32.0",
    torch_version="2.13.0",
    architecture="x86_64",
    cpu_flags="AVX512",
    is_rocm=False,
    matmul="highest",
)
LAYERS, HEADS, HEAD_DIM, BLOCK = 4, 2, 64, 32
BLOCK_BYTES = LAYERS * HEADS * 2 * HEAD_DIM * BLOCK * 4


class HfConfig(SimpleNamespace):
    """A configuration as Transformers keeps it."""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class FullAttentionSpec(SimpleNamespace):
    """Layers that attend to everything."""


class MLAAttentionSpec(SimpleNamespace):
    """Layers that keep a latent."""


class SlidingWindowSpec(SimpleNamespace):
    """Layers that attend to a window."""


class MambaSpec(SimpleNamespace):
    """Layers that keep a state."""


class UniformTypeKVCacheSpecs(SimpleNamespace):
    """Layers whose specs differ in sizes only."""


class ModelConfig(SimpleNamespace):
    """The engine's view of a model."""

    @property
    def hf_config(self) -> HfConfig:
        return self.hf_text_config

    def get_total_num_hidden_layers(self) -> int:
        return self.hf_text_config.num_hidden_layers

    def get_total_num_kv_heads(self) -> int:
        return self.hf_text_config.num_key_value_heads

    def get_head_size(self) -> int:
        text = self.hf_text_config
        return text.kv_lora_rank + text.qk_rope_head_dim if self.use_mla else text.head_dim


def hf_config(**changes: Any) -> HfConfig:
    """A small Llama's."""
    told = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": 2,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": 256,
        "initializer_range": 0.02,
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": HEADS,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "transformers_version": "5.19.0",
        "use_cache": True,
    }
    return HfConfig(**{**told, **changes})


def _model_config(model: Path | str, text: HfConfig) -> ModelConfig:
    return ModelConfig(
        model=str(model),
        hf_text_config=text,
        architecture="LlamaForCausalLM",
        attn_type="decoder",
        dtype="torch.float32",
        enforce_eager=True,
        has_inner_state=False,
        has_noops=False,
        is_attention_free=False,
        is_diffusion=False,
        is_encoder_decoder=False,
        is_hybrid=False,
        is_mm_prefix_lm=False,
        max_model_len=512,
        model_class_overrides={},
        model_impl="auto",
        model_weights="",
        quantization=None,
        quantization_config=None,
        revision=None,
        runner_type="generate",
        seed=0,
        served_model_name="tiny",
        tokenizer="/models/tiny",
        use_mla=False,
        uses_alibi=False,
        uses_mrope=False,
    )


def vllm_config(model: Path | str = "/models/tiny", **text: Any) -> Any:
    """One engine's configuration; keywords change the model's own."""
    return SimpleNamespace(
        model_config=_model_config(model, hf_config(**text)),
        cache_config=SimpleNamespace(
            block_size=BLOCK,
            cache_dtype="auto",
            enable_prefix_caching=True,
            gpu_memory_utilization=0.9,
            kv_cache_dtype_skip_layers=[],
            kv_sharing_fast_prefill=False,
            num_gpu_blocks_override=None,
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
            data_parallel_size=1,
            all2all_backend="allgather_reducescatter",
            disable_custom_all_reduce=True,
            enable_eplb=False,
            enable_expert_parallel=False,
            enable_hc_sp=False,
            rank=0,
        ),
        load_config=SimpleNamespace(load_format="auto", download_dir=None),
        device_config=SimpleNamespace(device_type="cpu"),
        attention_config=SimpleNamespace(backend=None, use_non_causal=False),
        kernel_config=SimpleNamespace(moe_backend="auto", linear_backend="auto", enable_jit_warmup=False),
        compilation_config=SimpleNamespace(
            mode=0,
            backend="inductor",
            custom_ops=["all"],
            pass_config=SimpleNamespace(fuse_norm_quant=False),
            inductor_compile_config={},
            inductor_passes={},
            use_inductor_graph_partition=False,
            cudagraph_capture_sizes=[],
            static_forward_context={"layers.0.attn": layer()},
        ),
        quant_config=None,
        speculative_config=None,
        lora_config=None,
        diffusion_config=None,
        scheduler_config=SimpleNamespace(max_num_seqs=8),
    )


def layer(backend: str = "CPU_ATTN", isa: str = "vec") -> Any:
    """A loaded attention layer."""
    return SimpleNamespace(get_attn_backend=lambda: SimpleNamespace(get_name=lambda: backend), isa=isa)


def mla_config(model: Path | str = "/models/tiny") -> Any:
    """The same with latent attention."""
    config = vllm_config(model, model_type="deepseek_v3", kv_lora_rank=512, qk_rope_head_dim=64)
    config.model_config.use_mla = True
    return config


def groups(*specs: Any) -> Any:
    """Groups of layers as the engine keeps them."""
    return SimpleNamespace(
        kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, layer_names=["a"]) for spec in specs]
    )


def layout(**changes: Any) -> PhysicalLayout:
    """The layout of `vllm_config`'s blocks."""
    return PhysicalLayout(
        **{"name": "cpu_attn isa=vec", "block_tokens": BLOCK, "bytes_per_block": BLOCK_BYTES, **changes}
    )


def request(**changes: Any) -> Any:
    """A plain request for text."""
    told: dict[str, Any] = {
        "cache_salt": None,
        "lora_request": None,
        "mm_features": [],
        "pooling_params": None,
        "prompt_embeds": None,
        "prompt_is_token_ids": None,
        "request_id": "r",
        "resumable": False,
        "sampling_params": SimpleNamespace(prompt_logprobs=None),
        "skip_reading_prefix_cache": False,
    }
    return SimpleNamespace(**{**told, **changes})


def lora(name: str, number: int, path: Path | str, **changes: Any) -> Any:
    """A request's adapter."""
    told = {"load_inplace": False, "is_3d_lora_weight": False}
    return SimpleNamespace(
        **{"lora_name": name, "lora_int_id": number, "lora_path": str(path), **told, **changes}
    )
