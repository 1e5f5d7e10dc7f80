"""First light: worker processes on two nodes answer questions on one text, and only the first computes its KV.

Then what is stale goes.
Runs everything it needs (model, Redis, sidecars, workers), shows what happened, and cleans up. `make demo` runs this.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import demo_model
import demo_purge
import demo_share
import demo_show
from demo_nodes import Node, SharedRedis
from demo_processes import REPOSITORY, Children, DemoError
from rich.console import Console

HERE = Path(__file__).resolve().parent
ARENA = "512MiB"
PAGE_TOKENS = 16
NEW_TOKENS = 48
WORKER_S = 600.0
STORED_S = 30.0

FIRST_QUESTION = "Summarize this story in one sentence."
OTHER_QUESTION = "Which label was on the empty jar?"
BATCH_QUESTIONS = (
    "List three things from the story.",
    "Why was Alice tired of sitting by her sister?",
    "What did Alice see on the sides of the well while she was falling down, and what did she take?",
)
NEXT_QUESTION = "And what did Alice do then?"
KEPT_PAGES = 1
"""Of the prompt that is invalidated: pages before the text, which stay."""


@dataclass(frozen=True, slots=True)
class Job:
    """One worker process: number, name, the question of each row, and token ids of each row."""

    number: int
    name: str
    questions: tuple[str, ...]
    prompts: list[list[int]]
    compare: bool = True


class Prompts:
    """Chat prompts on the text, as token ids."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(model)
        self._text = (HERE / "data" / "alice_chapter_1.txt").read_text(encoding="utf-8").strip()

    def ask(self, question: str) -> list[int]:
        """Ask a first question on the text."""
        message = {"role": "user", "content": f"{self._text}\n\n{question}"}
        shown = self._tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        return list(self._tokenizer(shown).input_ids)

    def go_on(self, ids: list[int], question: str) -> list[int]:
        """Ask the next question behind a prompt and its answer, whose ids stay as they were generated."""
        end = self._tokenizer.eos_token_id
        turn = f"\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        return [*ids, *([] if ids[-1] == end else [end]), *self._tokenizer(turn).input_ids]


class Demo:
    """The demo's parts in the order in which they run."""

    def __init__(self, console: Console, scratch: Path, children: Children) -> None:
        self.console = console
        self.scratch = scratch
        self.children = children
        self.shared: SharedRedis | None = None
        self.nodes: list[Node] = []

    @property
    def processes(self) -> list[subprocess.Popen[str]]:
        """What runs as long as the demo."""
        found = [node.sidecar for node in self.nodes if node.sidecar is not None]
        return found if self.shared is None else [*found, self.shared.process]

    def prepare_model(self) -> Path:
        """Have the model on disk in a form that loads in seconds."""
        folder, source = demo_model.cache_folder(), demo_model.gguf_file()
        if not demo_model.is_ready(folder, source):
            self.console.print(f"Preparing SmolLM2-135M once, in {_short(folder)}")
            self.children.listen(
                "model", [str(HERE / "demo_model.py")], title="SmolLM2-135M", deadline_s=WORKER_S
            )
        return folder

    def start_node(self) -> Node:
        """Start one more sidecar, on what all of them share."""
        if self.shared is None:
            self.shared = SharedRedis(self.children, self.scratch)
        name = f"node-{len(self.nodes) + 1}"
        node = Node(name, self.console, self.children, self.scratch, arena=ARENA, shared=self.shared)
        self.nodes.append(node)
        node.start()
        return node

    def run(self, job: Job, model: Path, *, on: int = 0) -> dict[str, Any]:
        """Run one worker process to its end, on one of the nodes."""
        title = f"worker {job.number}, {job.name}"
        result = self._listen(job, model, script="demo_worker.py", title=title, on=on)
        reused, tokens = demo_show.reused(result), demo_show.tokens(result)
        self.console.print(
            f"{title}: first token after {result['warm_s']:.2f} s, {reused:,} of {tokens:,} tokens reused"
        )
        return result

    def invalidate(self, job: Job, model: Path) -> dict[str, Any]:
        """Run the worker whose pages are invalidated under it."""
        title = f"worker {job.number}, {job.name}"
        kept = {"kept_tokens": KEPT_PAGES * PAGE_TOKENS}
        return self._listen(job, model, script="demo_invalidation.py", title=title, more=kept)

    def _listen(
        self,
        job: Job,
        model: Path,
        *,
        script: str,
        title: str,
        on: int = 0,
        more: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        task = {
            "number": job.number,
            "name": job.name,
            "model": str(model),
            "endpoint": str(self.nodes[on].runtime),
            "prompts": job.prompts,
            "new_tokens": NEW_TOKENS if more is None else 1,
            "page_tokens": PAGE_TOKENS,
            "compare": job.compare,
            **(more or {}),
        }
        file = self.scratch / f"task-{job.number}.json"
        file.write_text(json.dumps(task), encoding="utf-8")
        done = self.children.listen(
            f"worker-{job.number}", [str(HERE / script), str(file)], title=title, deadline_s=WORKER_S
        )
        result: dict[str, Any] = done["result"]
        return result

    def status(self, *, of: int = 0) -> dict[str, Any]:
        """Ask a node's sidecar for its own counters, as `stratakv status --json` prints them."""
        runtime = str(self.nodes[of].runtime)
        command = [sys.executable, "-m", "stratakv", "status", "--json", "--endpoint", runtime]
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=False
        )
        if done.returncode != 0:
            raise DemoError(f"stratakv status failed: {done.stderr.strip()}")
        counters: dict[str, Any] = json.loads(done.stdout)
        return counters


