"""Invalidations against running engines: after the fence nothing of what was purged comes out of any cache, and all else stays.

Wrong KV is planted in what is to be purged, in the engine's own cache and in the sidecar's: an answer that used any of it shows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.sidecar_process import SidecarProcess
from tests.vllm.engines import Answer, Engine, Makers, connector, same
from tests.vllm.models import tokens
from tests.vllm.sidecars import invalidate, settled

PAGE = 64
LONG = 4 * PAGE + 1


@pytest.fixture(scope="module")
def plain(made: Makers, llama: Path) -> Engine:
    return made.engine(llama, enable_prefix_caching=False)


@pytest.fixture(scope="module")
def first(made: Makers, llama: Path, sidecar: SidecarProcess) -> Engine:
    return made.engine(llama, **connector(sidecar.runtime, page_tokens=PAGE, weights_version="w1"))


@pytest.fixture(scope="module")
def second(made: Makers, llama: Path, sidecar: SidecarProcess) -> Engine:
    return made.engine(llama, **connector(sidecar.runtime, page_tokens=PAGE, weights_version="w1"))


def ask(engine: Engine, prompt: list[int], **more: Any) -> Answer:
    return engine.ask(prompt, max_tokens=6, logprobs=4, **more)


def plant(engine: Engine, prompt: list[int], **more: Any) -> None:
    """Have wrong KV for a prompt in an engine's own cache and in the sidecar's."""
    engine.hold()
    asked = engine.submit(prompt, max_tokens=3, **more)
    engine.step(1)
    assert engine.inside("tests.vllm.faults:plant") > 0
    engine.release()
    asked.answer()
    settled(engine)


def differs(mine: Answer, other: Answer) -> bool:
    try:
        same(mine, other)
    except AssertionError:
        return True
    return False


def prefix_of(folder: Path, prompt: list[int]) -> str:
    path = folder / "prefix.json"
    path.write_text(json.dumps(prompt))
    return str(path)


def test_planted_kv_shows_where_nothing_was_purged(plain: Engine, first: Engine, second: Engine) -> None:
    """Else the tests below could not fail."""
    prompt = tokens(1, LONG)
    right = ask(plain, prompt)
    plant(first, prompt)
    assert differs(ask(first, prompt), right)
    assert differs(ask(second, prompt), right)


def test_a_purged_prefix_comes_from_no_cache_and_all_else_stays(
    plain: Engine, first: Engine, second: Engine, sidecar: SidecarProcess, tmp_path: Path
) -> None:
    purged, kept = tokens(10, LONG), tokens(11, LONG)
    above = [*purged[: 2 * PAGE], *tokens(12, 2 * PAGE + 1)]
    beside = [*purged[:PAGE], *tokens(13, 2 * PAGE + 1)]
    wanted = [ask(plain, prompt) for prompt in (purged, above, beside, kept)]
    for engine in (first, second):
        ask(engine, beside)  # right KV for the first page, which stays
        ask(engine, kept)
        settled(engine)
        plant_above(engine, purged)
        ask(engine, above)
        settled(engine)
    invalidate(sidecar, "--prefix-tokens", prefix_of(tmp_path, purged[: 2 * PAGE]))
    for engine in (first, second):
        answers = [ask(engine, prompt) for prompt in (purged, above, beside, kept)]
        for answer, right_one in zip(answers, wanted, strict=True):
            same(answer, right_one)
        assert answers[3].local_tokens == LONG // 32 * 32, (
            "what was not purged is served by the engine itself"
        )
        assert answers[2].local_tokens == len(beside) // 32 * 32


def plant_above(engine: Engine, prompt: list[int]) -> None:
    """As `plant`, with the first page as it is in the engine's own cache: others use it."""
    engine.hold()
    asked = engine.submit(prompt, max_tokens=3)
    engine.step(1)
    assert engine.inside("tests.vllm.faults:plant", spare=PAGE // 32) > 0
    engine.release()
    asked.answer()
    settled(engine)


def test_a_tenant_is_purged_alone(
    plain: Engine, first: Engine, second: Engine, sidecar: SidecarProcess
) -> None:
    prompt = tokens(20, LONG)
    right = ask(plain, prompt)
    plant(first, prompt, cache_salt="purged")
    for engine in (first, second):
        ask(engine, prompt, cache_salt="kept")
        assert differs(ask(engine, prompt, cache_salt="purged"), right)
        settled(engine)
    invalidate(sidecar, "--tenant", "purged")
    for engine in (first, second):
        same(ask(engine, prompt, cache_salt="purged"), right)
        answer = ask(engine, prompt, cache_salt="kept")
        same(answer, right)
        assert answer.local_tokens == LONG // 32 * 32


def test_a_weights_version_is_purged(
    plain: Engine, first: Engine, second: Engine, sidecar: SidecarProcess
) -> None:
    prompt = tokens(30, LONG)
    right = ask(plain, prompt)
    plant(first, prompt)
    invalidate(sidecar, "--weights-version", "w1")
    for engine in (first, second):
        answer = ask(engine, prompt)
        same(answer, right)
        assert answer.local_tokens == 0


def test_c15_c16_requests_that_ran_on_it_leave_nothing_behind(
    plain: Engine, first: Engine, second: Engine, sidecar: SidecarProcess, tmp_path: Path
) -> None:
    prompt = tokens(40, 2 * PAGE + 5)
    first.hold()
    running = first.submit(prompt, max_tokens=4 * PAGE)
    first.step(1)
    assert first.inside("tests.vllm.faults:plant") > 0
    first.step(3)
    invalidate(sidecar, "--prefix-tokens", prefix_of(tmp_path, prompt[:PAGE]))
    first.release()
    answer = running.answer()  # finishes, on what it had
    settled(first)
    longer = [*prompt, *answer.tokens, *tokens(41, 9)]
    right = ask(plain, longer)
    for engine in (first, second):
        found = ask(engine, longer)
        assert (found.local_tokens, found.external_tokens) == (0, 0) or engine is second
        same(found, right)
        settled(engine)


def test_recompute_mends_running_requests(
    plain: Engine, made_here: Makers, llama: Path, sidecar: SidecarProcess, tmp_path: Path
) -> None:
    engine = made_here.engine(
        llama,
        **connector(sidecar.runtime, page_tokens=PAGE, weights_version="w1", on_invalidation="recompute"),
    )
    prompt = tokens(50, 2 * PAGE + 5)
    right = plain.ask(prompt, max_tokens=40, logprobs=4)
    engine.hold()
    running = engine.submit(prompt, max_tokens=40, logprobs=4)
    engine.step(1)
    first_token_is_right = engine.inside("tests.vllm.faults:plant") > 0
    assert first_token_is_right
    invalidate(sidecar, "--prefix-tokens", prefix_of(tmp_path, prompt[:PAGE]))
    engine.release()
    answer = running.answer()
    # what was sampled before the engine had recomputed stays; the step that orders it samples one token more
    assert answer.tokens[0] == right.tokens[0]
    settled(engine)
    longer = [*prompt, *answer.tokens, *tokens(51, 9)]
    again = ask(engine, longer)
    assert again.cached_tokens > 0, "it was stored again once it was right"
    same(again, ask(plain, longer))
