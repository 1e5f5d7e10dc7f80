"""Asks an OpenAI-compatible vLLM server for the first token behind a text, and tells how long that took and what was reused.

Usage: vllm_ask.py URL FILE TITLE; or vllm_ask.py URL --wait, which returns once the server serves.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

START_S_MAX = 300.0
ANSWER_S_MAX = 300.0
QUESTION = "\n\nQuestion: Which label was on the empty jar?\nAnswer:"


def wait_until_served(url: str) -> bool:
    """Whether the server says that it is healthy, within START_S_MAX."""
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2.0):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return False


def ask(url: str, prompt: str) -> tuple[float, dict[str, Any]]:
    """Seconds to the first token, and the answer: with what the connector reports of the request."""
    body = {
        "model": "smollm2",
        "prompt": prompt,
        "max_tokens": 1,
        "temperature": 0.0,
        "kv_transfer_params": {"stratakv": {"report": True}},
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=ANSWER_S_MAX) as answer:
        told: dict[str, Any] = json.loads(answer.read())
    return time.perf_counter() - began, told


def main(arguments: list[str]) -> int:
    """Wait for a server, or ask it and print one line."""
    url, rest = arguments[0], arguments[1:]
    if rest == ["--wait"]:
        return 0 if wait_until_served(url) else 1
    took_s, told = ask(url, Path(rest[0]).read_text(encoding="utf-8").strip() + QUESTION)
    tokens = told["usage"]["prompt_tokens"]
    report = (told.get("kv_transfer_params") or {}).get("stratakv", {})
    own, shared = report.get("engine_tokens", 0), report.get("l2_tokens", 0) + report.get("l3_tokens", 0)
    print(
        f"{rest[1]}\n    first token after {took_s:5.2f} s; of {tokens:,} tokens {own:,} from vLLM's own cache, "
        f"{shared:,} from stratakv, {tokens - own - shared:,} computed",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
