"""Two real sidecars that share pages through a real Redis, as each kind of client sees it: local, read-only, over gRPC."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cache_l3.key_space import KeySpace
from cache_l3.record_store import RecordName
from inference_worker.client import Client, RegisteredNamespace
from kv_types.ids import KEY_BYTES, PageKey
from kv_types.outcomes import STORED, Hit, Miss, MissReason, Tier
from tests.inference_worker.conftest import FLAGS, MakeClient
from tests.inference_worker.worlds import chain, keys_of, namespace, pages_under, room_for
from tests.support.polling import wait_until
from tests.support.puts import put_fresh
from tests.support.redis_servers import RedisServer, redis_servers
from tests.support.sidecar_process import SidecarProcess, sidecar_process
from tests.support.timing import timed

SPACE = namespace("shared")
DEADLINE_S = 10.0
HEALS_S = 20.0
LOCAL = ("shared_memory", "read_only")
KINDS: dict[str, dict[str, Any]] = {
    "shared_memory": {}, "read_only": {"writable": False}, "grpc": {"shared_memory": False},
}  # fmt: skip
_seeds = itertools.count(1000)


class Shared:
    """A node that computes, a node that looks up, and the Redis between them; the log lies on another one."""

    def __init__(
        self, pages: RedisServer, log: RedisServer, writer: SidecarProcess, reader: SidecarProcess
    ) -> None:
        self.pages, self.log = pages, log
        self.writer, self.reader = writer, reader

    def fresh(self, pages: int) -> bytes:
        """Keys of a chain that nobody had before."""
        return chain(SPACE, pages, seed=next(_seeds))

    def wait_stored(self, keys: bytes) -> None:
        names = [KeySpace("default").key(RecordName(SPACE.id, PageKey(key))) for key in keys_of(keys)]
        wait_until(lambda: self.pages.client.exists(*names) == len(names), what=f"{len(names)} records")


@contextmanager
def shared_nodes() -> Iterator[Shared]:
    with redis_servers() as servers:
        pages, log = servers.start(), servers.start()
        flags = (*FLAGS, "--l3-url", pages.url, "--log-url", log.url)
        with sidecar_process(flags=flags) as writer, sidecar_process(flags=flags) as reader:
            yield Shared(pages, log, writer, reader)


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    """Each test leaves everything running, and healed."""
    with shared_nodes() as made:
        yield made


class Worker:
    """A client on one node."""

    def __init__(self, connect: MakeClient, sidecar: SidecarProcess, kind: str) -> None:
        self.client: Client = connect(sidecar.runtime, prefault=False, deadline_s=DEADLINE_S, **KINDS[kind])
        assert self.client.wait_ready(deadline_s=DEADLINE_S)
        self.ns: RegisteredNamespace = self.client.register(SPACE)
        with self.client.begin(self.ns):
            pass

    def store(self, keys: bytes) -> None:
        outcomes = put_fresh(self.client, self.ns, keys, pages_under(keys, self.ns.page_bytes))
        assert outcomes == [STORED] * len(outcomes)

    def look(
        self, how: str, keys: bytes, *, start: int = 0, deadline_s: float | None = None
    ) -> tuple[int, int, MissReason]:
        """Pages of L2, pages of L3, and why no more; checks every byte."""
        wanted = keys[start * KEY_BYTES :]
        sources = pages_under(wanted, self.ns.page_bytes)
        if how == "lease":
            with self.client.lease(self.ns, keys, start=start, deadline_s=deadline_s) as lease:
                assert [bytes(page) for page in lease] == sources[: lease.pages]
                return lease.pages - lease.pages_l3, lease.pages_l3, lease.reason
        room = room_for(wanted, self.ns.page_bytes)
        match self.client.get(self.ns, keys, room, start=start, deadline_s=deadline_s):
            case Hit(pages=pages, ended_by=reason, pages_l3=pages_l3):
                assert [bytes(page) for page in room[:pages]] == sources[:pages]
                return pages - pages_l3, pages_l3, reason
            case Miss(reason=reason):
                return 0, 0, reason
        raise AssertionError("nothing is pending")

    def counted(self) -> dict[str, int]:
        told = self.client.statistics()
        names = ("look_ups", "requested_pages", "l1_pages", "l2_pages", "l3_pages")
        missed = [name for name in told if name.startswith("missed_pages_") and told[name]]
        return {name: int(told[name]) for name in (*names, *missed)}


@pytest.fixture
def worker(connect: MakeClient) -> Callable[[SidecarProcess, str], Worker]:
    return lambda sidecar, kind: Worker(connect, sidecar, kind)


MakeWorker = Callable[[SidecarProcess, str], Worker]
each_kind = pytest.mark.parametrize("kind", KINDS)
both = pytest.mark.parametrize("how", ["lease", "get"])


@each_kind
@both
def test_c29_ten_look_ups_of_all_tiers_are_accounted_for_exactly(
    shared: Shared, worker: MakeWorker, kind: str, how: str
) -> None:
    writer, reader = worker(shared.writer, "shared_memory"), worker(shared.reader, kind)
    one, two, three, four = (shared.fresh(8) for _ in range(4))
    for keys, pages in ((one, 8), (two, 8), (three, 4)):
        writer.store(keys[: pages * KEY_BYTES])
        shared.wait_stored(keys[: pages * KEY_BYTES])
    reader.store(one[: 5 * KEY_BYTES])
    before = reader.counted()
    absent, none = MissReason.ABSENT, MissReason.NONE
    assert reader.look(how, one[: 5 * KEY_BYTES]) == (5, 0, none)
    assert reader.look(how, one) == (5, 3, none)
    assert reader.look(how, one) == (8, 0, none)
    assert reader.look(how, two, start=3) == (0, 5, none)  # what L1 has L2 lacks
    assert reader.look(how, two, start=8) == (0, 0, none)
    assert reader.look(how, three) == (0, 4, absent)
    assert reader.look(how, three, start=2) == (2, 0, absent)
    assert reader.look(how, four) == (0, 0, absent)
    assert reader.look(how, four, start=1) == (0, 0, absent)
    assert reader.look(how, two) == (8, 0, none)
    after = reader.counted()
    gained = {name: after[name] - before.get(name, 0) for name in after}
    assert gained == {
        "look_ups": 10, "requested_pages": 5 + 9 * 8, "l1_pages": 3 + 8 + 2 + 1, "l2_pages": 5 + 5 + 8 + 2 + 8,
        "l3_pages": 3 + 5 + 4, "missed_pages_absent": 4 + 4 + 8 + 7,
    }  # fmt: skip


@each_kind
def test_a_prefetch_brings_pages_before_they_are_looked_up(
    shared: Shared, worker: MakeWorker, kind: str
) -> None:
    writer, reader = worker(shared.writer, "shared_memory"), worker(shared.reader, kind)
    keys = shared.fresh(12)
    writer.store(keys)
    shared.wait_stored(keys)
    prefetch = reader.client.prefetch(reader.ns, keys)
    assert prefetch is not None
    wait_until(lambda: reader.client.match(reader.ns, keys) == Hit(12, Tier.L2), what="the prefetch")
    wait_until(lambda: prefetch.is_over, what="its end")
    assert reader.look("get", keys) == (12, 0, MissReason.NONE)
    assert reader.client.prefetch(reader.ns, keys) is None or kind == "grpc"


@pytest.mark.parametrize("kind", LOCAL)
def test_a_group_of_shards_has_what_all_have(shared: Shared, worker: MakeWorker, kind: str) -> None:
    writer, reader = worker(shared.writer, "shared_memory"), worker(shared.reader, kind)
    chains = [shared.fresh(9) for _ in range(3)]  # of one namespace here: to the sidecar they are rows
    for keys, pages in zip(chains, (9, 6, 8), strict=True):
        writer.store(keys[: pages * KEY_BYTES])
        shared.wait_stored(keys[: pages * KEY_BYTES])
    shards = [(reader.ns, keys) for keys in chains]
    assert reader.client.match_shards(shards) == Hit(6, Tier.L3, MissReason.ABSENT, 6)
    found = [reader.client.match(reader.ns, keys) for keys in chains]
    assert [one.pages for one in found if isinstance(one, Hit)] == [6, 6, 6]


@pytest.mark.parametrize("deadline_s", [0.05, 0.5])
@each_kind
def test_c34_a_redis_that_stands_still_or_dies_keeps_nobody_waiting_and_all_heals(
    shared: Shared, worker: MakeWorker, kind: str, deadline_s: float
) -> None:
    writer, reader = worker(shared.writer, "shared_memory"), worker(shared.reader, kind)
    chains = [shared.fresh(4) for _ in range(12)]
    here = shared.fresh(4)
    for keys in chains:
        writer.store(keys)
        shared.wait_stored(keys)
    reader.store(here)
    bad = {MissReason.DEADLINE, MissReason.L3_UNAVAILABLE}
    shared.pages.freeze()
    for number, keys in enumerate(chains[:6]):
        how = ("lease", "get")[number % 2]
        l2, l3, reason = timed(lambda: reader.look(how, keys, deadline_s=deadline_s), deadline_s=deadline_s)  # noqa: B023
        assert (l2, l3) == (0, 0)
        assert reason in bad
        assert reader.look(how, here)[:2] == (4, 0), "what is here is served"
    shared.pages.thaw()
    wait_until(lambda: reader.look("get", chains[0])[2] is MissReason.NONE, timeout_s=HEALS_S, what="L3")
    shared.pages.kill()
    for keys in chains[6:9]:
        l2, l3, reason = timed(lambda: reader.look("get", keys, deadline_s=deadline_s), deadline_s=deadline_s)  # noqa: B023
        assert (l2, l3) == (0, 0)
        assert reason in bad
    shared.pages.start()

    def is_shared() -> bool:
        keys = shared.fresh(2)
        writer.store(keys)
        wait_until(
            lambda: reader.look("get", keys, deadline_s=0.5)[2] is MissReason.NONE, what="a pair of pages"
        )
        return True

    wait_until(is_shared, timeout_s=HEALS_S, what="pages to be shared again")
    counted = reader.counted()
    missed = sum(pages for name, pages in counted.items() if name.startswith("missed"))
    assert counted["requested_pages"] == counted["l2_pages"] + counted["l3_pages"] + missed


@each_kind
def test_c34_a_sidecar_that_stands_still_or_dies_keeps_nobody_waiting_and_works_again(
    shared: Shared, worker: MakeWorker, kind: str
) -> None:
    writer, reader = worker(shared.writer, "shared_memory"), worker(shared.reader, kind)
    keys, other = shared.fresh(6), shared.fresh(6)
    for one in (keys, other):
        writer.store(one)
        shared.wait_stored(one)
    assert reader.look("lease", keys) == (0, 6, MissReason.NONE)
    shared.reader.pause()
    for how in ("lease", "get"):
        for deadline_s in (0.05, 0.3):
            answer = timed(lambda: reader.look(how, other, deadline_s=deadline_s), deadline_s=deadline_s)  # noqa: B023
            assert answer[:2] == (0, 0)
            assert answer[2] in (MissReason.DEADLINE, MissReason.STALE)
    shared.reader.kill()
    for how in ("lease", "get"):
        l2, l3, reason = timed(lambda: reader.look(how, other, deadline_s=0.3), deadline_s=0.3)  # noqa: B023
        assert (l2, l3) == (0, 0)
        assert reason in (MissReason.UNREACHABLE, MissReason.STALE, MissReason.DEADLINE)
    shared.reader.start()
    wait_until(
        lambda: reader.look("get", other, deadline_s=1.0)[2] is MissReason.NONE,
        timeout_s=HEALS_S, what="the client to work again by itself",
    )  # fmt: skip
    counted = reader.counted()
    missed = sum(pages for name, pages in counted.items() if name.startswith("missed"))
    assert counted["requested_pages"] == counted["l2_pages"] + counted["l3_pages"] + missed
