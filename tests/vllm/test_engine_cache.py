"""The engine's own prefix cache while nobody vouches for it (`engine_cache` keep and drop), and what fences are told.

Wrong KV is planted in what is to be purged: an answer that used it shows.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import clean_environment
from tests.support.polling import wait_until
from tests.support.redis_servers import redis_servers
from tests.support.sidecar_process import SidecarProcess, sidecar_process
from tests.vllm.engines import Answer, Engine, Makers, connector, same
from tests.vllm.models import tokens
from tests.vllm.sidecars import command, settled

PAGE = 64
LONG = 4 * PAGE + 1
LOCAL = LONG // 32 * 32
FAULTS = "tests.vllm.load_faults"
QUICK = ("--freshness-lease", "2s", "--pause-bound", "300ms")
PURGED, KEPT, PROBE, LATER = (tokens(seed, LONG) for seed in (1, 2, 3, 4))


@dataclass
class Pair:
    """Two sidecars of one fleet."""

    mine: SidecarProcess
    other: SidecarProcess

    def purge(self, prefix: Path, *words: str, status: int = 0, timeout: str = "6s") -> dict[str, Any]:
        """Purge a prompt through the other one; returns what it told."""
        told: dict[str, Any] = json.loads(
            command(
                self.other, "invalidate", "--prefix-tokens", str(prefix), "--wait", *words,
                "--timeout", timeout, "--yes", "--json", status=status,
            )
        )  # fmt: skip
        return told


@pytest.fixture
def pair() -> Iterator[Pair]:
    with redis_servers() as servers:
        flags = ("--l3-url", servers.start().url, *QUICK)
        with sidecar_process(flags=flags) as mine, sidecar_process(flags=flags) as other:
            yield Pair(mine, other)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    path = tmp_path / "prefix.json"
    path.write_text(json.dumps(PURGED[:PAGE]))
    return path


@pytest.fixture(scope="module")
def plain(made: Makers, llama: Path) -> Engine:
    return made.engine(llama, enable_prefix_caching=False)


@pytest.fixture(scope="module")
def right(plain: Engine) -> Answer:
    """To the prompt that is purged."""
    return ask(plain, PURGED)


def ask(engine: Engine, prompt: list[int]) -> Answer:
    (answer,) = engine.generate([prompt], max_tokens=4, logprobs=4, timeout_s=60.0)
    return answer


def engine_of(made: Makers, llama: Path, sidecar: SidecarProcess, cache: str) -> Engine:
    """One that has the planted prompt and others in its own cache, and that the fleet's log knows of."""
    engine = made.engine(
        llama,
        **connector(
            sidecar.runtime, page_tokens=PAGE, engine_cache=cache, store_deadline_s=0.5, look_up_deadline_s=0
        ),
    )
    wait_until(lambda: bool(header(engine)["is_fresh"]), what="a sidecar that vouches")
    engine.hold()
    asked = engine.submit(PURGED, max_tokens=3)
    engine.step(1)
    assert engine.inside("tests.vllm.faults:plant") > 0
    engine.release()
    asked.answer()
    for prompt in (KEPT, PROBE, LATER):
        ask(engine, prompt)
    settled(engine)
    return engine


def header(engine: Engine) -> dict[str, Any]:
    told: dict[str, Any] = engine.inside(f"{FAULTS}:header")
    return told


def wait_stale(engine: Engine) -> None:
    wait_until(lambda: not header(engine)["is_fresh"], what="the end of freshness")


def is_planted(answer: Answer, right: Answer) -> bool:
    try:
        same(answer, right)
    except AssertionError:
        return True
    return False


def wait_news(engine: Engine, before: dict[str, Any]) -> None:
    """Until the sidecar has published something to the engine."""
    wait_until(
        lambda: (
            header(engine)["is_fresh"]
            and (header(engine)["life"], header(engine)["view"]) != (before["life"], before["view"])
        ),
        what="news",
    )


def test_drop_serves_nothing_of_its_own_past_freshness_and_all_again_when_it_is_back(
    made_here: Makers, llama: Path, pair: Pair, prefix: Path, right: Answer
) -> None:
    engine = engine_of(made_here, llama, pair.mine, "drop")
    before = header(engine)
    pair.mine.pause()
    wait_stale(engine)
    assert ask(engine, PROBE).cached_tokens == 0
    same(ask(engine, PURGED), right)  # computed: the planted KV serves nobody
    told = pair.purge(prefix)
    assert told["exit_code"] == 0, "a member that drops is given up for gone"
    assert len(told["gone"]) == 1
    pair.mine.signal(signal.SIGCONT)
    wait_news(engine, before)
    answer = ask(engine, KEPT)
    assert answer.local_tokens == LOCAL, "nothing was evicted, so nothing is computed"
    answer = ask(engine, PURGED)
    assert answer.cached_tokens == 0
    same(answer, right)


