"""Tiny random LoRA adapters, written as files the way they are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

RANK = 8
_HIDDEN, _LAYERS = 256, 4
_SIZES = {"q_proj": 256, "v_proj": 128}


def write_adapter(folder: Path, *, seed: int) -> Path:
    """An adapter of the tiny Llama's queries and values; another seed gives other weights. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(_LAYERS):
        for name, size in _SIZES.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{place}.lora_A.weight"] = torch.randn(RANK, _HIDDEN, generator=drawn)
            tensors[f"{place}.lora_B.weight"] = torch.randn(size, RANK, generator=drawn) * 0.3
    config: dict[str, Any] = {
        "peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": sorted(_SIZES), "bias": "none",
        "task_type": "CAUSAL_LM", "lora_dropout": 0.0, "modules_to_save": None, "use_dora": False,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
