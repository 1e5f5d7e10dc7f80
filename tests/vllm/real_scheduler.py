"""vLLM's real scheduler, cache manager and block pool with a connector, for a toy model that nobody runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 32
_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1024,
    "max_position_embeddings": 2048, "torch_dtype": "float32",
}  # fmt: skip


def real_scheduler(
    folder: Path, *, depth: int, blocks: int, batched: int = 1024, **engine: Any
) -> tuple[Any, Callable[[Request], Any]]:
    """A scheduler, `depth` steps deep, and what hashes the blocks of its requests. `engine`: more of EngineArgs."""
    import torch

    (folder / "config.json").write_text(json.dumps(_LLAMA))
    config = EngineArgs(
        model=str(folder), skip_tokenizer_init=True, dtype="float32", block_size=BLOCK, max_model_len=1024,
        num_gpu_blocks_override=blocks, enforce_eager=True, max_num_batched_tokens=batched, **engine,
    ).create_engine_config()  # fmt: skip
    config.cache_config.num_gpu_blocks = blocks
    if depth > 1:
        config.scheduler_config.async_scheduling = True
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.float32)
    caches = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    init_none_hash(sha256)
    scheduler = (Scheduler if depth == 1 else AsyncScheduler)(
        config, caches, StructuredOutputManager(config), block_size=BLOCK, log_stats=False
    )
    return scheduler, get_request_block_hasher(BLOCK, sha256)


def greedy_request(
    number: int, tokens: Sequence[int], max_tokens: int, hasher: Callable[[Request], Any], **more: Any
) -> Request:
    """A request that ends by its length alone."""
    return Request(
        f"r{number}", list(tokens), SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True), None,
        block_hasher=hasher, **more,
    )  # fmt: skip


def output_of(made: Any, sampled: list[list[int]], connector_output: Any) -> ModelRunnerOutput:
    """What a runner answers to a step: token ids of each scheduled request, in their order."""
    ids = list(made.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=ids, req_id_to_index={name: index for index, name in enumerate(ids)}, sampled_token_ids=sampled,
        logprobs=None, prompt_logprobs_dict={}, pooler_output=[], kv_connector_output=connector_output,
    )  # fmt: skip