def test_keep_serves_on_past_freshness_and_fences_name_it(
    made_here: Makers, llama: Path, pair: Pair, prefix: Path, right: Answer
) -> None:
    engine = engine_of(made_here, llama, pair.mine, "keep")
    before = header(engine)
    pair.mine.pause()
    wait_stale(engine)
    assert ask(engine, KEPT).local_tokens == LOCAL
    told = pair.purge(prefix, status=3)
    assert told["reason"] == "members"
    assert [member["note"]["pid"] for member in told["missing"]] == [pair.mine.pid]
    assert is_planted(ask(engine, PURGED), right), "nobody was promised anything yet"
    pair.mine.signal(signal.SIGCONT)
    wait_news(engine, before)
    answer = ask(engine, PURGED)
    assert answer.cached_tokens == 0
    same(answer, right)
    assert ask(engine, KEPT).local_tokens == LOCAL
    assert pair.purge(prefix)["exit_code"] == 0


def test_keep_outlives_a_sidecar_that_was_killed_until_the_next_life(
    made_here: Makers, llama: Path, pair: Pair, prefix: Path, right: Answer
) -> None:
    engine = engine_of(made_here, llama, pair.mine, "keep")
    before, dead = header(engine), pair.mine.pid
    pair.mine.kill()
    wait_until(lambda: bool(header(engine)["outlived"]), what="the loss")
    assert ask(engine, KEPT).local_tokens == LOCAL
    wait_stale(engine)
    assert ask(engine, KEPT).local_tokens == LOCAL
    told = pair.purge(prefix, status=3)
    assert [member["note"]["pid"] for member in told["missing"]] == [dead]
    pair.mine.start()
    wait_news(engine, before)
    answer = ask(engine, PURGED)
    assert answer.local_tokens == 0
    same(answer, right)
    assert ask(engine, LATER).local_tokens == 0, "another life: everything goes"


def test_nothing_is_served_once_the_sidecar_has_closed_in_order(
    made_here: Makers, llama: Path, pair: Pair, prefix: Path, right: Answer
) -> None:
    engine = engine_of(made_here, llama, pair.mine, "keep")
    pair.mine.terminate()
    assert ask(engine, KEPT).cached_tokens == 0
    assert pair.purge(prefix)["exit_code"] == 0, "its member has left"
    same(ask(engine, PURGED), right)


def test_an_engine_that_never_met_a_sidecar_serves_as_without_us(
    made_here: Makers, llama: Path, tmp_path: Path
) -> None:
    for cache in ("keep", "drop"):
        engine = made_here.engine(
            llama, **connector(tmp_path / "nobody", page_tokens=PAGE, engine_cache=cache)
        )
        ask(engine, KEPT)
        assert ask(engine, KEPT).local_tokens == LOCAL


def test_an_idle_engine_of_setting_keep_holds_no_fence_back(
    made_here: Makers, llama: Path, pair: Pair, prefix: Path, right: Answer
) -> None:
    engine = engine_of(made_here, llama, pair.mine, "keep")
    for kind in ("hidden", "drained"):
        told = pair.purge(prefix, kind, timeout="20s")
        assert (told["exit_code"], told["gone"]) == (0, [])
        assert told["waited_ms"] < 1900, "less than any lease"
    same(ask(engine, PURGED), right)
    assert ask(engine, KEPT).local_tokens == LOCAL


def test_drained_waits_for_a_running_request(
    made_here: Makers, llama: Path, pair: Pair, prefix: Path, right: Answer
) -> None:
    engine = engine_of(made_here, llama, pair.mine, "keep")
    engine.hold()
    running = engine.submit([*PURGED, *tokens(9, 9)], max_tokens=30)
    engine.step(2)
    before = header(engine)
    words = ["invalidate", "--prefix-tokens", str(prefix), "--wait=drained", "--yes", "--timeout", "60s"]
    with subprocess.Popen(
        [sys.executable, "-m", "stratakv", *words, "--runtime-dir", str(pair.other.runtime)],
        env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as fence:  # fmt: skip
        try:
            wait_news(engine, before)
            engine.step(3)
            held = command(pair.mine, "members", "--json")
            assert str(engine.pid) in held, "whoever holds it back is named"
            pair.purge(prefix)  # a fence for `hidden` passes by
            assert fence.poll() is None
            engine.release()
            running.answer()
            assert fence.wait(30) == 0
        finally:
            fence.kill()
    same(ask(engine, PURGED), right)


def test_an_idle_engine_that_lost_count_of_events_drops_all(
    made_here: Makers, llama: Path, pair: Pair, prefix: Path, right: Answer
) -> None:
    engine = engine_of(made_here, llama, pair.mine, "keep")
    assert ask(engine, KEPT).local_tokens == LOCAL
    pair.purge(prefix)
    engine.inside(f"{FAULTS}:overrun")
    same(ask(engine, PURGED), right)
    answer = ask(engine, LATER)
    assert answer.local_tokens == 0
    assert answer.external_tokens == LONG // PAGE * PAGE, "what the sidecar has is as valid as before"
