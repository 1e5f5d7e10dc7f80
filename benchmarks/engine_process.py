"""One vLLM engine in a process of its own: takes orders as JSON lines over a socket, and ends when that closes.

Run as `python -m benchmarks.engine_process DESCRIPTOR`; `benchmarks.own_engine` does.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

_ORDERS_MAX = 4096
_IDLE_S = 0.005
"""Between steps that only wait for what a connector has under way: an engine of its own spins here."""


class Wire:
    """Messages to and from who started this engine."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._orders: queue.Queue[dict[str, Any]] = queue.Queue(_ORDERS_MAX)

    def first(self) -> dict[str, Any]:
        """Wait for the first message, with which the engine is made; the others come through `take`."""
        message: dict[str, Any] = json.loads(self._lines.readline())
        threading.Thread(target=self._read, name="orders", daemon=True).start()
        return message

    def take(self, *, wait_s: float | None) -> dict[str, Any] | None:
        """The next order; None when `wait_s` passes first. With None it waits as long as it takes."""
        try:
            return self._orders.get(timeout=wait_s) if wait_s != 0 else self._orders.get_nowait()
        except queue.Empty:
            return None

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _read(self) -> None:
        for line in self._lines:
            self._orders.put(json.loads(line))
        # Whoever started us is gone, or has closed: so are the processes of this engine, which are one group.
        os.killpg(0, signal.SIGKILL)


