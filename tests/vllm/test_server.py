"""Behind the OpenAI-compatible server: hits of another replica, our counters at its own /metrics, its reset."""

from __future__ import annotations

from pathlib import Path

from tests.support.polling import wait_until
from tests.support.sidecar_process import SidecarProcess
from tests.vllm.engines import Makers, connector
from tests.vllm.models import tokens
from tests.vllm.sidecars import status

FLAGS = (
    "--skip-tokenizer-init", "--max-model-len", "1024", "--block-size", "32", "--num-gpu-blocks-override", "128",
)  # fmt: skip


def test_two_replicas_share_prefixes(made_here: Makers, llama: Path, sidecar: SidecarProcess) -> None:
    settings = connector(sidecar.runtime, page_tokens=64)
    development = {"VLLM_SERVER_DEV_MODE": "1"}
    one = made_here.server(llama, *FLAGS, **settings).wait_ready()
    two = made_here.server(llama, *FLAGS, environment=development, **settings).wait_ready()
    prompt = tokens(5, 321)
    one.complete(prompt)
    wait_until(lambda: status(sidecar)["entries_visible"] >= 5, what="the first replica's pages")
    hit = two.complete(prompt)
    assert hit.usage["prompt_tokens_details"]["cached_tokens"] == 320
    two.complete(tokens(6, 5))
    assert two.metric("vllm:stratakv_hit_tokens_total", tier="l2") == 320
    assert two.metric("vllm:stratakv_hook_seconds_total", side="scheduler") > 0
    two.post("/reset_prefix_cache?reset_external=true")
    cold = two.complete(prompt)
    assert not (cold.usage.get("prompt_tokens_details") or {}).get("cached_tokens")
