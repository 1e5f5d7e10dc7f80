"""vLLM engines of one's own: started in processes, asked and awaited with deadlines, ended with everything they started."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

START_S_MAX = 300.0
ANSWER_S_MAX = 240.0
STOP_S_MAX = 20.0
TAIL_CHARACTERS = 6000

# What makes vLLM behave on a few shared cores: threads that don't spin, no compiler, nothing from the network.
BEHAVING = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "2",
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
ENGINE_DEFAULTS: Mapping[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "skip_tokenizer_init": True,
    "disable_log_stats": False,
    "max_num_seqs": 16,
}
SAMPLING_DEFAULTS: Mapping[str, Any] = {"temperature": 0.0, "max_tokens": 1, "ignore_eos": True}
SCHEDULER_S = 10.0
"""How long a scheduler waits for a sidecar to answer: a busy machine is no reason for a miss, which would spoil what is asked."""


def connector_config(endpoint: Path | str, **extra: Any) -> dict[str, Any]:
    """Return the `kv_transfer_config` that switches our connector on; `extra` are its own settings."""
    shown = str(endpoint) if str(endpoint).startswith("unix:") else f"unix:{endpoint}"
    return {
        "kv_connector": "StrataConnector",
        "kv_connector_module_path": "stratakv.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"endpoint": shown, "scheduler_deadline_s": SCHEDULER_S, **extra},
    }


class EngineError(RuntimeError):
    """An engine did not start, ended, or refused something; the text ends with its last messages."""


@dataclass(frozen=True)
class Answer:
    """What became of one request. Token counts are of its prompt; `logprobs` has (token → logprob) for each new token."""

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[Mapping[int, float], ...]
    prompt_logprobs: tuple[Mapping[int, float] | None, ...]
    finish_reason: str | None
    prompt_tokens: int
    cached_tokens: int
    local_tokens: int
    """Found in the engine's own prefix cache; all its lookups' `cached_tokens` are these and the external ones."""
    external_tokens: int
    """Brought by the connector."""
    kv_transfer_params: Mapping[str, Any] | None
    first_token_s: float
    whole_s: float


def has_vllm() -> bool:
    """Whether vLLM can be imported here."""
    return importlib.util.find_spec("vllm") is not None


def environment_of(
    extra: Mapping[str, str] | None = None, *, multiprocess: bool = False, sockets: Path | None = None
) -> dict[str, str]:
    """This process's environment as an engine of its own should have it. `sockets`: a short path where vLLM leaves its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STRATAKV_", "VLLM_"))}
    mode = {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(multiprocess))}
    place = {} if sockets is None else {"TMPDIR": str(sockets)}
    return {**kept, **BEHAVING, **mode, **place, **(extra or {})}


class Process(Protocol):
    """What is needed of a Popen."""

    @property
    def pid(self) -> int:
        """Of the process, and of the group of those that it starts."""
        ...

    @property
    def returncode(self) -> int | None:
        """Its exit code, once its end was seen."""
        ...

    def poll(self) -> int | None:
        """See whether it has ended."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises TimeoutExpired."""
        ...


Spawn = Callable[[int, int, Mapping[str, str]], Process]
"""Starts the process of an engine: descriptors of its end of the wire and of its log, its environment."""


