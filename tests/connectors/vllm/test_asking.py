"""A sidecar that hangs stops a scheduler once in a while, and not for each request of a tenant that is new to it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from inference_worker.client import Client, ClientSettings
from inference_worker.connectors.vllm.asking import Asker
from inference_worker.connectors.vllm.plan import Variant
from inference_worker.connectors.vllm.settings import ConnectorSettings
from inference_worker.connectors.vllm.variants import VariantNamespaces
from inference_worker.connectors.vllm.wiring import connect_scheduler
from kv_types.ids import KEY_BYTES
from kv_types.limits import VLLM_SCHEDULER_DEADLINE_S_DEFAULT, VLLM_SIDECAR_LEFT_ALONE_S
from kv_types.outcomes import Miss, MissReason
from tests.connectors.vllm.scheduling import PAGE_BYTES, base_of
from tests.support.sidecar_process import SidecarProcess, sidecar_process


@pytest.fixture
def own_sidecar() -> Iterator[SidecarProcess]:
    with sidecar_process() as started:
        yield started


def test_a_hung_sidecar_is_left_alone(own_sidecar: SidecarProcess) -> None:
    now = [0.0]
    settings = ClientSettings(deadline_s=VLLM_SCHEDULER_DEADLINE_S_DEFAULT)
    with Client.connect(own_sidecar.runtime, settings=settings) as client:
        assert client.wait_ready(deadline_s=10.0)
        asker = Asker(client, now_s=lambda: now[0])
        variants = VariantNamespaces(client, [base_of("hangs")], page_bytes=PAGE_BYTES, asker=asker)
        own_sidecar.pause()
        began = time.monotonic()
        for tenant in range(100):  # far more than have places
            shards = variants.get(Variant(tenant=str(tenant)))
            if shards is not None:
                asker.match(shards[0].registered, bytes(KEY_BYTES))
        assert time.monotonic() - began < 5 * VLLM_SCHEDULER_DEADLINE_S_DEFAULT
        assert asker.is_waiting
        now[0] += VLLM_SIDECAR_LEFT_ALONE_S
        assert not asker.is_waiting


def test_the_engine_waits_as_long_as_its_operator_said(own_sidecar: SidecarProcess) -> None:
    wanted_s = 3 * VLLM_SCHEDULER_DEADLINE_S_DEFAULT
    settings = ConnectorSettings(endpoint=str(own_sidecar.runtime), scheduler_deadline_s=wanted_s)
    side = connect_scheduler(settings, SimpleNamespace(scheduler_config=SimpleNamespace())).side
    try:
        client = side._client
        assert client.wait_ready(deadline_s=10.0)
        own_sidecar.pause()
        namespace = client.register(base_of("waits"), page_bytes=PAGE_BYTES)
        began = time.monotonic()
        assert Asker(client).match(namespace, bytes(KEY_BYTES)) == Miss(MissReason.DEADLINE)
        assert wanted_s <= time.monotonic() - began < 10 * wanted_s
    finally:
        side.shutdown()
