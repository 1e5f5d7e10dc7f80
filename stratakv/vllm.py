"""What vLLM loads by its --kv-transfer-config, and how a running engine's weights get another name. See docs/vllm.md.

--kv-transfer-config '{"kv_connector": "StrataConnector", "kv_connector_module_path": "stratakv.vllm",
                       "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'
"""

from __future__ import annotations

from inference_worker.connectors.vllm.connector import StrataConnector
from inference_worker.connectors.vllm.weights_update import WorkerExtension, set_weights_version

__all__ = ["StrataConnector", "WorkerExtension", "set_weights_version"]
