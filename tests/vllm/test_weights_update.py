"""Weights that change in a running engine: by our Python call, by an announcement, and unnamed, by the engine's own reset."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sidecar_process import SidecarProcess
from tests.vllm.engines import Answer, Engine, EngineError, Makers, connector, same
from tests.vllm.models import tokens
from tests.vllm.sidecars import command, settled

PAGE = 64
LONG = 4 * PAGE + 1
EXTENDED = {"worker_extension_cls": "tests.vllm.reloading.Reloading"}


@pytest.fixture(scope="module")
def plain(made: Makers, llama: Path) -> Engine:
    return made.engine(llama, enable_prefix_caching=False)


@pytest.fixture(scope="module")
def plain_other(made: Makers, llama: Path) -> Engine:
    """What is right once the weights were changed."""
    engine = made.engine(llama, enable_prefix_caching=False, **EXTENDED)
    assert engine.collective_rpc("change_weights") == [4]
    return engine


def ask(engine: Engine, prompt: list[int]) -> Answer:
    return engine.ask(prompt, max_tokens=6, logprobs=4)


def test_c15_a_python_call_names_new_weights(
    plain: Engine,
    plain_other: Engine,
    made_here: Makers,
    llama: Path,
    sidecar: SidecarProcess,
) -> None:
    settings = connector(sidecar.runtime, page_tokens=PAGE, weights_version="a1", model_name="by-call")
    updated, old = made_here.engine(llama, **EXTENDED, **settings), made_here.engine(llama, **settings)
    prompt = tokens(1, LONG)
    same(ask(updated, prompt), ask(plain, prompt))
    settled(updated)
    # a request that runs over the change: what it has computed by old weights is stored under no name
    updated.hold()
    spanning = updated.submit(tokens(2, 2 * PAGE + 3), max_tokens=3 * PAGE)
    updated.step(2)
    updated.collective_rpc("change_weights")
    updated.inside("tests.vllm.reloading:name_weights", version="a2")
    updated.release()
    answer = updated.ask(prompt, max_tokens=6, logprobs=4)
    assert (answer.local_tokens, answer.external_tokens) == (0, 0)
    same(answer, ask(plain_other, prompt))
    across = [*tokens(2, 2 * PAGE + 3), *spanning.answer().tokens, *tokens(3, 9)]
    settled(updated)
    found = ask(updated, across)
    assert (found.local_tokens, found.external_tokens) == (0, 0)
    same(found, ask(plain_other, across))
    # the replica that has the old weights goes on with its pages
    hit = ask(old, prompt)
    assert hit.external_tokens == 4 * PAGE
    same(hit, ask(plain, prompt))


def test_the_call_says_what_is_missing(made_here: Makers, llama: Path, sidecar: SidecarProcess) -> None:
    engine = made_here.engine(llama, **connector(sidecar.runtime))
    with pytest.raises(EngineError, match="worker-extension-cls"):
        engine.inside("tests.vllm.reloading:name_weights", version="a2")


def test_an_announcement_switches_engines_that_follow(
    plain_other: Engine, made_here: Makers, llama: Path, sidecar: SidecarProcess
) -> None:
    settings = connector(
        sidecar.runtime, page_tokens=PAGE, weights_version="b1", model_name="followed", follow_weights=True
    )
    engine = made_here.engine(llama, **EXTENDED, **settings)
    prompt = tokens(10, LONG)
    ask(engine, prompt)
    settled(engine)
    engine.collective_rpc("change_weights")  # weights first, then the announcement
    command(sidecar, "weights", "set-version", "b2", "--model", "followed")
    answer = ask(engine, prompt)
    assert (answer.local_tokens, answer.external_tokens) == (0, 0)
    same(answer, ask(plain_other, prompt))
    settled(engine)
    assert ask(engine, prompt).local_tokens == 4 * PAGE


def test_a_reset_voids_what_the_engine_may_find(
    plain: Engine,
    plain_other: Engine,
    made_here: Makers,
    llama: Path,
    sidecar: SidecarProcess,
) -> None:
    settings = connector(sidecar.runtime, page_tokens=PAGE, weights_version="c1", model_name="reset")
    engine, beside = made_here.engine(llama, **EXTENDED, **settings), made_here.engine(llama, **settings)
    prompt = tokens(20, LONG)
    ask(engine, prompt)
    settled(engine)
    engine.collective_rpc("change_weights")
    assert engine.reset_prefix_cache(reset_connector=True)
    answer = ask(engine, prompt)
    assert (answer.local_tokens, answer.external_tokens) == (0, 0)
    same(answer, ask(plain_other, prompt))
    settled(engine)
    assert engine.reset_prefix_cache()  # its own alone
    assert ask(engine, prompt).external_tokens == 4 * PAGE, "its own pages are found, under a name of its own"
    hit = ask(beside, prompt)
    assert hit.external_tokens == 4 * PAGE
    same(hit, ask(plain, prompt))


def test_what_a_reset_finds_unstored_is_not_stored_afterwards(
    plain: Engine, made_here: Makers, llama: Path, sidecar: SidecarProcess
) -> None:
    settings = connector(sidecar.runtime, page_tokens=PAGE, weights_version="s1", model_name="asleep")
    engine, other = made_here.engine(llama, **settings), made_here.engine(llama, **settings)
    prompt = tokens(21, LONG)
    engine.hold()
    asked = engine.submit(prompt, max_tokens=1)
    engine.step(1)  # it has ended, and what it has computed would be stored with the next step
    asked.answer()
    engine.inside("tests.vllm.faults:give_memory_away")
    engine.release()
    same(ask(engine, tokens(22, LONG)), ask(plain, tokens(22, LONG)))
    settled(engine)
    answer = ask(other, prompt)
    assert answer.external_tokens == 0
    same(answer, ask(plain, prompt))
