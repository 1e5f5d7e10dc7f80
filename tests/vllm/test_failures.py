"""Loads and saves that fail in a real engine (C07): the answers are those of a run without cache, and nothing is left behind."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from kv_types.limits import VLLM_SCHEDULER_DEADLINE_S_DEFAULT
from tests.support.polling import wait_until
from tests.support.redis_servers import RedisServer, redis_servers
from tests.support.sidecar_process import SidecarProcess, sidecar_process
from tests.vllm.conftest import sidecar_with
from tests.vllm.engines import Answer, Engine, Makers, all_same, connector, same
from tests.vllm.models import tokens
from tests.vllm.sidecars import attached, found, idle, records, settled, status

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
        attached(mortal, engine)
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


# --- saves ----------------------------------------------------------------------------------------------------------


def flushed(engine: Engine, name: str, **labels: str) -> float:
    """A metric, once the statistics of the last step are in."""
    engine.ask(tokens(90, 5))
    return engine.metric(name, **labels)


def test_c07_an_arena_that_is_full_refuses_and_serving_goes_on(made_here: Makers, llama: Path) -> None:
    """One chain is longer than the arena: none of its pages can make room for its own end."""
    small, long, short = 32, tokens(50, 4000), tokens(51, 100)
    with sidecar_with(arena_bytes=12 * 2**20) as tiny:
        engine = made_here.engine(llama, max_model_len=4096, **connector(tiny.runtime, page_tokens=small))
        right = engine.ask(long, max_tokens=4, logprobs=4)
        assert right.cached_tokens == 0
        settled(engine)
        assert flushed(engine, "vllm:stratakv_refused_pages", reason="full") > 0
        assert engine.reset_prefix_cache()
        answer = engine.ask(long, max_tokens=4, logprobs=4)
        assert 0 < answer.external_tokens < found(len(long), small)
        same(answer, right)
        engine.ask(short)
        settled(engine)
        assert engine.reset_prefix_cache()
        assert engine.ask(short).external_tokens == found(len(short), small), "later saves work"
        settled(engine)
        assert status(tiny)["leases"] == 0


def test_c07_a_sidecar_that_stands_still_refuses_saves_and_later_ones_work(
    plain: Engine, made_here: Makers, llama: Path
) -> None:
    prompts = [tokens(60 + seed, 5 * PAGE + 1) for seed in range(4)]
    right = plain.generate(prompts, max_tokens=4, logprobs=4)
    with sidecar_with(flags=("--freshness-lease", "2s")) as slow:
        engine = made_here.engine(
            llama,
            **connector(
                slow.runtime,
                page_tokens=PAGE,
                store_deadline_s=0.2,
                look_up_deadline_s=0,
                scheduler_deadline_s=VLLM_SCHEDULER_DEADLINE_S_DEFAULT,
            ),
        )
        settled(engine)
        slow.pause()
        all_same(engine.generate(prompts, max_tokens=4, logprobs=4), right)
        idle(engine)
        slow.signal(signal.SIGCONT)
        wait_until(lambda: engine.inside(f"{FAULTS}:header")["is_fresh"], what="a sidecar that vouches again")
        refused = flushed(engine, "vllm:stratakv_refused_pages")
        assert refused + flushed(engine, "vllm:stratakv_dropped_save_jobs") > 0
        assert engine.reset_prefix_cache(), "no block is held any more"
        for prompt, wanted in zip(prompts, right, strict=True):
            same(engine.ask(prompt, max_tokens=4, logprobs=4), wanted)
            settled(engine)
        assert engine.reset_prefix_cache()
        again = engine.generate(prompts, max_tokens=4, logprobs=4)
        assert [each.external_tokens for each in again] == [5 * PAGE] * 4
        all_same(again, right)
        settled(engine)
        wait_until(lambda: status(slow)["leases"] == 0, what="nothing pinned")


def test_c07_a_put_that_fails_in_an_unforeseen_way_is_made_again(
    reader: Engine, sidecar: SidecarProcess, plain: Engine
) -> None:
    prompt = tokens(reader.pid, 3 * PAGE + 1)  # each mode's own
    right = plain.ask(prompt, max_tokens=4, logprobs=4)
    before = reader.metric("vllm:stratakv_refused_pages", reason="error")
    reader.inside(f"{FAULTS}:in_the_put")
    same(reader.ask(prompt, max_tokens=4, logprobs=4), right)
    settled(reader)
    assert flushed(reader, "vllm:stratakv_refused_pages", reason="error") == before + 1
    assert reader.reset_prefix_cache()
    answer = reader.ask(prompt, max_tokens=4, logprobs=4)
    assert answer.external_tokens == 3 * PAGE
    same(answer, right)
    settled(reader)
    assert reader.reset_prefix_cache()


def pages_in(redis: RedisServer) -> list[bytes]:
    """Names of all records of pages: of what is in Redis they alone are long."""
    names: list[bytes] = redis.command("KEYS", "*")
    return [
        name for name in names if redis.client.type(name) == b"string" and redis.client.strlen(name) > 2**16
    ]


def test_c07_records_of_l3_that_are_damaged_are_misses(plain: Engine, made_here: Makers, llama: Path) -> None:
    """All pages of a prompt, with one bit turned over where they lie."""
    prompt = tokens(80, 4 * PAGE + 1)
    right = plain.ask(prompt, max_tokens=4, logprobs=4)
    with redis_servers() as servers:
        redis = servers.start()
        with sidecar_process(flags=("--l3-url", redis.url)) as node:
            engine = made_here.engine(
                llama,
                **connector(node.runtime, page_tokens=PAGE, look_up_deadline_s=5.0, save_generated=False),
            )
            same(engine.ask(prompt, max_tokens=4, logprobs=4), right)
            settled(engine)
            wait_until(lambda: records(node, "stored") == 4, what="write-behind")
            names = pages_in(redis)
            assert len(names) == 4
            for name in names:
                record = bytearray(redis.command("GET", name))
                record[-100] ^= 1
                redis.client.set(name, bytes(record), keepttl=True)
            node.terminate()
            node.start()
            attached(node, engine)
            assert engine.reset_prefix_cache()
            answer = engine.ask(prompt, max_tokens=4, logprobs=4)
            assert answer.cached_tokens == 0
            same(answer, right)
            assert records(node, "corrupt") >= 1
            settled(engine)
            wait_until(
                lambda: records(node, "stored") >= 1, what="a right record in place of the one that was met"
            )
            assert status(node)["leases"] == 0
