"""Engines with our connector for tests: how it is switched on, and a maker that ends what it made."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.own_engine import (
    Answer,
    Asked,
    Engine,
    EngineError,
    Spawn,
    connector_config,
    spawn_python,
)
from tests.vllm.servers import Completion, Server

__all__ = [
    "Answer", "Asked", "Completion", "Engine", "EngineError", "Makers", "Server", "connector", "makers", "same",
]  # fmt: skip

SMALL: dict[str, Any] = {"block_size": 32, "max_model_len": 2048, "num_gpu_blocks_override": 256}
"""For the tiny models: 8192 tokens of KV."""


def connector(endpoint: Path | str, **extra: Any) -> dict[str, Any]:
    """Engine arguments that switch our connector on; `extra` are its own settings."""
    return {"kv_transfer_config": connector_config(endpoint, **extra)}


class Makers:
    """Makes engines and servers, and ends all that it made."""

    def __init__(self, logs: Path, spawn: Spawn) -> None:
        self._logs = logs
        self._spawn = spawn
        self._made: list[Engine | Server] = []

    def engine(self, model: Path, **arguments: Any) -> Engine:
        """One more engine, which is starting; its first order waits for it."""
        made = Engine(model, log=self._log("engine"), spawn=self._spawn, **{**SMALL, **arguments})
        self._made.append(made)
        return made

    def server(self, model: Path, *flags: str, **arguments: Any) -> Server:
        """One more server, which is starting; a `kv_transfer_config` is given as in `connector`."""
        config = arguments.pop("kv_transfer_config", None)
        more = () if config is None else ("--kv-transfer-config", json.dumps(config))
        made = Server(model, *flags, *more, log=self._log("server"), **arguments)
        self._made.append(made)
        return made

    def end(self, *, since: int = 0) -> None:
        """End all that were made, or those since there were so many."""
        while len(self._made) > since:
            self._made.pop().stop()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._made)

    def _log(self, kind: str) -> Path:
        return self._logs / f"{kind}-{len(list(self._logs.iterdir()))}.log"


@contextmanager
def makers(spawn: Spawn = spawn_python) -> Iterator[Makers]:
    """A maker for the block, with a folder for logs; `spawn` starts its engines' processes."""
    with tempfile.TemporaryDirectory(prefix="skv-vllm-") as logs:
        made = Makers(Path(logs), spawn)
        try:
            yield made
        finally:
            made.end()


def same(mine: Answer, other: Answer, *, logprob_max: float = 1e-4) -> None:
    """Fail unless tokens are equal, and the logprobs of all tokens that both list differ by `logprob_max` at most."""
    assert mine.tokens == other.tokens
    assert len(mine.logprobs) == len(other.logprobs) == len(mine.tokens), (
        "ask for logprobs: tokens show too little"
    )
    for place, (one, two) in enumerate(zip(mine.logprobs, other.logprobs, strict=True)):
        both = one.keys() & two.keys()
        assert mine.tokens[place] in both
        worst = max(abs(one[token] - two[token]) for token in both)
        assert worst <= logprob_max, f"token {place}: logprobs {worst} apart"


def all_same(mine: Sequence[Answer], others: Sequence[Answer], *, logprob_max: float = 1e-4) -> None:
    """`same` for each pair."""
    assert len(mine) == len(others)
    for one, other in zip(mine, others, strict=True):
        same(one, other, logprob_max=logprob_max)
