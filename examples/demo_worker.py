"""One inference worker of the demo: a process that answers a task through the cache, then without it.

Reads a task (JSON) from the file named by its first argument and prints one JSON object a line: {"stage": …}
while it works, {"result": …} at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria, StoppingCriteriaList

from inference_worker.client import Client, ClientSettings
from inference_worker.connectors.transformers import TransformersConnector
from inference_worker.connectors.transformers_report import ReuseReport


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker has to do. `prompts`: token ids a row. `compare`: run without the cache as well."""

    number: int
    name: str
    model: str
    endpoint: str
    prompts: list[list[int]]
    new_tokens: int
    page_tokens: int
    compare: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One way of answering: seconds to the first token, its logits [rows, vocabulary], the new ids a row."""

    first_token_s: float
    logits: torch.Tensor
    new_ids: list[list[int]]


class FirstToken(StoppingCriteria):  # type: ignore[misc]  # transformers is untyped here
    """Never stops anything; notes when the first token was there."""

    def __init__(self, rows: int) -> None:
        self.at: float | None = None
        self._go_on = torch.zeros(rows, dtype=torch.bool)

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Take the time once."""
        if self.at is None:
            self.at = time.perf_counter()
        return self._go_on


class Worker:
    """Model, client and connector of one process."""

    def __init__(self, task: Task) -> None:
        self.task = task
        tell("loading the model")
        torch.set_num_threads(min(2, os.cpu_count() or 1))
        self.tokenizer = AutoTokenizer.from_pretrained(task.model)
        self.model = AutoModelForCausalLM.from_pretrained(task.model, dtype=torch.float32).eval()
        tell("naming the model by its bytes")
        settings = ClientSettings(name=f"demo worker {task.number}")
        self.client = Client.connect(task.endpoint, settings=settings)
        self.connector = TransformersConnector(
            self.model, self.client, model_name="smollm2-135m-instruct", page_tokens=task.page_tokens
        )
        tell("warming up the processor")
        with torch.no_grad():
            self.model(input_ids=torch.arange(3, 35)[None])

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The task's rows, left-padded: ids and mask, int64 [rows, longest]."""
        longest = max(len(row) for row in self.task.prompts)
        pad = self.tokenizer.pad_token_id
        ids = [[pad] * (longest - len(row)) + row for row in self.task.prompts]
        mask = [[0] * (longest - len(row)) + [1] * len(row) for row in self.task.prompts]
        return torch.tensor(ids), torch.tensor(mask)

    def with_cache(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[Run, ReuseReport]:
        """Answer through the connector."""
        clock = FirstToken(len(ids))
        began = time.perf_counter()
        done = self.connector.generate(ids, mask, **self._settings(clock, self.task.new_tokens))
        return self._run(clock, began, done.output.logits[0], done.sequences, ids), done.report

    def without_cache(self, ids: torch.Tensor, mask: torch.Tensor) -> Run:
        """First token of the same prompt by the model alone."""
        clock = FirstToken(len(ids))
        began = time.perf_counter()
        with torch.no_grad():
            done = self.model.generate(ids, attention_mask=mask, **self._settings(clock, 1))
        return self._run(clock, began, done.logits[0], done.sequences, ids)

    def _settings(self, clock: FirstToken, new_tokens: int) -> dict[str, Any]:
        return {
            "max_new_tokens": new_tokens,
            "do_sample": False,
            "return_dict_in_generate": True,
            "output_logits": True,
            "stopping_criteria": StoppingCriteriaList([clock]),
        }

    def _run(self, clock: FirstToken, began: float, logits: Any, sequences: Any, ids: torch.Tensor) -> Run:
        assert clock.at is not None
        stop = self.tokenizer.eos_token_id
        rows = sequences[:, ids.shape[1] :].tolist()
        new_ids = [row[: row.index(stop) + 1] if stop in row else row for row in rows]
        return Run(clock.at - began, logits, new_ids)


def answer(worker: Worker) -> dict[str, Any]:
    """Do the task; returns what the demo shows, as plain JSON values."""
    ids, mask = worker.batch()
    tell("answering through the cache")
    warm, report = worker.with_cache(ids, mask)
    result: dict[str, Any] = {
        "number": worker.task.number,
        "name": worker.task.name,
        "warm_s": warm.first_token_s,
        "cold_s": None,
        "rows": [{**asdict(row), "ended_by": row.ended_by.name.lower()} for row in report.rows],
        "bytes_from_l1": report.bytes_from_l1,
        "bytes_from_l2": report.bytes_from_l2,
        "bytes_stored": report.bytes_stored,
        "pages_stored": report.pages_stored,
        "refused": dict(report.refused),
        "off": report.off,
        "look_up_s": report.look_up_s,
        "new_ids": warm.new_ids,
        "answers": [worker.tokenizer.decode(row, skip_special_tokens=True).strip() for row in warm.new_ids],
    }
    if worker.task.compare:
        tell("the same prompt without the cache, to compare")
        cold = worker.without_cache(ids, mask)
        result["cold_s"] = cold.first_token_s
        result["logits_difference"] = float((warm.logits - cold.logits).abs().max())
        result["logits_scale"] = float(cold.logits.abs().max())
        result["same_first_token"] = bool((warm.logits.argmax(-1) == cold.logits.argmax(-1)).all())
    return result


def tell(stage: str) -> None:
    """Say what is going on."""
    print(json.dumps({"stage": stage}), flush=True)


def main() -> int:
    """Run one task."""
    task = Task(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    worker = Worker(task)
    try:
        result = answer(worker)
    finally:
        worker.client.close()
    print(json.dumps({"result": result}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
