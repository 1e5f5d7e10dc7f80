"""Loading and computing weighed by a real sidecar before a real Redis of known bandwidth, local and over gRPC."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from inference_worker.client import Client, RegisteredNamespace
from kv_types.ids import KEY_BYTES
from kv_types.loading import LoadChoice, LoadDecision
from kv_types.outcomes import Hit, Miss, MissReason
from kv_wire.channel import CacheCalls, open_channel
from kv_wire.gen import cache_pb2
from tests.inference_worker.conftest import FLAGS, MakeClient
from tests.inference_worker.worlds import PAGE_TOKENS, chain, keys_of, namespace, pages_under, room_for
from tests.support.fault_relay import TO_CLIENT, FaultRelay
from tests.support.polling import wait_until
from tests.support.puts import put_fresh
from tests.support.redis_servers import redis_servers
from tests.support.sidecar_process import SidecarProcess, sidecar_process

SPACE = namespace("weighed", layers=64)
"""Pages of 64 KiB."""
PAGES = 32
PAGE_S = 0.01
"""What a page takes to compute: 100 a second, of 6.4 MB together."""
SLOW_BYTES_PER_S = 1e6
DEADLINE_S = 10.0
_seeds = itertools.count(1)


@dataclass
class Site:
    """A node that stores and one that looks up; the bandwidth from Redis to the latter can be set."""

    writer: SidecarProcess
    reader: SidecarProcess
    relay: FaultRelay
    stored: Callable[[], int]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with redis_servers() as servers:
        pages, log = servers.start(), servers.start()
        with FaultRelay(("127.0.0.1", pages.port)) as relay:
            flags = (*FLAGS, "--log-url", log.url, "--arena-size", "256MiB")
            with (
                sidecar_process(flags=(*flags, "--l3-url", pages.url)) as writer,
                sidecar_process(flags=(*flags, "--l3-url", relay.url)) as reader,
            ):
                yield Site(writer, reader, relay, lambda: int(pages.client.dbsize()))


class Worker:
    """A client that computes so fast as it says."""

    def __init__(self, connect: MakeClient, sidecar: SidecarProcess, **settings: object) -> None:
        self.client: Client = connect(sidecar.runtime, prefault=False, deadline_s=DEADLINE_S, **settings)
        assert self.client.wait_ready(deadline_s=DEADLINE_S)
        self.ns: RegisteredNamespace = self.client.register(SPACE)
        with self.client.begin(self.ns):
            pass

    def look(self, keys: bytes) -> tuple[int, MissReason, LoadDecision | None]:
        found = self.client.get(self.ns, keys, room_for(keys, self.ns.page_bytes))
        match found:
            case Hit():
                return found.pages, found.ended_by, found.load
            case Miss():
                return 0, found.reason, found.load
        raise AssertionError("nothing is pending")


def fresh(site: Site, writer: Worker) -> bytes:
    """A chain that L3 has and the reader's node lacks."""
    keys, before = chain(SPACE, PAGES, seed=next(_seeds)), site.stored()
    put_fresh(writer.client, writer.ns, keys, pages_under(keys, writer.ns.page_bytes))
    wait_until(lambda: site.stored() >= before + PAGES, what="records in L3")
    return keys


