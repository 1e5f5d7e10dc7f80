"""First light: four worker processes answer questions on one text, and only the first computes its KV. Then what is stale goes.

Runs everything it needs (model, sidecar, workers), shows what happened, and cleans up. `make demo` runs this.
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
import demo_show
import grpc
from demo_processes import REPOSITORY, Children, DemoError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console

HERE = Path(__file__).resolve().parent
ARENA = "512MiB"
PAGE_TOKENS = 16
NEW_TOKENS = 48
SIDECAR_START_S = 30.0
WORKER_S = 600.0

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
        self.runtime = scratch / "run"
        self.children = children
        self.sidecar: subprocess.Popen[str] | None = None

    def prepare_model(self) -> Path:
        """Have the model on disk in a form that loads in seconds."""
        folder, source = demo_model.cache_folder(), demo_model.gguf_file()
        if not demo_model.is_ready(folder, source):
            self.console.print(f"Preparing SmolLM2-135M once, in {_short(folder)}")
            self.children.listen(
                "model", [str(HERE / "demo_model.py")], title="SmolLM2-135M", deadline_s=WORKER_S
            )
        return folder

    def start_sidecar(self) -> None:
        """Start `stratakv serve` and wait until it says that it serves."""
        self.runtime.mkdir(mode=0o700)
        arguments = ["-m", "stratakv", "serve", "--runtime-dir", str(self.runtime), "--arena-size", ARENA]
        self.sidecar = self.children.start("sidecar", arguments, listen=False)
        began = time.monotonic()
        with self.console.status("sidecar: committing its memory …"):
            while not _serving(self.runtime / "grpc.sock"):
                if self.sidecar.poll() is not None:
                    raise DemoError(f"the sidecar ended at start:\n{self.children.tail('sidecar')}")
                if time.monotonic() - began > SIDECAR_START_S:
                    raise DemoError(
                        f"no sidecar after {SIDECAR_START_S:.0f} s:\n{self.children.tail('sidecar')}"
                    )
                time.sleep(0.05)
        took = time.monotonic() - began
        self.console.print(
            f"Sidecar pid {self.sidecar.pid} serves {ARENA} of shared memory after {took:.1f} s"
        )

    def run(self, job: Job, model: Path) -> dict[str, Any]:
        """Run one worker process to its end."""
        title = f"worker {job.number}, {job.name}"
        result = self._listen(job, model, script="demo_worker.py", title=title)
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
        self, job: Job, model: Path, *, script: str, title: str, more: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        task = {
            "number": job.number,
            "name": job.name,
            "model": str(model),
            "endpoint": str(self.runtime),
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

    def status(self) -> dict[str, Any]:
        """Ask the sidecar for its own counters, as `stratakv status --json` prints them."""
        command = [sys.executable, "-m", "stratakv", "status", "--json", "--endpoint", str(self.runtime)]
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
        children.stop(keep=demo.sidecar if kept else None)
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
    demo.start_sidecar()
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
    purged = demo.invalidate(Job(5, "invalidation", (OTHER_QUESTION,), jobs[1].prompts), model)

    console.print()
    demo_show.show_answers(console, results, [job.questions for job in jobs])
    console.print(demo_show.table(results))
    _show_counters(console, counters)
    demo_purge.show(console, purged)
    picture = output / "first_light.png"
    with console.status("drawing …"):
        demo_show.plot(results, picture)
    console.print(f"Plot: {_short(picture)}    ({time.monotonic() - began:.0f} s in all)")
    broken = demo_show.broken_promises(results) + demo_purge.broken_promises(purged)
    for text in broken:
        console.print(f"[red]broken promise: {text}[/red]", highlight=False)
    if not broken:
        worst = max(result["logits_difference"] for result in results[1:])
        console.print(
            f"[green]Logits with and without reuse agree: at most {worst:.1e} apart, "
            "the same first token everywhere.[/green]"
        )
    return 1 if broken else 0


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


def _serving(socket: Path) -> bool:
    if not socket.exists():
        return False
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1.0)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _tell_how_to_play(console: Console, demo: Demo) -> None:
    assert demo.sidecar is not None
    runtime = shlex.quote(str(demo.runtime))
    console.print("\nThe sidecar is still up. Talk to it:")
    console.print(f"  {sys.executable} -m stratakv status --endpoint {runtime}", soft_wrap=True)
    console.print(
        f"  Client.connect({str(demo.runtime)!r})    # in Python, from inference_worker.client",
        soft_wrap=True,
    )
    console.print("End it, and remove what it left to read:")
    console.print(f"  kill {demo.sidecar.pid}; rm -r {shlex.quote(str(demo.scratch))}", soft_wrap=True)


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _as_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the sidecar up, and say how to talk to it")
    parser.add_argument(
        "--output",
        type=Path,
        default=REPOSITORY / "demo-output",
        help="folder for the plot (default: %(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
