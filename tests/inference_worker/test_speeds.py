"""How fast a worker computes and copies: measured, told to its sidecar, and shown."""

from __future__ import annotations

import time

import pytest
from rich.console import Console

from inference_worker.client import Client
from inference_worker.copy_speed import CopySpeed
from kv_types.errors import InvalidArgumentError
from kv_wire.channel import open_channel
from kv_wire.gen import cache_pb2
from stratakv.l3_status import render_speeds, tells_speeds
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import all_stored, chain, namespace, pages_under, room_for
from tests.support.polling import wait_until
from tests.support.puts import put_fresh
from tests.support.remote_store import RemoteStore
from tests.support.sidecar_process import SidecarProcess


def told_by(sidecar: SidecarProcess, name: str) -> cache_pb2.ClientStatus:
    """What the sidecar shows of a client."""
    with open_channel(f"unix:{sidecar.runtime}/grpc.sock") as channel:
        (found,) = [one for one in RemoteStore(channel).status().clients if one.name == name]
    return found


def test_what_a_worker_measures_is_told_and_shown(
    shared_sidecar: SidecarProcess, connect: MakeClient
) -> None:
    client: Client = connect(shared_sidecar.runtime, name="measuring", deadline_s=10.0)
    assert client.wait_ready(deadline_s=10.0)
    assert not tells_speeds(told_by(shared_sidecar, "measuring"))
    space = namespace("speeds", layers=64)
    ns, keys = client.register(space), chain(space, 8)
    assert all_stored(put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes)))
    for pages in (1, 8):
        client.get(ns, keys[: 32 * pages], room_for(keys[: 32 * pages], ns.page_bytes))
    client.observe_prefill(512, start=0, seconds=0.064)
    wait_until(
        lambda: told_by(shared_sidecar, "measuring").prefill_tokens_per_s > 0, what="the speed to be told"
    )
    wait_until(lambda: told_by(shared_sidecar, "measuring").copy_bytes_per_s > 0, what="copies to be told")
    told = told_by(shared_sidecar, "measuring")
    assert told.prefill_tokens_per_s == pytest.approx(client.prefill_tokens_per_s)
    assert told.copy_latency_s >= 0.0
    console = Console(width=160, record=True)
    console.print(*render_speeds([told]))
    shown = console.export_text()
    assert "measuring" in shown
    assert f"{told.prefill_tokens_per_s:,.0f} tokens/s" in shown
    assert render_speeds([cache_pb2.ClientStatus(row=1)]) == []


def test_copies_are_measured_at_first_and_then_now_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 1
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now_ns)
    speed = CopySpeed()
    assert speed.told() == (0.0, 0.0)
    for size in (1 << 20, 8 << 20):
        for _ in range(8):
            began_ns = speed.begin_ns()
            now_ns += 100_000 + size // 10  # 0.1 ms, and 10 GB/s
            speed.ended(began_ns, size)
    latency_s, bytes_per_s = speed.told()
    assert latency_s == pytest.approx(1e-4, rel=0.05)
    assert bytes_per_s == pytest.approx(1e10, rel=0.05)
    begun = [speed.begin_ns() for _ in range(1280)]
    assert sum(one > 0 for one in begun) == 10
    speed.ended(0, 1 << 20)
    speed.ended(now_ns - 1, 0)
    speed.ended(now_ns, 1 << 20)
    assert speed.measured == 16, "nothing was copied, or no time has passed"


@pytest.mark.parametrize(("size", "seconds"), [(0, 1.0), (1, 0.0), (1, float("nan")), (1, -1.0)])
def test_what_is_no_copy_is_refused(
    connect: MakeClient, shared_sidecar: SidecarProcess, size: int, seconds: float
) -> None:
    client = connect(shared_sidecar.runtime)
    with pytest.raises(InvalidArgumentError):
        client.observe_copy(size, seconds)
