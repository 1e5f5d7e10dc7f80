"""What every call passes through, in one process: overload, idle streams, bugs, the event loop's freedom."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from cache_l2.store import ArenaConfig
from kv_types import limits
from kv_types.errors import DeadlineExceededError, OverloadedError, StrataError
from kv_types.ids import NamespaceId, PageKey, Stamp
from kv_wire.channel import SERVICE, channel_options, server_options
from kv_wire.conversions import stamp_to_wire
from kv_wire.gen import cache_pb2
from kv_wire.page_batches import put_messages
from kv_wire.status import from_rpc_error
from kv_wire.transfer import encode_put_request
from sidecar.serving.cache_service import CacheService
from sidecar.serving.calls import Calls
from sidecar.serving.served_store import ServedStore
from tests.support.arena_services import service_of
from tests.support.fake_served_store import FakeServedStore
from tests.support.followed_store import FollowedStore
from tests.support.grpc_servers import end_server
from tests.support.spaces import space_of

KEYS = [PageKey(bytes([n]) * 32) for n in range(1, 9)]
MIB = 2**20


class Service:
    """A service over the fake store on a real socket, with what its calls reported."""

    def __init__(self, store: ServedStore, *, calls_max: int, idle_s: float) -> None:
        self.store = store
        self.ended: list[tuple[str, str]] = []
        self.calls = Calls(lambda method, code, _: self.ended.append((method, code)), calls_max=calls_max)
        self.service = CacheService(store, self.calls, cache_pb2.StatusResponse, idle_s=idle_s)


@asynccontextmanager
async def serving(
    tmp_path: Path, store: ServedStore, *, calls_max: int = 8, idle_s: float = 20.0
) -> AsyncIterator[tuple[Service, grpc.aio.Channel]]:
    service = Service(store, calls_max=calls_max, idle_s=idle_s)
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((service.service.handler(),))
    address = f"unix:{tmp_path / 's'}"
    server.add_insecure_port(address)
    await server.start()
    async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
        yield service, channel
    await end_server(server)


def run(script: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await script

    asyncio.run(bounded())


async def failure(call: Awaitable[object]) -> StrataError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def until(predicate: Callable[[], bool]) -> None:
    while not predicate():
        await asyncio.sleep(0)


def test_calls_above_the_limit_are_refused_with_a_clear_text_and_others_go_on(tmp_path: Path) -> None:
    async def script() -> None:
        async with serving(tmp_path, FakeServedStore(), calls_max=3) as (service, channel):
            put = channel.stream_unary(f"/{SERVICE}/Put", None, None)
            stalled = [put(None, timeout=30) for _ in range(3)]
            for call in stalled:
                await call.write(encode_put_request(header=_header(1)))
            await until(lambda: service.calls.running == 3)
            status = channel.unary_unary(f"/{SERVICE}/Status", None, None)
            error = await failure(status(b"", timeout=10))
            assert type(error) is OverloadedError
            assert "no more than 3 may at once" in str(error)
            assert service.calls.refused == 1
            for call in stalled:
                assert call.cancel()
            await until(lambda: service.calls.running == 0)
            await status(b"", timeout=10)
            assert service.ended[-1] == ("Status", "OK")
            assert service.ended.count(("Put", "CANCELLED")) == 3

    run(script())


def _header(pages: int) -> cache_pb2.PutHeader:
    stamp = cache_pb2.Stamp(incarnation=b"i" * 16, revision=1)
    keys = b"".join(KEYS[:pages])
    return cache_pb2.PutHeader(namespace_id=b"n" * 32, chain=cache_pb2.Chain(keys=keys), stamp=stamp)


def test_a_writer_that_stalls_is_cut_off_even_without_a_deadline(tmp_path: Path) -> None:
    async def script() -> None:
        async with serving(tmp_path, FakeServedStore(), idle_s=0.2) as (service, channel):
            call = channel.stream_unary(f"/{SERVICE}/Put", None, None)(None)
            await call.write(encode_put_request(header=_header(1)))
            error = await failure(call)
            assert type(error) is DeadlineExceededError
            assert "the writer of this Put did not move" in str(error)
            assert service.calls.running == 0

    run(script())


def test_a_reader_that_stalls_is_cut_off_and_its_lease_released(tmp_path: Path) -> None:
    async def script() -> None:
        store = FakeServedStore(page_bytes=16 * MIB)
        store.pages = {key: bytes(16 * MIB) for key in KEYS[:4]}
        async with serving(tmp_path, store, idle_s=0.2) as (service, channel):
            request = cache_pb2.GetRequest(
                namespace_id=b"n" * 32, chain=cache_pb2.Chain(keys=b"".join(KEYS[:4]))
            )
            call = channel.unary_stream(f"/{SERVICE}/Get", None, None)(request.SerializeToString())
            assert await call.read()
            await until(lambda: bool(service.ended))
            assert service.ended == [("Get", "DEADLINE_EXCEEDED")]
            assert [lease.released for lease in store.leases] == [True]

    run(script())


def test_a_bug_ends_one_call_and_its_text_stays_inside(tmp_path: Path) -> None:
    class Buggy(FakeServedStore):
        def look_up_chain(self, namespace: object, keys: bytes) -> Any:
            raise ZeroDivisionError("secret detail")

    async def script() -> None:
        async with serving(tmp_path, Buggy()) as (service, channel):
            request = cache_pb2.LookUpRequest(namespace_id=b"n" * 32, rows=[cache_pb2.Chain(keys=KEYS[0])])
            call = channel.unary_unary(f"/{SERVICE}/LookUp", None, None)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(request.SerializeToString(), timeout=10)
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert "secret" not in (caught.value.details() or "")
            assert service.ended == [("LookUp", "INTERNAL")]
            await channel.unary_unary(f"/{SERVICE}/Status", None, None)(b"", timeout=10)

    run(script())


def test_draining_waits_for_running_calls_and_refuses_new_ones(tmp_path: Path) -> None:
    async def script() -> None:
        async with serving(tmp_path, FakeServedStore()) as (service, channel):
            call = channel.stream_unary(f"/{SERVICE}/Put", None, None)(None, timeout=30)
            await call.write(encode_put_request(header=_header(1)))
            await until(lambda: service.calls.running == 1)
            draining = asyncio.create_task(service.calls.drain(20))
            await asyncio.sleep(0)
            status = channel.unary_unary(f"/{SERVICE}/Status", None, None)
            error = await failure(status(b"", timeout=10))
            assert "shutting down" in str(error)
            page = memoryview(bytes(100))
            for message in put_messages(_header(1), [page], page_bytes=100):
                chunks = cache_pb2.PutRequest.FromString(message).chunks
                await call.write(cache_pb2.PutRequest(chunks=chunks).SerializeToString())
            await call.done_writing()
            assert cache_pb2.PutResponse.FromString(await call).pages[0].status == cache_pb2.PUT_STATUS_STORED
            assert await draining is True

    run(script())


def test_c39_no_step_of_the_event_loop_takes_20_ms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processor time of the longest step, so that a busy machine can't fail it and a slow step can't hide."""
    steps: list[float] = []
    longest: list[float] = []
    plain = asyncio.Handle._run

    def measured(self: asyncio.Handle) -> None:
        began = time.thread_time()
        plain(self)
        steps.append(time.thread_time() - began)

    async def script() -> None:
        config = ArenaConfig(arena_bytes=256 * MIB, segment_bytes=64 * MIB)
        with contextlib.closing(FollowedStore(config)) as arena:
            space = space_of(limits.PAGE_BYTES_MAX)
            arena.register(space.canonical, limits.PAGE_BYTES_MAX)
            async with serving(tmp_path, service_of(arena)):
                await asyncio.to_thread(_transfer, tmp_path, space.id, arena.stamp(), steps.clear)
                longest.append(max(steps))
                assert len(steps) > 100

    monkeypatch.setattr(asyncio.Handle, "_run", measured)
    run(script())
    assert longest[0] < 0.020, f"the longest step took {longest[0] * 1000:.1f} ms"


