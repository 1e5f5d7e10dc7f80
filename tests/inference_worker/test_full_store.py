"""A store that is smaller than what is put: the heads of prompts stay usable, for clients of both transports."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_worker.client import Client, RegisteredNamespace
from kv_types.outcomes import Hit, MissReason, Refused, RefuseReason, Stored, Tier
from tests.inference_worker.conftest import FLAGS, MakeClient
from tests.inference_worker.worlds import chain, namespace
from tests.support.puts import put_fresh
from tests.support.sidecar_process import SidecarProcess, sidecar_process

TRACE = Path(__file__).parent.parent / "data" / "miniswe_c64.jsonl"
SHARE, RATIO_MIN = 0.01, 0.23
PAGE_BYTES = 64 * 1024
SLOTS = 64
LONG, CALLS = 700, 8
PAGE = bytes(PAGE_BYTES)


def sidecar_of(slots: int) -> contextlib.AbstractContextManager[SidecarProcess]:
    """A daemon with room for so many pages."""
    flags = (*FLAGS, "--segment-size", str(PAGE_BYTES))
    return sidecar_process(arena_bytes=slots * PAGE_BYTES, flags=flags)


def registered(client: Client, model: str) -> RegisteredNamespace:
    handle = client.register(namespace(model, layers=16, head_dim=256))
    assert handle.page_bytes == PAGE_BYTES
    return handle


@pytest.fixture(scope="module")
def full_sidecar() -> Iterator[SidecarProcess]:
    with sidecar_of(SLOTS) as started:
        yield started


@pytest.fixture(params=["shared_memory", "grpc"])
def client(request: pytest.FixtureRequest, full_sidecar: SidecarProcess, connect: MakeClient) -> Client:
    return connect(full_sidecar.runtime, shared_memory=request.param == "shared_memory", deadline_s=10.0)


def test_c12_a_prompt_that_is_put_in_8_calls_while_the_store_is_full_keeps_its_head(
    client: Client, request: pytest.FixtureRequest
) -> None:
    ns = registered(client, request.node.name)
    for seed in range(1, SLOTS + 1):
        put_fresh(client, ns, chain(ns.identified, 1, seed=seed), [PAGE])
    keys, each = chain(ns.identified, LONG), -(-LONG // CALLS)
    for begin in range(0, LONG, each):
        upto = min(begin + each, LONG)
        put_fresh(client, ns, keys[: upto * 32], [PAGE] * (upto - begin), start=begin)
        usable = client.match(ns, keys)
        assert isinstance(usable, Hit)
        assert usable.pages >= min(upto, SLOTS) - 1
    with client.lease(ns, keys) as lease:
        assert lease.pages == SLOTS, "all room is for what can be used"


def test_c32_700_pages_at_once_keep_their_head_and_the_rest_is_told_full(
    client: Client, request: pytest.FixtureRequest
) -> None:
    ns = registered(client, request.node.name)
    keys = chain(ns.identified, LONG)
    outcomes = put_fresh(client, ns, keys, [PAGE] * LONG)
    assert outcomes[:SLOTS] == [Stored()] * SLOTS
    assert outcomes[SLOTS] == Refused(RefuseReason.FULL)
    assert all(isinstance(one, Refused) for one in outcomes[SLOTS:])
    assert client.match(ns, keys) == Hit(SLOTS, Tier.L2, MissReason.ABSENT)


def test_c12_prefixes_stay_usable_on_a_trace_of_agents(connect: MakeClient) -> None:
    """At 1 % of what the trace asks for; a store that evicts roots first comes to .02."""
    requests = [json.loads(line)["hash_ids"] for line in TRACE.read_text().splitlines()]
    slots = int(len({block for blocks in requests for block in blocks}) * SHARE)
    with sidecar_of(slots) as sidecar:
        client = connect(sidecar.runtime, prefault=False, deadline_s=10.0)
        ns = registered(client, "agents")
        hits = 0
        for blocks in requests:
            keys = b"".join(hashlib.blake2b(b"%d" % block, digest_size=32).digest() for block in blocks)
            with client.begin(ns) as request, request.lease(keys) as lease:
                hits += lease.pages
                if lease.pages < len(blocks):
                    request.put(keys, [PAGE] * (len(blocks) - lease.pages), start=lease.pages)
        assert hits / sum(map(len, requests)) >= RATIO_MIN
