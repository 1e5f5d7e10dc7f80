"""`stratakv bench vllm`: time to the first token of vLLM engines, cold, from our pages, and from the engine's own cache."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import local
from benchmarks.daemon import own_sidecar
from benchmarks.own_engine import Answer, Engine, connector_config, has_vllm
from benchmarks.showing import telling
from benchmarks.vllm_models import LLAMA_184M, random_model

ROUNDS = 5
HITS = 3
"""Of each kind, a round."""
PROMPT_TOKENS = 4096
ARENA_BYTES = 2 << 30
SEED = 11

BUDGETS: tuple[tuple[str, str, str, float], ...] = (
    (
        "connector_over_local",
        "hit of another process's pages ÷ hit in the engine's own cache",
        "at most",
        1.15,
    ),
    ("cold_over_hit", "cold ÷ hit of another process's pages", "at least", 10.0),
    ("save_hook_pct", "time in our hooks of the time of a cold run, in %", "at most", 3.0),
)
TOLD: tuple[tuple[str, str], ...] = (
    ("ttft_cold_ms", "cold: nothing is cached, everything is saved"),
    ("ttft_connector_hit_ms", "hit: pages that another process has saved"),
    ("ttft_local_hit_ms", "hit in the engine's own prefix cache, right afterwards"),
    ("connector_minus_local_ms", "what bringing the pages costs"),
    ("ttft_plain_cold_ms", "cold, of an engine without our connector"),
    ("cold_over_plain", "cold ÷ cold without our connector, in the same round"),
)

app = typer.Typer()


class VllmMissingError(RuntimeError):
    """There is no vLLM to measure."""


@dataclass
class Results:
    """Seconds by what was measured, one sample or more a round, and circumstances."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=local.machine)
    load_average: float = field(default_factory=lambda: os.getloadavg()[0])

    def note(self, key: str, value: float) -> None:
        """Add a sample."""
        self.samples.setdefault(key, []).append(value)

    @property
    def keys(self) -> dict[str, float]:
        """Medians by key."""
        mid = {key: statistics.median(samples) for key, samples in self.samples.items()}
        return {
            "ttft_cold_ms": mid["cold_s"] * 1e3,
            "ttft_connector_hit_ms": mid["connector_s"] * 1e3,
            "ttft_local_hit_ms": mid["local_s"] * 1e3,
            "ttft_plain_cold_ms": mid["plain_s"] * 1e3,
            "connector_over_local": self._ratio("connector_s", "local_s"),
            "connector_minus_local_ms": (mid["connector_s"] - mid["local_s"]) * 1e3,
            "cold_over_hit": mid["cold_s"] / mid["connector_s"],
            "cold_over_plain": self._ratio("cold_s", "plain_s"),
            "save_hook_pct": mid["hook_share"] * 100,
        }

    def _ratio(self, one: str, other: str) -> float:
        pairs = zip(self.samples[one], self.samples[other], strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


def prompt_of(number: int) -> list[int]:
    """A prompt that no other round has."""
    draw = np.random.default_rng([SEED, number])
    return [int(token) for token in draw.integers(3, LLAMA_184M["vocab_size"], PROMPT_TOKENS)]


@dataclass(frozen=True)
class Engines:
    """Two with our connector on one sidecar, which take turns in computing and reusing, and one without."""

    pair: tuple[Engine, Engine]
    plain: Engine

    def warm_up(self) -> None:
        """One prompt each, of which nothing is noted: first calls are slower."""
        for number, engine in enumerate((*self.pair, self.plain)):
            engine.ask(prompt_of(1_000_000 + number))

    def round(self, number: int, results: Results) -> None:
        """One prompt: cold in one engine and in the plain one, then hits in the other, of both kinds in turn."""
        first, second = self.pair if number % 2 == 0 else self.pair[::-1]
        prompt = prompt_of(number)
        before = hook_seconds(first)
        cold = first.ask(prompt)
        first.wait_idle()
        results.note("cold_s", _first_token(cold, cached=0))
        results.note("hook_share", (hook_seconds(first) - before) / cold.whole_s)
        results.note("plain_s", _first_token(self.plain.ask(prompt), cached=0))
        for _ in range(HITS):
            if not second.reset_prefix_cache():
                raise RuntimeError("an idle engine did not drop its prefix cache")
            hit = second.ask(prompt)
            second.wait_idle()
            own = second.ask(prompt)
            second.wait_idle()
            results.note(
                "connector_s", _first_token(hit, cached=own.cached_tokens, external=own.cached_tokens)
            )
            results.note("local_s", _first_token(own, cached=own.cached_tokens, external=0))


def _first_token(answer: Answer, *, cached: int, external: int | None = None) -> float:
    """Seconds to the first token; raises RuntimeError when it wasn't served from where it was to come from."""
    if answer.cached_tokens != cached or external not in (None, answer.external_tokens):
        raise RuntimeError(
            f"a measured prompt was to have {cached} cached tokens, {external} of them from the connector; it had "
            f"{answer.cached_tokens} and {answer.external_tokens}"
        )
    return answer.first_token_s


def hook_seconds(engine: Engine) -> float:
    """Seconds that the engine has spent inside our hooks, by our own statistics."""
    return engine.metric("vllm:stratakv_hook_seconds")


@contextlib.contextmanager
def engines() -> Iterator[Engines]:
    """Engines of the 184 M model on a sidecar of their own."""
    model = random_model("llama-184m", LLAMA_184M)
    with contextlib.ExitStack() as running:
        logs = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="stratakv-bench-")))
        runtime = running.enter_context(own_sidecar(arena_bytes=ARENA_BYTES, flags=("--no-l3",)))
        made = []
        with_us = connector_config(runtime, require_cacheable=True)
        for name, config in (("a", with_us), ("b", with_us), ("plain", None)):
            # One after the other: each start takes all of a small machine.
            engine = Engine(
                model, log=logs / name, max_model_len=PROMPT_TOKENS + 256, kv_transfer_config=config
            )
            made.append(running.enter_context(engine).wait_ready())
        yield Engines((made[0], made[1]), made[2])