@pytest.mark.parametrize("kind", ["shared_memory", "grpc"])
def test_a_fast_l3_is_loaded_a_slow_one_is_not_and_one_that_recovers_is_again(
    site: Site, connect: MakeClient, kind: str
) -> None:
    writer = Worker(connect, site.writer)
    reader = Worker(
        connect, site.reader, shared_memory=kind == "shared_memory", prefill_tokens_per_s=PAGE_TOKENS / PAGE_S
    )
    site.relay.set(TO_CLIENT, bytes_per_s=None)

    def loads() -> bool:
        pages, _, load = reader.look(fresh(site, writer))
        assert load is not None
        return pages == PAGES and load.choice is LoadChoice.LOAD

    wait_until(loads, what="that all is loaded from a fast L3", timeout_s=30.0)
    site.relay.set(TO_CLIENT, bytes_per_s=SLOW_BYTES_PER_S)
    keys = fresh(site, writer)

    def computes() -> bool:
        pages, reason, load = reader.look(keys)
        assert reason is MissReason.COMPUTE_IS_FASTER or pages == PAGES
        assert load is None or load.load_s >= 0.0
        return load is not None and load.choice is LoadChoice.COMPUTE and pages < PAGES

    wait_until(computes, what="that nothing is loaded from a slow L3", timeout_s=30.0)
    looks = [reader.look(fresh(site, writer)) for _ in range(3)]  # one of them may be a trial
    pages, reason, load = next(
        one for one in looks if one[2] is not None and one[2].choice is LoadChoice.COMPUTE
    )
    assert load is not None
    assert (pages, reason) == (0, MissReason.COMPUTE_IS_FASTER)
    assert (load.pages, load.pages_chosen) == (PAGES, 0)
    assert load.load_s > load.compute_s == pytest.approx(PAGES * PAGE_S)
    site.relay.set(TO_CLIENT, bytes_per_s=None)
    keys = fresh(site, writer)
    wait_until(lambda: reader.look(keys)[0] == PAGES, what="that L3 is used again", timeout_s=60.0)
    told = {name: int(count) for name, count in reader.client.statistics().items() if "pages" in name}
    missed = sum(count for name, count in told.items() if name.startswith("missed_pages_"))
    assert told["requested_pages"] == told["l1_pages"] + told["l2_pages"] + told["l3_pages"] + missed


def test_whoever_says_no_speed_has_all_loaded_and_the_choice_is_told(site: Site, connect: MakeClient) -> None:
    writer, reader = Worker(connect, site.writer), Worker(connect, site.reader)
    site.relay.set(TO_CLIENT, bytes_per_s=None)
    keys = fresh(site, writer)
    pages, reason, load = reader.look(keys)
    assert (pages, reason) == (PAGES, MissReason.NONE)
    assert load is not None
    assert (load.choice, load.pages, load.pages_chosen) == (LoadChoice.UNPRICED, PAGES, PAGES)
    with open_channel(f"unix:{site.reader.runtime / 'grpc.sock'}") as channel:
        choices = CacheCalls(channel).status(cache_pb2.StatusRequest(), timeout=DEADLINE_S).l3.choices
    assert choices["chose_unpriced"] >= 1.0
    assert choices["bytes_per_second"] > 0.0
    assert choices["samples"] >= 1.0


def test_what_a_worker_measures_is_what_its_sidecar_weighs_by(site: Site, connect: MakeClient) -> None:
    writer, reader = Worker(connect, site.writer), Worker(connect, site.reader)
    site.relay.set(TO_CLIENT, bytes_per_s=None)
    for _ in range(8):
        reader.client.observe_prefill(1024, start=0, seconds=1024 / PAGE_TOKENS * PAGE_S)
    _, _, load = reader.look(fresh(site, writer))
    assert load is not None
    assert load.choice is not LoadChoice.UNPRICED
    assert load.compute_s == pytest.approx(PAGES * PAGE_S, rel=0.2)


def test_a_look_up_whose_caller_knows_why_pages_were_not_brought_is_counted_so(
    site: Site, connect: MakeClient
) -> None:
    reader = Worker(connect, site.reader)
    keys = chain(SPACE, 4, seed=next(_seeds))
    put_fresh(reader.client, reader.ns, keys[:KEY_BYTES], pages_under(keys[:KEY_BYTES], reader.ns.page_bytes))
    with reader.client.lease(reader.ns, keys, deadline_s=0.0, missed=MissReason.COMPUTE_IS_FASTER) as lease:
        assert (lease.pages, lease.reason) == (1, MissReason.COMPUTE_IS_FASTER)
    told = reader.client.statistics()
    assert (told["requested_pages"], told["l2_pages"], told["missed_pages_compute_is_faster"]) == (4, 1, 3)
    assert len(keys_of(keys)) == 4
