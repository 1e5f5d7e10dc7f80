"""Loads and saves that fail in a real engine (C07): the answers are those of a run without cache, and nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.polling import wait_until
from tests.support.sidecar_process import SidecarProcess
from tests.vllm.conftest import sidecar_with
from tests.vllm.engines import Answer, Engine, Makers, all_same, connector, same
from tests.vllm.models import tokens
from tests.vllm.sidecars import found, settled, status

PAGE = 64
MODES = ("sync", "layerwise", "async")
FAULTS = "tests.vllm.load_faults"
SHARED = tokens(1, 4 * PAGE + 9)
BATCH = [
    SHARED,
    [*SHARED[: 3 * PAGE], *tokens(2, 40)],
    SHARED,
    tokens(3, 2 * PAGE + 30),
    tokens(4, 150),
]
"""The first loads, some share its blocks or load the same, one loads by itself, one computes."""
STORED = (SHARED, BATCH[3])


@pytest.fixture(scope="module")
def plain(made: Makers, llama: Path) -> Engine:
    return made.engine(llama, enable_prefix_caching=False)


@pytest.fixture(scope="module")
def right(plain: Engine) -> list[Answer]:
    return plain.generate(BATCH, max_tokens=8, logprobs=4)


@pytest.fixture(scope="module", params=MODES)
def reader(request: pytest.FixtureRequest, made: Makers, llama: Path, sidecar: SidecarProcess) -> Engine:
    return made.engine(llama, **connector(sidecar.runtime, page_tokens=PAGE, load_mode=request.param))


def store(engine: Engine, right: list[Answer]) -> None:
    """Have the batch's pages in the sidecar, and nothing in the engine."""
    for prompt, wanted in zip(STORED, (right[0], right[3]), strict=True):
        same(engine.ask(prompt, max_tokens=8, logprobs=4), wanted)
    settled(engine)
    assert engine.reset_prefix_cache()


def ask_batch(engine: Engine) -> list[Answer]:
    """All in one step."""
    engine.hold()
    asked = [engine.submit(prompt, max_tokens=8, logprobs=4) for prompt in BATCH]
    engine.release()
    return [each.answer(timeout_s=40.0) for each in asked]


def check_after(engine: Engine, sidecar: SidecarProcess, right: list[Answer]) -> None:
    """Nothing is pinned, what the engine has of its own is right, and what others can have is right and hits."""
    settled(engine)
    assert status(sidecar)["leases"] == 0
    all_same(ask_batch(engine), right)
    settled(engine)
    assert engine.reset_prefix_cache(), "no block is held any more"
    again = ask_batch(engine)
    all_same(again, right)
    assert again[0].cached_tokens >= found(len(SHARED), PAGE)
    assert again[3].external_tokens == found(len(BATCH[3]), PAGE)
    settled(engine)
    assert engine.reset_prefix_cache()


def failed(engine: Engine) -> dict[str, float]:
    told: dict[str, float] = engine.inside(f"{FAULTS}:failed_jobs")
    return told


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("refused", "stale"),
        ("short", "lease_limit"),
        ("late", "deadline"),
        ("of_another_life", "life"),
        ("in_the_copy", "error"),
    ],
)
def test_c07_a_load_that_fails_is_computed(
    reader: Engine, sidecar: SidecarProcess, right: list[Answer], fault: str, reason: str
) -> None:
    store(reader, right)
    before, told = failed(reader), reader.metric("vllm:stratakv_failed_load_jobs", reason=reason)
    reader.inside(f"{FAULTS}:{fault}")
    all_same(ask_batch(reader), right)
    assert {name: n - before.get(name, 0) for name, n in failed(reader).items() if n != before.get(name)} == {
        reason: 1
    }
    check_after(reader, sidecar, right)
    assert reader.metric("vllm:stratakv_failed_load_jobs", reason=reason) == told + 1


