"""A worker extension that changes an engine's weights in place, as trainers do, and what names them from the front end."""

from __future__ import annotations

from typing import Any

from stratakv.vllm import WorkerExtension, set_weights_version


class Reloading(WorkerExtension):
    """Adds `change_weights` to each worker."""

    model_runner: Any

    def change_weights(self) -> int:
        """Change all keys and values that the model computes, always in the same way; returns by how many tensors."""
        norms = [
            value for name, value in self.model_runner.model.named_parameters() if "input_layernorm" in name
        ]
        for layer, norm in enumerate(norms):
            norm.data.mul_(1.5 - layer % 2)
        return len(norms)


def name_weights(engine: Any, version: str) -> None:
    """Call what users call."""
    set_weights_version(engine, version)
