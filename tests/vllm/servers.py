"""OpenAI-compatible vLLM servers for tests: on a free port of the loopback, asked over HTTP, ended with all their processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.own_engine import TAIL_CHARACTERS, environment_of, metric_of
from tests.support.polling import wait_until
from tests.support.redis_servers import free_port
from tests.vllm import leash

START_S_MAX = 300.0
ANSWER_S_MAX = 120.0
STOP_S_MAX = 30.0


@dataclass(frozen=True)
class Completion:
    """One completion; `first_token_s` is from sending the request, `usage` as the server told it at the end."""

    text: str
    first_token_s: float
    usage: Mapping[str, Any]
    finish_reason: str | None


class Server:
    """One server; `flags` are those of `vllm serve`. The process begins at once, `wait_ready` waits until it answers."""

    def __init__(
        self, model: Path, *flags: str, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self.port = free_port()
        self.model = str(model)
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", self.model]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32", "--enforce-eager"]
        command += ["--enable-prompt-tokens-details"]
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", leash.__file__, *command, *flags],
                stdin=subprocess.PIPE, stdout=sink, stderr=subprocess.STDOUT,
                env=environment_of(environment, multiprocess=True, sockets=log.parent), start_new_session=True,
            )  # fmt: skip

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self) -> Self:
        """Wait until it says that it is healthy; fails at once, with its messages, when it ends instead."""
        wait_until(self._is_healthy, timeout_s=START_S_MAX, what="the server's start")
        return self

    def complete(self, prompt: str | Sequence[int], *, max_tokens: int = 8, **more: Any) -> Completion:
        """Complete a prompt, streamed; `more` goes into the request."""
        body = {
            "model": self.model, "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": max_tokens, "temperature": 0.0, "stream": True,
            "stream_options": {"include_usage": True}, **more,
        }  # fmt: skip
        began, first, text, ended_by = time.perf_counter(), None, "", None
        usage: Mapping[str, Any] = {}
        with self._open("/v1/completions", body) as answer:
            for line in answer:
                data = line.decode().removeprefix("data: ").strip()
                if not data or data == "[DONE]":
                    continue
                event = json.loads(data)
                for choice in event["choices"]:
                    first = first if first is not None else time.perf_counter() - began
                    text += choice["text"]
                    ended_by = choice["finish_reason"] or ended_by
                usage = event.get("usage") or usage
        assert first is not None, f"no token came:\n{self.messages()}"
        return Completion(text, first, usage, ended_by)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """Post to any path; returns the body of the answer."""
        with self._open(path, body or {}) as answer:
            return bytes(answer.read())

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric in its /metrics that have these labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=ANSWER_S_MAX) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            samples = [(each.name, each.labels, each.value) for family in families for each in family.samples]
        return metric_of(samples, name, labels)

    def messages(self) -> str:
        """The end of what it wrote."""
        return self.log.read_text(errors="replace")[-TAIL_CHARACTERS:]

    def kill(self) -> None:
        """SIGKILL for all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_S_MAX)
        assert self.process.stdin is not None
        self.process.stdin.close()

    def stop(self) -> None:
        """SIGTERM; SIGKILL for whatever that leaves."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S_MAX)
        self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _open(self, path: str, body: Mapping[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{self.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            return urllib.request.urlopen(request, timeout=ANSWER_S_MAX)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read()[:2000]!r}") from error

    def _is_healthy(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.messages()}")
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
