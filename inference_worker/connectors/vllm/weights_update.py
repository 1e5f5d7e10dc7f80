"""Naming the weights of a running engine anew: a Python call, over the engine's own RPC to its workers."""

from __future__ import annotations

from typing import Any

from kv_types.errors import ConfigError
from kv_types.namespace import Weights

_METHOD = "stratakv_set_weights_version"


class WorkerExtension:
    """For the engine's --worker-extension-cls: gives each worker the method that `set_weights_version` calls.

    Those who update weights by a method of their own call `stratakv_set_weights_version` in it, behind the update.
    """

    def stratakv_set_weights_version(self, version: str) -> None:
        """Name this worker's weights; change them before. Raises InvalidArgumentError for what can't be a version."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group  # noqa: PLC0415

        if not has_kv_transfer_group():
            raise ConfigError("this worker has no KV connector: start the engine with --kv-transfer-config")
        connector = get_kv_transfer_group()
        if not hasattr(connector, "set_weights_version"):
            raise ConfigError(
                f"this worker's connector is {type(connector).__name__}, which knows no weights versions"
            )
        connector.set_weights_version(version)


def set_weights_version(engine: Any, version: str) -> Any:
    """Name the weights of a running engine, after they were changed in all of its workers.

    `engine`: an LLM, an LLMEngine, or an AsyncLLM, for which the answer is to be awaited. From the engine's next step on
    nothing that older weights computed is found or stored, in the engine's own prefix cache neither; requests that run
    finish, and store nothing. Raises InvalidArgumentError for what can't be a version, ConfigError where the engine was
    started without the extension.
    """
    Weights(version=version)
    extension = _extension_of(engine)
    if extension is None:
        raise ConfigError(
            "the engine's workers can't be told: start it with --worker-extension-cls stratakv.vllm.WorkerExtension"
        )
    return engine.collective_rpc(_METHOD, args=(version,))


def _extension_of(engine: Any) -> str | None:
    """The worker extension that an engine was started with; None: none that has our method, as far as can be told."""
    config = getattr(getattr(engine, "llm_engine", engine), "vllm_config", None)
    name = getattr(getattr(config, "parallel_config", None), "worker_extension_cls", "")
    return name or None
