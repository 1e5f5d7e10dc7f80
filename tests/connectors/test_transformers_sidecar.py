"""The connector on a real sidecar: bytes through shared memory and gRPC, other processes, a sidecar that dies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_worker.client import Client, ClientSettings
from inference_worker.connectors.transformers import TransformersConnector
from kv_types.limits import NAMESPACES_PER_CLIENT_MAX
from kv_types.namespace import Weights
from kv_types.outcomes import MissReason
from tests.connectors.models import PAGE_TOKENS, shared_model, tiny_model, tokens
from tests.connectors.test_transformers_prefill import assert_right, cache_bytes
from tests.support.daemon import ROOT, run_command
from tests.support.polling import wait_until
from tests.support.sidecar_process import SidecarProcess

SETTINGS: dict[str, Any] = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False}


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SidecarProcess]:
    process = SidecarProcess(tmp_path_factory.mktemp("sidecar") / "run", arena_bytes=32 << 20)
    try:
        process.start()
        yield process
    finally:
        process.end()


class Workers:
    """Connectors with a client each, closed at the end."""

    def __init__(self, runtime: Path) -> None:
        self._runtime = runtime
        self.clients: list[Client] = []

    def add(self, model: Any, *, remote: bool = False, **settings: Any) -> TransformersConnector:
        client = Client.connect(
            self._runtime, settings=ClientSettings(shared_memory=not remote, deadline_s=10.0, prefault=False)
        )
        self.clients.append(client)
        settings.setdefault("page_tokens", PAGE_TOKENS)
        return TransformersConnector(
            model,
            client,
            l1_bytes=1 << 22,
            require_cacheable=True,
            look_up_deadline_s=10.0,
            store_deadline_s=10.0,
            **settings,
        )


@pytest.fixture
def workers(sidecar: SidecarProcess) -> Iterator[Workers]:
    made = Workers(sidecar.runtime)
    yield made
    for client in made.clients:
        client.close()


@pytest.mark.parametrize("kind", ["llama", "deepseek_v3"])
def test_pages_come_back_byte_for_byte_through_shared_memory(kind: str, workers: Workers) -> None:
    model = shared_model(kind)
    row = tokens(61, seed=11)
    first = workers.add(model).prefill(row[None])
    assert first.report.pages_stored == 7
    second = workers.add(model).prefill(row[None])
    assert (second.report.rows[0].pages_l2, second.report.reused) == (7, 56)
    assert cache_bytes(second, 0, 56) == cache_bytes(first, 0, 56)
    assert_right(model, second, [row])


def test_c14_decoded_pages_reach_another_worker(workers: Workers) -> None:
    model = shared_model("llama")
    prompt = tokens(100, seed=12)[None]
    first = workers.add(model, page_tokens=10).generate(
        prompt, max_new_tokens=50, min_new_tokens=50, do_sample=False
    )
    turn = torch.cat((first.sequences, tokens(9, seed=13)[None]), dim=1)
    second = workers.add(model, page_tokens=10).prefill(turn)
    assert second.report.rows[0].pages_l2 == 14
    assert second.report.reused == 140
    assert_right(model, second, [turn[0]])


def test_a_remote_worker_gets_and_puts_the_same_bytes(workers: Workers) -> None:
    model = shared_model("qwen3")
    row = tokens(50, seed=14)
    remote = workers.add(model, remote=True)
    first = remote.prefill(row[None])
    assert first.report.pages_stored == 6, first.report
    near = workers.add(model).prefill(row[None])
    assert near.report.rows[0].pages_l2 == 6
    far = remote.prefill(row[None])
    assert (far.report.rows[0].pages_l1, far.report.rows[0].pages_l2) == (0, 6), "no header, so no L1"
    assert cache_bytes(first, 0, 48) == cache_bytes(near, 0, 48) == cache_bytes(far, 0, 48)


def test_c29_every_page_asked_for_is_accounted_once(workers: Workers) -> None:
    model = shared_model("llama")
    workers.add(model).prefill(tokens(48, seed=15)[None])
    worker = workers.add(model)
    asked = 0
    for length in (16, 48, 48, 80, 7):
        worker.prefill(torch.cat((tokens(48, seed=15), tokens(40, seed=16)))[None, :length])
        asked += length // PAGE_TOKENS
    counts = worker_counts(workers.clients[-1])
    assert counts["requested_pages"] == asked
    missed = sum(count for name, count in counts.items() if name.startswith("missed_pages_"))
    assert counts["l1_pages"] + counts["l2_pages"] + counts["l3_pages"] + missed == asked
    # from L2: 2, then the other 4, then none; what the fourth prompt adds is nowhere yet
    assert (counts["l1_pages"], counts["l2_pages"], missed) == (2 + 6 + 6, 2 + 4, 4)


def worker_counts(client: Client) -> dict[str, int]:
    return {name: value for name, value in client.statistics().items() if isinstance(value, int)}


def test_a_prompt_larger_than_the_arena_keeps_its_head(tmp_path: Path) -> None:
    process = SidecarProcess(tmp_path / "run", arena_bytes=2 << 20)
    try:
        process.start()
        model = tiny_model("llama", num_hidden_layers=8, head_dim=64)
        workers = Workers(process.runtime)
        row = tokens(500, seed=17)
        report = workers.add(model).prefill(row[None]).report
        offered = 500 // PAGE_TOKENS  # twice what the arena holds
        assert 0 < report.pages_stored < offered
        assert report.refused == {"full": offered - report.pages_stored}
        again = workers.add(model).prefill(row[None]).report
        assert again.rows[0].pages_l2 == report.pages_stored
        for client in workers.clients:
            client.close()
    finally:
        process.end()


def test_c20_a_sidecar_killed_between_look_up_and_put_changes_no_token(tmp_path: Path) -> None:
    model = shared_model("llama")
    row = tokens(60, seed=18)[None]
    expected = model.generate(row, attention_mask=torch.ones_like(row), **SETTINGS)
    process = SidecarProcess(tmp_path / "run", arena_bytes=8 << 20)
    workers = Workers(process.runtime)
    worker = workers.add(model)
    try:
        before = worker.generate(row, **SETTINGS)
        assert before.report.rows[0].ended_by is MissReason.UNREACHABLE, "the worker started first"
        process.start()
        assert workers.clients[0].wait_ready(deadline_s=20.0)
        worker.generate(row, **SETTINGS)
        assert worker.generate(row, **SETTINGS).report.reused == 56

        handle = model.register_forward_pre_hook(lambda *_: process.kill())
        try:
            killed = worker.generate(row, **SETTINGS)
        finally:
            handle.remove()
        assert killed.report.pages_stored == 0
        after = worker.generate(row, **SETTINGS)
        assert after.report.reused == 0
        process.start()
        wait_until(
            lambda: worker.generate(row, **SETTINGS).report.reused == 56,
            timeout_s=20.0,
            what="reuse after the sidecar's return, without a restart of the worker",
        )
        for done in (before, killed, after, worker.generate(row, **SETTINGS)):
            assert torch.equal(done.sequences, expected)
    finally:
        for client in workers.clients:
            client.close()
        process.end()


def test_a_worker_outlives_more_versions_than_a_client_has_namespaces(workers: Workers) -> None:
    model = shared_model("llama")
    worker = workers.add(model, weights=Weights(version="0"))
    row = tokens(17, seed=20)[None]
    versions = NAMESPACES_PER_CLIENT_MAX + 3
    for version in range(versions):
        worker.set_weights_version(str(version))
        report = worker.prefill(row).report
        assert (report.off, report.pages_stored) == ("", 2), version
    worker.set_weights_version("0")
    assert worker.prefill(row).report.rows[0].pages_l2 == 2
    counts = worker_counts(workers.clients[0])
    missed = sum(count for name, count in counts.items() if name.startswith("missed_pages_"))
    assert (counts["requested_pages"], counts["l2_pages"], missed) == (2 * versions + 2, 2, 2 * versions)
    labels = workers.clients[0].namespace_counts()
    assert set(labels) == {"forgotten", worker.namespace.id.hex() if worker.namespace else ""}


def test_c15_workers_follow_the_weights_that_an_operator_announces(
    sidecar: SidecarProcess, workers: Workers
) -> None:
    """The whole way: the command, the log, the ring, the next call of each worker."""
    model = shared_model("qwen3")
    row = tokens(41, seed=21)[None]
    follows: dict[str, Any] = {"model_name": "policy", "follow_weights": True}
    first, second = (workers.add(model, weights=Weights(version="1"), **follows) for _ in range(2))
    assert first.prefill(row).report.pages_stored == 5
    assert second.prefill(row).report.rows[0].pages_l2 == 5

    done = run_command(
        "weights", "set-version", "2", "--model", "policy", "--from", "1", "--runtime-dir", str(sidecar.runtime),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    after = first.prefill(row).report
    assert (after.off, after.reused, after.pages_stored) == ("", 0, 5)
    shared = second.prefill(row).report
    assert (shared.rows[0].pages_l1, shared.rows[0].pages_l2) == (0, 5), "of the new version, and from L2"
    for worker in (first, second):
        assert worker.namespace is not None
        assert worker.namespace.weights.version == "2"

    late = workers.add(model, weights=Weights(version="1"), **follows)
    assert "version 2 of the weights is announced" in late.prefill(row).report.off
    late.set_weights_version("2")
    assert late.prefill(row).report.rows[0].pages_l2 == 5
    old = workers.add(model, weights=Weights(version="1"), model_name="policy").prefill(row).report
    assert (old.rows[0].pages_l2, old.rows[0].ended_by) == (0, MissReason.ABSENT), "the old version is gone"


_OTHER_PROCESS = """
import json, sys, torch
from inference_worker.client import Client
from inference_worker.connectors.transformers import TransformersConnector
from tests.connectors.models import PAGE_TOKENS, tiny_model, tokens
with Client.connect(sys.argv[1]) as client:
    worker = TransformersConnector(tiny_model("qwen2"), client, page_tokens=PAGE_TOKENS)
    done = worker.prefill(tokens(45, seed=19)[None])
    print(json.dumps([done.report.pages_stored, worker.namespace.id.hex()]))
"""


@pytest.mark.slow
def test_another_process_computes_and_this_one_reuses(sidecar: SidecarProcess, workers: Workers) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _OTHER_PROCESS, str(sidecar.runtime)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    stored, namespace = json.loads(done.stdout.splitlines()[-1])
    assert stored == 5
    model = tiny_model("qwen2")
    worker = workers.add(model)
    assert worker.namespace is not None
    assert worker.namespace.id.hex() == namespace
    here = worker.prefill(tokens(45, seed=19)[None])
    assert here.report.rows[0].pages_l2 == 5
    assert_right(model, here, [tokens(45, seed=19)])
