"""The parts that face outwards, in one process: what still runs when their drain time is over has ended afterwards."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, closing
from pathlib import Path

import grpc
import pytest

from cache_l2.store import ArenaConfig, ArenaStore
from invalidation.listing import ListedJudge, Listings
from invalidation.log import InvalidationLog
from invalidation.validity import Validity
from kv_types.clock import BoottimeClock
from kv_types.page_keys import pack_keys
from kv_wire.channel import open_channel
from kv_wire.gen import cache_pb2
from sidecar.config import Settings
from sidecar.endpoint import RuntimeDirectory
from sidecar.log.choice import choose_log
from sidecar.services import Services
from tests.support.remote_store import RemoteStore
from tests.support.spaces import fresh_chain, page_of, space_of

MIB = 1 << 20
PAGES = 24
CLOCK = BoottimeClock()


@pytest.mark.asyncio
async def test_a_get_that_outlasts_the_drain_time_is_over_before_the_goodbye(tmp_path: Path) -> None:
    """Else the goodbye says `drained` while a page goes on to whoever reads it, which a record to come may select."""
    async with AsyncExitStack() as stack:
        services, store, log = await _started(tmp_path, stack)
        channel = stack.enter_context(open_channel(f"unix:{tmp_path}/grpc.sock"))
        running = await asyncio.to_thread(_begin_get, RemoteStore(channel))
        stack.callback(running.cancel)
        assert store.client_leases(store.own_row) == PAGES
        await services.drain(0.1)
        assert store.client_leases(store.own_row) == 0
        with pytest.raises(grpc.RpcError):
            await asyncio.to_thread(list, running)
        await services.following.shell.leave()
        state = await log.fence(deadline_ns=CLOCK.now_ns() + 10**9)
        assert state.members == {}, "it said that nothing is in use any more"


async def _started(folder: Path, stack: AsyncExitStack) -> tuple[Services, ArenaStore, InvalidationLog]:
    directory = RuntimeDirectory(folder)
    directory.acquire()
    stack.callback(directory.release)
    settings, validity = Settings(l3=False, runtime_dir=folder), Validity(skew_ms=1000)
    listings = Listings()
    config = ArenaConfig(arena_bytes=64 * MIB, segment_bytes=2 * MIB, prefault=False)
    store = stack.enter_context(
        closing(ArenaStore(config, clock=CLOCK, judge=ListedJudge(validity, listings)))
    )
    chosen = await choose_log(settings, folder, clock=CLOCK)
    stack.push_async_callback(chosen.close)
    services = Services(store, validity, listings, chosen, directory, settings, version="0", clock=CLOCK)
    stack.push_async_callback(services.close)
    tasks = await stack.enter_async_context(asyncio.TaskGroup())
    for task in services.following.start(tasks):
        stack.callback(task.cancel)
    assert await services.following.wait_confirmed(10)
    await services.start()
    return services, store, chosen.log


def _begin_get(remote: RemoteStore) -> grpc.CallIterator[bytes]:
    """A Get of which one message is read."""
    space, keys = space_of(MIB), fresh_chain(PAGES)
    namespace = remote.register(space)
    remote.put(namespace, keys, [page_of(key, MIB) for key in keys], stamp=remote.stamp())
    request = cache_pb2.GetRequest(namespace_id=namespace, chain=cache_pb2.Chain(keys=pack_keys(keys)))
    running = remote.calls.get_raw(request, timeout=60)
    next(iter(running))
    return running