def _transfer(tmp_path: Path, namespace: NamespaceId, stamp: Stamp, warmed_up: Callable[[], None]) -> None:
    """64 MiB there and back by a client on a thread of its own, so that only the server's steps are measured."""
    page = os.urandom(limits.PAGE_BYTES_MAX)
    chain = cache_pb2.Chain(keys=KEYS[0])
    with grpc.insecure_channel(f"unix:{tmp_path / 's'}", options=channel_options()) as channel:
        channel.unary_unary(f"/{SERVICE}/Status", None, None)(b"", timeout=30)
        warmed_up()
        header = cache_pb2.PutHeader(namespace_id=namespace, chain=chain, stamp=stamp_to_wire(stamp))
        messages = put_messages(header, [memoryview(page)], page_bytes=len(page))
        answer = channel.stream_unary(f"/{SERVICE}/Put", None, None)(messages, timeout=60)
        assert cache_pb2.PutResponse.FromString(answer).pages[0].status == cache_pb2.PUT_STATUS_STORED
        request = cache_pb2.GetRequest(namespace_id=namespace, chain=chain).SerializeToString()
        got = b"".join(
            cache_pb2.GetResponse.FromString(message).chunks[0].data
            for message in channel.unary_stream(f"/{SERVICE}/Get", None, None)(request, timeout=60)
        )
        assert got == page
        rows = [cache_pb2.Chain(keys=KEYS[0] * 500)] * limits.LOOK_UP_ROWS_MAX
        look_up = cache_pb2.LookUpRequest(namespace_id=namespace, rows=rows).SerializeToString()
        assert len(look_up) > 0.9 * limits.GRPC_MESSAGE_BYTES_MAX
        channel.unary_unary(f"/{SERVICE}/LookUp", None, None)(look_up, timeout=30)


@pytest.mark.asyncio
async def test_a_call_that_ended_while_it_was_answered_is_no_failure_of_ours() -> None:
    ended: list[tuple[str, str]] = []
    calls = Calls(lambda method, code, _: ended.append((method, code)))

    nobody: Any = None

    async def write_in_vain(request: bytes, context: Any) -> bytes:
        raise grpc.aio.InternalError("the peer is gone")

    assert await calls.guard("Record", write_in_vain)(b"", nobody) is None
    assert ended == [("Record", "CANCELLED")]
    assert calls.running == 0