class Request:
    """What is known of one request."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.began = time.perf_counter()
        self.first_token_s: float | None = None
        self.prefill: dict[str, int] = {}


class Runner:
    """Steps the engine while there is work, and takes orders between steps."""

    def __init__(self, engine: Any, wire: Wire) -> None:
        self._engine = engine
        self._wire = wire
        self._requests: dict[str, Request] = {}
        self._steps_left: int | None = None
        """None: as many as there is work for."""
        self._verbs: dict[str, Callable[..., Any]] = {
            "abort": self._abort,
            "hold": self._hold,
            "step": self._steps,
            "release": self._release,
            "reset_prefix_cache": self._reset_prefix_cache,
            "collective_rpc": self._collective_rpc,
            "metrics": _metrics,
            "inside": self._inside,
            "idle": self._idle,
        }
        _note_prefills(engine.output_processor, self._requests)

    def run(self) -> None:
        """Serve until told to stop."""
        while True:
            working = self._may_step() and self._has_work()
            order = self._wire.take(wait_s=0 if working else _IDLE_S if self._lingers() else None)
            if order is not None:
                if order["do"] == "stop":
                    return
                self._carry_out(order)
            elif self._may_step() and (working or self._lingers()):
                self._step()

    def _may_step(self) -> bool:
        return self._steps_left is None or self._steps_left > 0

    def _has_work(self) -> bool:
        return bool(self._engine.has_unfinished_requests())

    def _lingers(self) -> bool:
        """Whether an engine that is stepped here still has something to finish for its connector."""
        core = getattr(self._engine.engine_core, "engine_core", None)
        return self._may_step() and core is not None and bool(core.scheduler.has_requests())

    def _carry_out(self, order: dict[str, Any]) -> None:
        number, verb, arguments = order["number"], order["do"], order.get("with", {})
        try:
            if verb == "submit":
                self._submit(number, **arguments)
            else:
                self._wire.tell({"number": number, "done": self._verbs[verb](**arguments)})
        except Exception:  # noqa: BLE001 - whoever ordered it is told
            self._wire.tell({"number": number, "failed": traceback.format_exc()})

    def _step(self) -> None:
        if self._steps_left is not None:
            self._steps_left -= 1
        for output in self._engine.step():
            request = self._requests[output.request_id]
            if request.first_token_s is None and output.outputs[0].token_ids:
                request.first_token_s = time.perf_counter() - request.began
            if output.finished:
                del self._requests[output.request_id]
                self._wire.tell({"number": request.number, "done": _told(output, request)})

    def _submit(
        self,
        number: int,
        *,
        prompt: list[int] | str,
        sampling: dict[str, Any],
        cache_salt: str | None = None,
        lora: dict[str, Any] | None = None,
    ) -> None:
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        asked: dict[str, Any] = (
            {"prompt": prompt} if isinstance(prompt, str) else {"prompt_token_ids": prompt}
        )
        if cache_salt is not None:
            asked["cache_salt"] = cache_salt
        name = f"request-{number}"
        self._requests[name] = Request(number)
        try:
            self._engine.add_request(
                name, asked, SamplingParams(**sampling), lora_request=LoRARequest(**lora) if lora else None
            )
        except Exception:
            del self._requests[name]
            raise

    def _abort(self, *, request: int) -> None:
        self._engine.abort_request([f"request-{request}"])
        self._requests.pop(f"request-{request}", None)

    def _hold(self) -> None:
        self._steps_left = 0

    def _steps(self, *, count: int) -> int:
        """Steps that were made of `count`: fewer when no work was left."""
        self._steps_left = count
        while self._steps_left > 0 and (self._has_work() or self._lingers()):
            self._step()
        left, self._steps_left = self._steps_left, 0
        return count - left

    def _release(self) -> None:
        self._steps_left = None

    def _idle(self) -> bool:
        """Whether nothing is under way, as far as it can be seen from here."""
        return not self._has_work() and not self._lingers()

    def _reset_prefix_cache(self, *, reset_connector: bool) -> bool:
        return bool(self._engine.reset_prefix_cache(reset_connector=reset_connector))

    def _collective_rpc(self, *, method: str, arguments: list[Any], named: dict[str, Any]) -> list[Any]:
        return list(self._engine.collective_rpc(method, args=tuple(arguments), kwargs=named))

    def _inside(self, *, function: str, named: dict[str, Any]) -> Any:
        module, _, name = function.partition(":")
        return getattr(importlib.import_module(module), name)(self._engine, **named)


def _note_prefills(processor: Any, requests: dict[str, Request]) -> None:
    """Keep what each prefill was served from, which the engine tells its statistics only."""
    process = processor.process_outputs

    def noting(outputs: Any, *arguments: Any, **named: Any) -> Any:
        for output in outputs:
            state = processor.request_states.get(output.request_id)
            stats = output.prefill_stats
            if state is not None and stats is not None and state.external_req_id in requests:
                requests[state.external_req_id].prefill = {
                    "local": stats.num_local_cached_tokens,
                    "external": stats.num_external_cached_tokens,
                }
        return process(outputs, *arguments, **named)

    processor.process_outputs = noting


def _told(output: Any, request: Request) -> dict[str, Any]:
    first = output.outputs[0]
    return {
        "tokens": list(first.token_ids),
        "text": first.text,
        "logprobs": _plain(first.logprobs),
        "prompt_logprobs": _plain(output.prompt_logprobs),
        "finish_reason": first.finish_reason,
        "prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens": output.num_cached_tokens,
        "local_tokens": request.prefill.get("local", 0),
        "external_tokens": request.prefill.get("external", 0),
        "kv_transfer_params": output.kv_transfer_params,
        "first_token_s": request.first_token_s,
        "whole_s": time.perf_counter() - request.began,
    }


def _plain(logprobs: Any) -> list[list[tuple[int, float]] | None] | None:
    """A list of (token, logprob) a position."""
    if logprobs is None:
        return None
    return [None if at is None else [(token, each.logprob) for token, each in at.items()] for at in logprobs]


def _metrics() -> list[tuple[str, dict[str, str], float]]:
    """Every sample of vLLM's registry: name, labels, value."""
    from prometheus_client import REGISTRY

    return [
        (sample.name, dict(sample.labels), sample.value)
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name.startswith(("vllm:", "stratakv"))
    ]


def _pids(engine: Any) -> list[int]:
    """The processes of the engine beside this one."""
    import psutil

    del engine
    return [child.pid for child in psutil.Process().children(recursive=True)]


def serve(descriptor: int) -> int:
    """Make the engine that the first message names, and run it; returns an exit code."""
    wire = Wire(descriptor)
    arguments = wire.first()
    began = time.perf_counter()
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    try:
        engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
    except Exception:  # noqa: BLE001 - whoever asked for it is told
        wire.tell({"number": 0, "failed": traceback.format_exc()})
        return 1
    wire.tell({"number": 0, "done": {"start_s": time.perf_counter() - began, "pids": _pids(engine)}})
    Runner(engine, wire).run()
    engine.engine_core.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1])))
