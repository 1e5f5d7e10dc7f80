"""Tiny random models of each supported kind, and what tests ask of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache

PAGE_TOKENS = 8
VOCABULARY = 96

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
_MLA: dict[str, Any] = {
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "qk_nope_head_dim": 16,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
_SPECIAL: dict[str, dict[str, Any]] = {
    "deepseek_v2": _MLA,
    "deepseek_v3": _MLA,
    "gemma": {"head_dim": 16},
    "glm": {"head_dim": 16},
    "helium": {"head_dim": 16},
    "mistral": {"sliding_window": None},
    "mixtral": {"sliding_window": None, "num_local_experts": 4},
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 32},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {**_EXPERTS, "head_dim": 16},
    "starcoder2": {"sliding_window": None},
}


def tiny_config(kind: str, **changes: Any) -> Any:
    """Build the configuration of a small model of a kind; `changes` win."""
    return CONFIG_MAPPING[kind](**{**_COMMON, **_SPECIAL.get(kind, {}), **changes})


def tiny_model(kind: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """Build a small random model, ready to serve; equal arguments give equal bytes."""
    torch.set_num_threads(2)
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(tiny_config(kind, **changes), dtype=dtype).eval()


@cache
def shared_model(kind: str) -> Any:
    """One model of a kind for all tests that do not change it."""
    return tiny_model(kind)


def tokens(count: int, *, seed: int = 0) -> torch.Tensor:
    """`count` random ids without special ones: int64 [count]."""
    return torch.randint(3, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


def pad_rows(rows: list[torch.Tensor], side: str, *, junk: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad rows on the left, the right or with holes: ids and mask, int64 [B, S]. `junk` stands under pads."""
    width = max(len(row) for row in rows) + (7 if side == "holes" else 0)
    ids = torch.full((len(rows), width), junk)
    mask = torch.zeros((len(rows), width), dtype=torch.int64)
    for index, row in enumerate(rows):
        free = width - len(row)
        if side == "left":
            columns = torch.arange(free, width)
        elif side == "right":
            columns = torch.arange(len(row))
        else:
            shuffled = torch.randperm(width, generator=torch.Generator().manual_seed(index))
            columns = shuffled[: len(row)].sort().values
        ids[index, columns] = row
        mask[index, columns] = 1
    return ids, mask


def plain_cache(model: Any, row: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """Run one row through the model alone: its cache and logits [n, vocabulary], our oracle."""
    cache_ = DynamicCache(config=model.config)
    with torch.no_grad():
        output = model(input_ids=row[None], cache=cache_)
    return cache_, output.logits[0]


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest absolute difference of two tensors of one shape."""
    assert one.shape == other.shape
    return float((one.float() - other.float()).abs().max()) if one.numel() else 0.0
