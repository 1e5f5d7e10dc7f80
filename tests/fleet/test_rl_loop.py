"""C15 as reinforcement learning has it: weights are swapped again and again, announced, and no KV of the old ones is used."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from inference_worker.client import Client, ClientSettings
from inference_worker.connectors.transformers import TransformersConnector
from kv_types.namespace import Weights
from kv_wire.admin_calls import AdminCalls
from kv_wire.channel import open_channel
from kv_wire.gen import admin_pb2
from tests.connectors.models import PAGE_TOKENS, tiny_model, tokens
from tests.connectors.test_transformers_prefill import assert_right
from tests.fleet.fleet import Fleet, fleet_of
from tests.support.daemon import run_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MODEL = "policy"
PROMPT = tokens(61, seed=3)
PAGES = len(PROMPT) // PAGE_TOKENS
REUSED = PAGES * PAGE_TOKENS
STEPS = 3


class Rollouts:
    """One node's inference worker: a small random Llama that follows the announced version of its weights."""

    def __init__(self, runtime: Path) -> None:
        self.client = Client.connect(runtime, settings=ClientSettings(deadline_s=5.0, prefault=False))
        assert self.client.wait_ready(deadline_s=10.0)
        self.model = tiny_model("llama", seed=0)
        self.connector = TransformersConnector(
            self.model, self.client, weights=Weights(version="0"), model_name=MODEL, page_tokens=PAGE_TOKENS,
            l1_bytes=1 << 22, look_up_deadline_s=5.0, store_deadline_s=5.0, follow_weights=True,
            require_cacheable=True,
        )  # fmt: skip

    def swap(self, step: int) -> None:
        """Take the weights of a training step."""
        self.model.load_state_dict(tiny_model("llama", seed=step).state_dict())

    def roll_out(self) -> tuple[int, int]:
        """One prompt: tokens reused, and pages stored; what comes out is what these weights give without a cache."""
        done = self.connector.prefill(PROMPT[None])
        assert not done.report.off, done.report.off
        assert_right(self.model, done, [PROMPT])
        return done.report.reused, done.report.pages_stored

    def prepare(self) -> None:
        """Have the prompt's pages in both tiers."""
        self.roll_out()
        assert self.roll_out() == (REUSED, 0)


@pytest.fixture(scope="module")
def fleet_of_module() -> Iterator[Fleet]:
    """Two nodes; the workers are the tests' own."""
    with fleet_of(sidecars=2, workers=0) as fleet:
        yield fleet


@contextlib.contextmanager
def workers(fleet: Fleet) -> Iterator[list[Rollouts]]:
    with contextlib.ExitStack() as held:
        made = [Rollouts(sidecar.runtime) for sidecar in fleet.sidecars]
        for worker in made:
            held.callback(worker.client.close)
        yield made


def set_version(fleet: Fleet, version: str, *, via: int = 0) -> None:
    """What the process that swaps weights calls once it has."""
    done = run_command(
        "weights", "set-version", version, "--model", MODEL, "--json",
        "--runtime-dir", str(fleet.sidecars[via].runtime), timeout_s=60.0,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["confirmed"] is True


def test_c15_the_first_roll_out_after_each_weight_sync_reuses_nothing_anywhere(fleet: Fleet) -> None:
    with workers(fleet) as nodes:
        set_version(fleet, "0")
        for worker in nodes:
            worker.prepare()
        for step in range(1, STEPS + 1):
            for worker in nodes:
                worker.swap(step)
            set_version(fleet, str(step), via=step % 2)
            for worker in nodes:
                assert worker.roll_out() == (0, PAGES), f"step {step}: the very first one"
                assert worker.roll_out() == (REUSED, 0)


def test_c16_a_roll_out_that_spans_the_sync_stores_nothing(fleet: Fleet) -> None:
    with workers(fleet) as nodes, open_channel(f"unix:{fleet.sidecars[1].runtime / 'grpc.sock'}") as channel:
        spanning, other = nodes
        before = str(STEPS)
        for worker in nodes:
            worker.swap(STEPS)
            worker.connector.set_weights_version(before)
        request = admin_pb2.AnnounceWeightsRequest(
            model=MODEL, version="spanned", invalidate_version=before, wait="WAIT_HIDDEN"
        )

        def sync(*_: object) -> None:
            answer = AdminCalls(channel).announce_weights(request, timeout=10.0)
            assert answer.confirmed, answer.why

        fresh = tokens(40, seed=9)[None]
        handle = spanning.model.register_forward_pre_hook(sync)
        try:
            report = spanning.connector.prefill(fresh).report
        finally:
            handle.remove()
        assert report.pages_stored == 0
        assert "announced during this call" in report.off
        for worker in nodes:
            worker.swap(STEPS + 1)
        again = other.connector.prefill(fresh)
        assert again.report.reused == 0
        assert_right(other.model, again, [fresh[0]])


def test_a_stale_kv_would_be_seen(fleet: Fleet) -> None:
    """Without the announcement a worker reuses what the old weights gave, and that is not what the new ones give."""
    with workers(fleet) as (worker, _):
        worker.connector.set_weights_version("never announced")
        worker.prepare()
        worker.swap(STEPS + 7)
        with pytest.raises(AssertionError), torch.no_grad():
            assert_right(worker.model, worker.connector.prefill(PROMPT[None]), [PROMPT])