@pytest.mark.parametrize("when", ["before the scheduler hears of it", "after it has heard"])
def test_c07_whoever_shares_blocks_whose_load_failed_does_not_go_by_them(
    reader: Engine, sidecar: SidecarProcess, right: list[Answer], when: str
) -> None:
    """The request that was to compute them anew is aborted first."""
    store(reader, right)
    is_at_once = when == "before the scheduler hears of it"
    reader.inside(f"{FAULTS}:{'aborted' if is_at_once else 'refused'}")
    reader.hold()
    asked = [reader.submit(prompt, max_tokens=8, logprobs=4) for prompt in BATCH]
    reader.step(1)
    asked[0].abort()
    reader.release()
    all_same([each.answer(timeout_s=40.0) for each in asked[1:]], right[1:])
    check_after(reader, sidecar, right)


def test_c07_a_failed_load_of_an_aborted_request_leaves_nothing_in_the_engines_cache(
    reader: Engine, sidecar: SidecarProcess, right: list[Answer]
) -> None:
    store(reader, right)
    reader.inside(f"{FAULTS}:aborted")
    reader.hold()
    asked = reader.submit(SHARED, max_tokens=8, logprobs=4)
    reader.step(1)
    asked.abort()
    reader.release()
    same(reader.ask(SHARED, max_tokens=8, logprobs=4), right[0])
    check_after(reader, sidecar, right)


@pytest.mark.parametrize("mode", MODES)
def test_c07_pages_that_are_evicted_between_look_up_and_load(
    made_here: Makers, llama: Path, right: list[Answer], mode: str
) -> None:
    """What the failed load left in the blocks is stored by nobody, those who share them neither."""
    with sidecar_with(arena_bytes=64 * 2**20) as small:
        engine = made_here.engine(llama, **connector(small.runtime, page_tokens=PAGE, load_mode=mode))
        other = made_here.engine(llama, **connector(small.runtime, page_tokens=PAGE))
        store(engine, right)
        engine.inside(f"{FAULTS}:evicted", endpoint=str(small.runtime), pages=300)
        all_same(ask_batch(engine), right)
        assert failed(engine) == {"absent": 1}
        settled(engine)
        assert status(small)["leases"] == 0
        answers = ask_batch(other)
        assert answers[0].external_tokens == found(len(SHARED), PAGE)
        all_same(answers, right)
        check_after(engine, small, right)


@pytest.mark.parametrize("mode", MODES)
def test_c07_pages_that_are_purged_between_look_up_and_load(
    made_here: Makers, llama: Path, right: list[Answer], sidecar: SidecarProcess, mode: str, tmp_path: Path
) -> None:
    prefix = tmp_path / "prefix.json"
    prefix.write_text(json.dumps(SHARED[: 2 * PAGE]))
    engine = made_here.engine(llama, **connector(sidecar.runtime, page_tokens=PAGE, load_mode=mode))
    store(engine, right)
    engine.inside(f"{FAULTS}:purged", endpoint=str(sidecar.runtime), prefix=str(prefix))
    all_same(ask_batch(engine), right)
    assert sum(failed(engine).values()) >= 1
    check_after(engine, sidecar, right)


@pytest.mark.parametrize("moment", ["before", "under"])
@pytest.mark.parametrize("mode", MODES)
def test_c07_the_sidecar_is_killed_under_a_load(
    made_here: Makers, llama: Path, right: list[Answer], mode: str, moment: str
) -> None:
    with sidecar_with() as mortal:
        engine = made_here.engine(llama, **connector(mortal.runtime, page_tokens=PAGE, load_mode=mode))
        store(engine, right)
        engine.inside(f"{FAULTS}:killed_{moment}", pid=mortal.pid)
        all_same(ask_batch(engine), right)
        settled(engine)
        assert engine.reset_prefix_cache()
        mortal.kill()
        mortal.start()
        wait_until(lambda: status(mortal)["clients_attached"] >= 3, what="the engine to attach again")
        store(engine, right)
        check_after(engine, mortal, right)


@pytest.mark.parametrize("fault", ["refused", "late"])
def test_c07_a_prompt_whose_load_failed_is_computed_in_chunks(
    made_here: Makers, llama: Path, right: list[Answer], sidecar: SidecarProcess, fault: str
) -> None:
    """So that those who share its blocks come to them before it has computed them anew."""
    engine = made_here.engine(
        llama, long_prefill_token_threshold=64, **connector(sidecar.runtime, page_tokens=PAGE)
    )
    store(engine, right)
    engine.inside(f"{FAULTS}:{fault}")
    all_same(ask_batch(engine), right)
    check_after(engine, sidecar, right)