def main() -> int:
    """Run the demo; returns 0 when every promise held."""
    options = _options()
    console = Console() if sys.stdout.isatty() else Console(width=100)
    signal.signal(signal.SIGTERM, _as_interrupt)
    scratch = Path(tempfile.mkdtemp(prefix="stratakv-demo-"))
    children = Children(console, scratch)
    demo = Demo(console, scratch, children)
    kept = False
    try:
        code = _play(demo, options.output)
        kept = options.keep and code == 0
    except DemoError as error:
        console.print(f"[red]{error}[/red]", highlight=False)
        code = 1
    except KeyboardInterrupt:
        console.print("[yellow]interrupted[/yellow]")
        code = 130
    finally:
        children.stop(keep=demo.processes if kept else ())
        if not kept:
            shutil.rmtree(scratch, ignore_errors=True)
    if kept:
        _tell_how_to_play(console, demo)
    return code


def _play(demo: Demo, output: Path) -> int:
    console = demo.console
    began = time.monotonic()
    model = demo.prepare_model()
    with console.status("tokenizing the text …"):
        prompts = Prompts(model)
    demo.start_node()
    jobs = [
        Job(1, "first question", (FIRST_QUESTION,), [prompts.ask(FIRST_QUESTION)], compare=False),
        Job(2, "another question", (OTHER_QUESTION,), [prompts.ask(OTHER_QUESTION)]),
        Job(3, "padded batch", BATCH_QUESTIONS, [prompts.ask(question) for question in BATCH_QUESTIONS]),
    ]
    results = [demo.run(job, model) for job in jobs]
    said = jobs[0].prompts[0] + results[0]["new_ids"][0]
    jobs.append(Job(4, "next turn", (NEXT_QUESTION,), [prompts.go_on(said, NEXT_QUESTION)]))
    results.append(demo.run(jobs[-1], model))
    counters = demo.status()
    shared = _share(demo, Job(5, "another node", jobs[0].questions, jobs[0].prompts), model)
    purged = demo.invalidate(Job(6, "invalidation", (OTHER_QUESTION,), jobs[1].prompts), model)

    console.print()
    demo_show.show_answers(console, results, [job.questions for job in jobs])
    console.print(demo_show.table(results))
    _show_counters(console, counters)
    demo_share.show(console, shared)
    demo_purge.show(console, purged)
    picture = output / "first_light.png"
    with console.status("drawing …"):
        demo_show.plot([*results, shared.result], picture)
    console.print(f"Plot: {_short(picture)}    ({time.monotonic() - began:.0f} s in all)")
    broken = demo_show.broken_promises(results) + demo_share.broken_promises(shared)
    broken += demo_purge.broken_promises(purged)
    for text in broken:
        console.print(f"[red]broken promise: {text}[/red]", highlight=False)
    if not broken:
        worst = max(result["logits_difference"] for result in [*results[1:], shared.result])
        console.print(
            f"[green]Logits with and without reuse agree: at most {worst:.1e} apart, "
            "the same first token everywhere.[/green]"
        )
    return 1 if broken else 0


def _share(demo: Demo, job: Job, model: Path) -> demo_share.Shared:
    """Start a second node, and ask there what a worker of the first one was asked."""
    stored = demo_share.wait_stored(demo.status, deadline_s=STORED_S)
    demo.start_node()
    result = demo.run(job, model, on=1)
    return demo_share.Shared(stored=stored, result=result, there=demo.status(of=1))


def _show_counters(console: Console, counters: dict[str, Any]) -> None:
    arena, (namespace, *_) = counters["arena"], counters["namespaces"]
    shown = {
        "model": namespace["model"],
        "page_tokens": namespace["page_tokens"],
        "page_bytes": namespace["page_bytes"],
        "requested_pages": namespace["requested_pages"],
        "l1_pages": namespace["l1_pages"],
        "l2_pages": namespace["l2_pages"],
        "missed_pages": namespace["missed_pages"],
        "resident_pages": namespace["resident_pages"],
        "resident_bytes": namespace["resident_bytes"],
        "leases_held_now": arena["leases"],
        "workers_attached_so_far": counters["attach"]["attached"],
    }
    console.print("The sidecar's own counters, from [bold]stratakv status --json[/bold]:")
    console.print_json(json.dumps(shown), indent=None)


def _tell_how_to_play(console: Console, demo: Demo) -> None:
    console.print("\nThe sidecars are still up. Talk to them:")
    for node in demo.nodes:
        runtime = shlex.quote(str(node.runtime))
        console.print(f"  {sys.executable} -m stratakv status --endpoint {runtime}", soft_wrap=True)
    console.print(
        f"  Client.connect({str(demo.nodes[0].runtime)!r})    # in Python, from inference_worker.client",
        soft_wrap=True,
    )
    console.print("End them, and remove what they left to read:")
    pids = " ".join(str(process.pid) for process in demo.processes)
    console.print(f"  kill {pids}; rm -r {shlex.quote(str(demo.scratch))}", soft_wrap=True)


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _as_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--keep", action="store_true", help="leave the sidecars up, and say how to talk to them"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=REPOSITORY / "demo-output",
        help="folder for the plot (default: %(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
