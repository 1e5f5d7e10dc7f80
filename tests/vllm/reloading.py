"""A worker extension that changes an engine's weights in place, as trainers do, and what names them from the front end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stratakv.vllm import WorkerExtension, set_weights_version


class Reloading(WorkerExtension):
    """Adds `reload_from` to each worker."""

    model_runner: Any

    def reload_from(self, folder: str) -> int:
        """Load the weights of another model of the same shape; returns how many tensors."""
        from safetensors.torch import load_file

        loaded = [
            item for path in sorted(Path(folder).glob("*.safetensors")) for item in load_file(path).items()
        ]
        return len(self.model_runner.model.load_weights(iter(loaded)))


def name_weights(engine: Any, version: str) -> None:
    """Call what users call."""
    set_weights_version(engine, version)