def spawn_python(wire: int, log: int, environment: Mapping[str, str]) -> Process:
    """Start it as a program."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.engine_process", str(wire)],
        stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, pass_fds=(wire,),
        env=dict(environment), start_new_session=True,
    )  # fmt: skip


class Engine:
    """One engine in a process of its own; arguments are vLLM's EngineArgs on top of ENGINE_DEFAULTS.
    `log`: in a folder with a short path, which goes with the engine: sockets are left there.

    The process begins at once; the first order, or `wait_ready`, waits for it. In process (the default) scheduler, worker
    and front end share one process, and steps can be counted; with `multiprocess` they are where production has them.
    """

    def __init__(
        self,
        model: Path,
        *,
        log: Path,
        multiprocess: bool = False,
        environment: Mapping[str, str] | None = None,
        spawn: Spawn = spawn_python,
        **engine_arguments: Any,
    ) -> None:
        self.log = log
        self._futures: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._next = 0
        ours, theirs = socket.socketpair()
        self._socket = ours
        with log.open("ab") as sink, theirs:
            settled = environment_of(environment, multiprocess=multiprocess, sockets=log.parent)
            self.process = spawn(theirs.fileno(), sink.fileno(), settled)
        threading.Thread(target=self._listen, name="answers", daemon=True).start()
        self._ready = self._expect()
        self._send({**ENGINE_DEFAULTS, "model": str(model), **engine_arguments})

    @property
    def pid(self) -> int:
        """The process of the front end; in process, the only one."""
        return self.process.pid

    def wait_ready(self, *, timeout_s: float = START_S_MAX) -> Self:
        """Wait until the engine can be asked; raises EngineError when it could not be made."""
        self._await(self._ready, timeout_s, "its start")
        return self

    @property
    def child_pids(self) -> list[int]:
        """Processes that the engine started: its core and its workers, with `multiprocess`."""
        self.wait_ready()
        return list(self._ready.result()["pids"])

    def submit(
        self,
        prompt: Sequence[int] | str,
        *,
        cache_salt: str | None = None,
        lora: Mapping[str, Any] | None = None,
        **sampling: Any,
    ) -> Asked:
        """Put a request in the queue; `sampling` is vLLM's SamplingParams on top of SAMPLING_DEFAULTS."""
        arguments = {
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "sampling": {**SAMPLING_DEFAULTS, **sampling},
            "cache_salt": cache_salt,
            "lora": None if lora is None else dict(lora),
        }
        number, future = self._order("submit", arguments)
        return Asked(self, number, future)

    def generate(
        self, prompts: Sequence[Sequence[int] | str], *, timeout_s: float = ANSWER_S_MAX, **more: Any
    ) -> list[Answer]:
        """Answer all prompts, submitted together (of a held engine: released for it)."""
        asked = [self.submit(prompt, **more) for prompt in prompts]
        return [each.answer(timeout_s=timeout_s) for each in asked]

    def ask(self, prompt: Sequence[int] | str, **more: Any) -> Answer:
        """Answer one prompt."""
        return self.generate([prompt], **more)[0]

    def hold(self) -> None:
        """Make no more steps but those that `step` asks for."""
        self._do("hold")

    def step(self, count: int = 1) -> int:
        """Make so many steps while held; returns how many there was work for."""
        return int(self._do("step", count=count))

    def release(self) -> None:
        """Step again by itself."""
        self._do("release")

    def reset_prefix_cache(self, *, reset_connector: bool = False) -> bool:
        """Drop the engine's own prefix cache; False when it refused."""
        return bool(self._do("reset_prefix_cache", reset_connector=reset_connector))

    def collective_rpc(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        """Call a method of every worker; arguments and results are plain JSON values."""
        return list(self._do("collective_rpc", method=method, arguments=list(arguments), named=named))

    def inside(self, function: str, **named: Any) -> Any:
        """Call `module:function` with the LLMEngine in its process, between two steps; plain JSON values in and out."""
        return self._do("inside", function=function, named=named)

    def is_idle(self) -> bool:
        """Whether nothing is under way, connector's saves included (those only in process)."""
        return bool(self._do("idle"))

    def wait_idle(self, *, timeout_s: float = ANSWER_S_MAX) -> None:
        """Wait until `is_idle`; raises EngineError when that takes too long."""
        deadline = time.monotonic() + timeout_s
        while not self.is_idle():
            if time.monotonic() > deadline:
                raise EngineError(f"not idle after {timeout_s:.0f} s:\n{self.messages()}")
            time.sleep(0.005)

    def metrics(self) -> list[tuple[str, Mapping[str, str], float]]:
        """Every sample of the engine's own metrics and of ours among them: name, labels, value."""
        return [(name, labels, float(value)) for name, labels, value in self._do("metrics")]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 when there are none."""
        return metric_of(self.metrics(), name, labels)

    def messages(self) -> str:
        """The end of what the engine's processes wrote."""
        return self.log.read_text(errors="replace")[-TAIL_CHARACTERS:] if self.log.exists() else ""

    def kill(self) -> None:
        """SIGKILL for all processes of the engine, and wait for the end of the first."""
        self._end()

    def stop(self) -> None:
        """Ask it to end; insist after STOP_S_MAX, and with whatever it left."""
        if self.process.poll() is None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._send({"do": "stop"})
                self.process.wait(STOP_S_MAX)
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _end(self) -> None:
        # Its processes are one group, that of the first.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_S_MAX)
        self._socket.close()

    def _do(self, verb: str, **arguments: Any) -> Any:
        _, future = self._order(verb, arguments)
        return self._await(future, ANSWER_S_MAX, verb)

    def _order(self, verb: str, arguments: Mapping[str, Any]) -> tuple[int, Future[Any]]:
        self.wait_ready()
        future = self._expect()
        number = self._next - 1
        try:
            self._send({"number": number, "do": verb, "with": arguments})
        except OSError as error:
            raise EngineError(f"the engine is gone ({error}):\n{self.messages()}") from error
        return number, future

    def _expect(self) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            self._futures[self._next] = future
            self._next += 1
        return future

    def _send(self, message: Mapping[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _listen(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                message = json.loads(line)
                with self._lock:
                    future = self._futures.pop(message["number"], None)
                if future is not None and "failed" in message:
                    future.set_exception(EngineError(message["failed"]))
                elif future is not None:
                    future.set_result(message["done"])

    def _await(self, future: Future[Any], timeout_s: float, what: str) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return future.result(timeout=0.2)
            except FutureTimeoutError:
                if self.process.poll() is not None and not future.done():
                    ended = self.process.returncode
                    raise EngineError(
                        f"the engine ended with {ended} during {what}:\n{self.messages()}"
                    ) from None
                if time.monotonic() > deadline:
                    raise EngineError(f"{what} took over {timeout_s:.0f} s:\n{self.messages()}") from None
            except EngineError as error:
                raise EngineError(f"{what}: {error}\n{self.messages()}") from None


@dataclass(frozen=True)
class Asked:
    """A request under way."""

    engine: Engine
    number: int
    future: Future[Any]

    @property
    def is_done(self) -> bool:
        """Whether it is answered, or failed."""
        return self.future.done()

    def answer(self, *, timeout_s: float = ANSWER_S_MAX) -> Answer:
        """Wait for the end; raises EngineError when that takes too long or the engine ends first."""
        told = self.engine._await(self.future, timeout_s, f"request {self.number}")
        return Answer(
            **{
                **told,
                "tokens": tuple(told["tokens"]),
                "logprobs": tuple(dict(at) for at in told["logprobs"] or ()),
                "prompt_logprobs": tuple(at and dict(at) for at in told["prompt_logprobs"] or ()),
            }
        )

    def abort(self) -> None:
        """Have the engine forget it; it is never answered then."""
        self.engine._do("abort", request=self.number)


def metric_of(
    samples: Sequence[tuple[str, Mapping[str, str], float]], name: str, labels: Mapping[str, str]
) -> float:
    """The sum of the samples of a name, or of a counter without its `_total`, that have these labels."""
    return sum(
        value
        for found, of, value in samples
        if found in {name, f"{name}_total"} and all(of.get(key) == label for key, label in labels.items())
    )


@contextlib.contextmanager
def own_engine(model: Path, *, log: Path, **arguments: Any) -> Iterator[Engine]:
    """An engine that is ready, for the block."""
    with Engine(model, log=log, **arguments) as engine:
        yield engine.wait_ready()
