"""Small random models for vLLM, made once and kept in a folder of the user's cache."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

CACHE_VARIABLE = "MODEL_CACHE"
_MAKE_S_MAX = 600.0
RECIPE = 1
"""Changes whenever the same configuration and seed would make another model."""

LLAMA_TINY: dict[str, Any] = {
    "kind": "LlamaConfig", "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024, "max_position_embeddings": 4096,
    "initializer_range": 0.15,
}  # fmt: skip
LLAMA_184M: dict[str, Any] = {
    "kind": "LlamaConfig", "num_hidden_layers": 16, "hidden_size": 1024, "intermediate_size": 2048,
    "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 20_480, "max_position_embeddings": 8192,
}  # fmt: skip


def cache_folder() -> Path:
    """Where models are kept: $MODEL_CACHE, else stratakv/models in the user's cache."""
    told = os.environ.get(CACHE_VARIABLE)
    if told:
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratakv" / "models"


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of a model; `make` fills it where it isn't there yet, whole or not at all, one process at a time."""
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                whole = Path(scratch) / "model"
                make(whole)
                whole.rename(folder)
    return folder


def random_model(name: str, config: dict[str, Any], *, seed: int = 0) -> Path:
    """The folder of a random fp32 model of that configuration; another seed makes other weights."""
    recipe = json.dumps([config, seed, RECIPE], sort_keys=True)
    mark = blake2b(recipe.encode(), digest_size=6).hexdigest()
    return kept(f"{name}-{mark}", lambda folder: _make_random(folder, config, seed))


def _make_random(folder: Path, config: dict[str, Any], seed: int) -> None:
    # In a process of its own: whoever only asks for a model's folder need not import torch.
    subprocess.run(
        [sys.executable, "-m", "benchmarks.vllm_models", str(folder), json.dumps(config), str(seed)],
        check=True, timeout=_MAKE_S_MAX, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip


def main() -> int:
    """Make one random model: FOLDER CONFIG SEED."""
    import torch
    import transformers

    folder, config, seed = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(seed)
    made = getattr(transformers, config.pop("kind"))(
        **config, dtype="float32", bos_token_id=1, eos_token_id=2
    )
    model = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.float32)
    model.save_pretrained(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
