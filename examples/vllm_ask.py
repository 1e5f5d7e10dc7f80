"""Asks an OpenAI-compatible vLLM server for the first token behind a text, and tells how long that took and what was reused.

Usage: vllm_ask.py URL FILE TITLE; or vllm_ask.py URL --wait, which returns once the server serves.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

START_S_MAX = 300.0
ANSWER_S_MAX = 300.0
QUESTION = "\n\nQuestion: Which label was on the empty jar?\nAnswer:"


def wait_until_served(url: str) -> bool:
    """Whether the server says that it is healthy, within START_S_MAX."""
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if call(url, "GET", "/health", timeout_s=2.0)[0] == HTTPStatus.OK:
                return True
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
    began = time.perf_counter()
    status, answer = call(url, "POST", "/v1/completions", json.dumps(body), timeout_s=ANSWER_S_MAX)
    took_s = time.perf_counter() - began
    if status != HTTPStatus.OK:
        raise SystemExit(f"{url} answered {status}: {answer[:500].decode(errors='replace')}")
    return took_s, json.loads(answer)


def call(url: str, method: str, path: str, body: str | None = None, *, timeout_s: float) -> tuple[int, bytes]:
    """Status and body of one HTTP call."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout_s)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


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
