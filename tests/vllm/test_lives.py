"""Engines and sidecars that end and begin: pages outlive engines, engines outlive sidecars."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.polling import wait_until
from tests.vllm.conftest import sidecar_with
from tests.vllm.engines import Engine, Makers, connector, same
from tests.vllm.models import tokens
from tests.vllm.sidecars import attached, found, records, settled, status

PAGE = 64


@pytest.fixture(scope="module")
def plain(made: Makers, llama: Path) -> Engine:
    return made.engine(llama, enable_prefix_caching=False)


def test_pages_outlive_the_engine_and_in_redis_the_sidecar(
    plain: Engine, made_here: Makers, llama: Path
) -> None:
    prompt = tokens(1, 5 * PAGE + 9)
    right = plain.ask(prompt, max_tokens=8, logprobs=4)
    with sidecar_with(redis=True) as sidecar:
        switched_on = connector(sidecar.runtime, page_tokens=PAGE, look_up_deadline_s=5.0)
        first = made_here.engine(llama, **switched_on)
        same(first.ask(prompt, max_tokens=8, logprobs=4), right)
        settled(first)
        first.stop()

        second = made_here.engine(llama, **switched_on)
        answer = second.ask(prompt, max_tokens=8, logprobs=4)
        assert answer.external_tokens == 5 * PAGE
        same(answer, right)
        wait_until(lambda: records(sidecar, "stored") >= 5, what="write-behind")

        sidecar.terminate()
        sidecar.start()
        attached(sidecar, second)
        assert status(sidecar)["entries_visible"] == 0
        again = second.ask(
            prompt,
            max_tokens=8,
            logprobs=4,
            extra_args={"kv_transfer_params": {"stratakv": {"report": True}}},
        )
        assert again.external_tokens == 5 * PAGE
        assert again.kv_transfer_params is not None
        assert again.kv_transfer_params["stratakv"]["l3_tokens"] == 5 * PAGE
        same(again, right)


def test_c20_a_sidecar_that_comes_late_dies_in_mid_put_and_returns(
    plain: Engine, made_here: Makers, llama: Path
) -> None:
    with sidecar_with() as sidecar:
        sidecar.kill()
        engine = made_here.engine(llama, **connector(sidecar.runtime, page_tokens=PAGE))
        prompts = [tokens(20 + seed, 4 * PAGE + 1) for seed in range(6)]
        right = plain.generate(prompts, max_tokens=8, logprobs=4)
        same(engine.ask(prompts[0], max_tokens=8, logprobs=4), right[0])
        settled(engine)

        sidecar.start()
        attached(sidecar, engine)
        same(engine.ask(prompts[1], max_tokens=8, logprobs=4), right[1])
        settled(engine)
        wait_until(lambda: status(sidecar)["entries_visible"] == 4, what="its pages")

        engine.hold()
        asked = [engine.submit(prompt, max_tokens=8, logprobs=4) for prompt in prompts[2:]]
        engine.step(2)
        sidecar.signal(signal.SIGSTOP)
        engine.step(1)
        sidecar.kill()
        engine.release()
        for answer, wanted in zip([each.answer() for each in asked], right[2:], strict=True):
            same(answer, wanted)
        settled(engine)

        sidecar.start()
        attached(sidecar, engine)
        same(engine.ask(prompts[5], max_tokens=8, logprobs=4), right[5])
        settled(engine)
        assert engine.reset_prefix_cache()
        wait_until(lambda: status(sidecar)["entries_visible"] >= 4, what="its pages")
        hit = engine.ask(prompts[5], max_tokens=8, logprobs=4)
        assert hit.external_tokens == found(len(prompts[5]), PAGE)
        same(hit, right[5])
        assert status(sidecar)["leases"] == 0