def run(*, rounds: int, tell: Callable[[str], None]) -> Results:
    """Measure; some 25 s a round. Raises VllmMissingError where vLLM is not installed."""
    if not has_vllm():
        raise VllmMissingError(
            "vLLM is not installed for this Python; `make bench-vllm` runs this in an environment that has it, "
            "and elsewhere stratakv is installed into vLLM's own environment"
        )
    results = Results()
    tell("starting engines")
    with engines() as started:
        started.warm_up()
        for number in range(rounds):
            tell(f"round {number + 1} of {rounds}")
            started.round(number, results)
    return results


def is_met(key: str, value: float) -> bool:
    """Whether a figure is within its budget."""
    _, _, kind, budget = next(each for each in BUDGETS if each[0] == key)
    return value <= budget if kind == "at most" else value >= budget


def table(keys: Mapping[str, float]) -> Table:
    """The figures for a terminal."""
    drawn = Table(title=f"vLLM on a CPU, a model of 184 M parameters, prompts of {PROMPT_TOKENS} tokens")
    for heading in ("key", "what", "measured", "budget", ""):
        drawn.add_column(heading, justify="right" if heading in {"measured", "budget"} else "left")
    for key, what, kind, budget in BUDGETS:
        drawn.add_row(
            key, what, f"{keys[key]:.3g}", f"{kind} {budget:g}", "met" if is_met(key, keys[key]) else "MISSED"
        )
    for key, what in TOLD:
        drawn.add_row(key, what, f"{keys[key]:.4g}", "", "")
    return drawn


def lines(results: Results) -> list[str]:
    """The part of docs/benchmarks.md."""
    keys = results.keys
    told = [
        "## vLLM",
        "",
        "`stratakv bench vllm` (`make bench-vllm`): a random model of 16 layers and hidden size 1024 in fp32, prompts of",
        f"{PROMPT_TOKENS} tokens, seconds to the first token as the caller sees them. Two engines in processes of their own take",
        "turns on one sidecar: one computes a new prompt and saves it, the other gets it from our pages and right afterwards",
        "from its own prefix cache, which is then dropped for the next pair. A third has no connector. Of such a prompt 3968",
        "tokens can be reused (whole blocks of 128, and one token has to be computed), so either kind of hit computes 128.",
        "A ratio is the median over pairs of one round.",
        "",
        "| what | measured | budget | |",
        "|---|---:|---:|---|",
    ]
    for key, what, kind, budget in BUDGETS:
        judged = "met" if is_met(key, keys[key]) else "**missed**"
        told.append(f"| {what} (`{key}`) | {keys[key]:.2f} | {kind} {budget:g} | {judged} |")
    return [*told, *(f"| {what} (`{key}`) | {keys[key]:.2f} | | |" for key, what in TOLD)]


def measure(console: Console, *, rounds: int = ROUNDS) -> Results:
    """`run` with a line that says how far it is."""
    with telling(console, "vLLM") as tell:
        return run(rounds=rounds, tell=lambda what: tell(f"vLLM: {what}"))


@app.command()
def vllm(
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Also write all figures to this file.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, max=1000, help="Prompts that are computed and reused.")
    ] = ROUNDS,
) -> None:
    """Time to the first token of real vLLM engines: cold, from our pages, from the engine's own cache."""
    try:
        results = measure(Console(stderr=True), rounds=rounds)
    except VllmMissingError as error:
        typer.echo(f"stratakv: {error}", err=True)
        raise typer.Exit(2) from error
    keys = results.keys
    out = Console()
    out.print(table(keys))
    for key in sorted(keys):
        out.print(f"{key} {keys[key]:.4g}", highlight=False)
    out.print(f"load average when it began: {results.load_average:.1f}")
    if json_path is not None:
        payload = {
            **keys, "samples": results.samples, "machine": results.machine, "load_average": results.load_average,
        }  # fmt: skip
        json_path.write_text(json.dumps(payload, indent=2) + "\n")
        out.print(f"written: {json_path}")
