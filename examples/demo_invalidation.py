"""The demo's last worker: asks, has what it reused invalidated by the command, and asks the same again, twice.

Reads a task (JSON) from the file named by its first argument, which also names the prompt's tokens to keep; prints what
demo_worker prints. It stays alive all the while, so that pages of its own L1 are invalidated under it as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from demo_worker import Run, Task, Worker, tell

from inference_worker.connectors.transformers_report import ReuseReport

COMMAND_S = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer to the prompt: how it was come by, and what the model made of it."""

    run: Run
    report: ReuseReport

    def plain(self) -> dict[str, Any]:
        """Say what the demo shows of it."""
        (row,) = self.report.rows
        return {
            "first_token_s": self.run.first_token_s,
            "reused": row.reused,
            "pages_l1": row.pages_l1,
            "pages_l2": row.pages_l2,
            "ended_by": row.ended_by.name.lower(),
            "pages_stored": self.report.pages_stored,
            "off": self.report.off,
        }


def command(*arguments: str) -> dict[str, Any]:
    """Run `stratakv` as an operator would: its exit code and what it printed as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "stratakv", *arguments, "--json"],
        capture_output=True, text=True, timeout=COMMAND_S, check=False,
    )  # fmt: skip
    told = json.loads(done.stdout) if done.stdout else {}
    return {"exit_code": done.returncode, "told": told, "said": done.stderr.strip()}


def act(worker: Worker, kept_tokens: int) -> dict[str, Any]:
    """Ask, invalidate behind the first `kept_tokens`, ask and ask again; plain JSON values."""
    ids, mask = worker.batch()

    def ask() -> Asked:
        return Asked(*worker.with_cache(ids, mask))

    tell("the prompt, from the cache")
    before = ask()
    task = worker.task
    prefix = Path(sys.argv[1]).with_name("prefix.json")
    prefix.write_text(json.dumps(task.prompts[0][: kept_tokens + task.page_tokens]), encoding="utf-8")
    selected = ["--prefix-tokens", str(prefix), "--endpoint", task.endpoint]
    tell("stratakv invalidate --dry-run")
    counted = command("invalidate", *selected, "--dry-run")
    tell("stratakv invalidate --wait")
    done = command("invalidate", *selected, "--wait", "--reason", "the text was corrected")
    tell("the same prompt, which has to be computed")
    after = ask()
    tell("the same prompt, from the cache again")
    again = ask()
    same = torch.equal(after.run.logits.argmax(-1), again.run.logits.argmax(-1))
    return {
        "tokens": len(task.prompts[0]),
        "kept_tokens": kept_tokens,
        "counted": counted,
        "command": done,
        "before": before.plain(),
        "after": after.plain(),
        "again": again.plain(),
        "same_first_token": same,
        "logits_difference": float((after.run.logits - again.run.logits).abs().max()),
    }


def main() -> int:
    """Run one task."""
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    kept_tokens = given.pop("kept_tokens")
    worker = Worker(Task(**given))
    try:
        result = act(worker, kept_tokens)
    finally:
        worker.client.close()
    print(json.dumps({"result": result}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
