"""Connections to the log: deadlines, cancelled calls, and that no reply ever reaches another call than its own (C17)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from invalidation.log import LogUnavailableError, RenewalStatus
from invalidation.records import NO_DIGEST
from kv_types.clock import BoottimeClock
from tests.support.logs import Follower, Logs, append, within
from tests.support.redis_servers import RedisServer, RedisServers

pytestmark = pytest.mark.asyncio


class Gate:
    """A relay in front of a server that holds back what the server says until it is opened."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path = path
        self.connections = 0
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._held = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    def hold(self) -> None:
        """From now on the server's answers come as far as here."""
        self._open.clear()
        self._held.clear()

    async def answer_is_here(self) -> None:
        """Wait until an answer is held back."""
        async with asyncio.timeout(5.0):
            await self._held.wait()

    def release(self) -> None:
        self._open.set()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        back_reader, back_writer = await asyncio.open_unix_connection(self._target)
        for pump in (self._pump(reader, back_writer, held=False), self._pump(back_reader, writer, held=True)):
            task = asyncio.create_task(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, held: bool) -> None:
        with contextlib.suppress(OSError):
            try:
                while data := await reader.read(1 << 16):
                    if held and not self._open.is_set():
                        self._held.set()
                        await self._open.wait()
                    writer.write(data)
                    await writer.drain()
            finally:
                writer.close()


@pytest_asyncio.fixture
async def gate(shared_redis: RedisServer) -> AsyncIterator[Gate]:
    shared_redis.client.flushall()
    opened = Gate(shared_redis.directory / "gate", shared_redis.socket_path)
    await opened.start()
    try:
        yield opened
    finally:
        await opened.close()
        opened.path.unlink(missing_ok=True)


async def test_c17_a_call_that_timed_out_leaves_no_reply_behind(gate: Gate, logs: Logs) -> None:
    log = logs.open(gate.url)
    member = Follower(log)
    await member.boot()
    for round_ in range(1, 4):
        gate.hold()
        with pytest.raises(LogUnavailableError) as failed:
            await log.boot(deadline_ns=within(0.1))
        assert failed.value.reason == "timeout"
        gate.release()
        await append(log)
        renewal = await member.renew()
        assert renewal.number == member.number
        assert [record.revision for record in renewal.records] == [round_], "the answer to this very renewal"


async def test_c17_a_call_that_was_cancelled_leaves_no_reply_behind(gate: Gate, logs: Logs) -> None:
    log = logs.open(gate.url)
    member = Follower(log)
    await member.boot()
    before = gate.connections
    gate.hold()
    call = asyncio.create_task(log.boot(deadline_ns=within()))
    await gate.answer_is_here()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    gate.release()
    renewal = await member.renew()
    assert (renewal.status, renewal.number) == (RenewalStatus.OK, member.number)
    assert gate.connections == before + 1, "the connection of the cancelled call was given up"


async def test_c17_callers_at_once_get_their_own_answers(gate: Gate, logs: Logs) -> None:
    """Some cancelled, some out of time, all on one connection: whoever gets an answer gets his own."""
    log = logs.open(gate.url)
    members = [Follower(log) for _ in range(30)]
    for member in members:
        await member.boot()
    gate.hold()
    calls = [asyncio.create_task(member.renew(seconds=5.0)) for member in members[:20]]
    hurried = [asyncio.create_task(member.renew(seconds=0.05)) for member in members[20:]]
    await gate.answer_is_here()
    for call in calls[::3]:
        call.cancel()
    await asyncio.wait(hurried)
    gate.release()
    results = await asyncio.gather(*calls, *hurried, return_exceptions=True)
    fine = 0
    for member, result in zip(members, results, strict=True):
        if isinstance(result, BaseException):
            assert isinstance(result, asyncio.CancelledError | LogUnavailableError)
            continue
        fine += 1
        assert (result.status, result.number) == (RenewalStatus.OK, member.number)
    assert fine >= 10
    fence = await log.fence(deadline_ns=within())
    assert {member.id for member in members} >= set(fence.members)
    assert all(state.number == 1 for state in fence.members.values())


async def test_a_call_waits_no_longer_than_its_deadline_for_calls_before_it(gate: Gate, logs: Logs) -> None:
    log = logs.open(gate.url)
    await log.boot(deadline_ns=within())
    gate.hold()
    slow = asyncio.create_task(log.boot(deadline_ns=within()))
    await gate.answer_is_here()
    began_ns = BoottimeClock().now_ns()
    with pytest.raises(LogUnavailableError, match="earlier calls"):
        await log.boot(deadline_ns=within(0.1))
    assert BoottimeClock().now_ns() - began_ns < 2_000_000_000
    gate.release()
    assert (await slow).tip.revision == 0, "who waited in vain took nothing from who is served"


async def test_a_deadline_that_is_over_calls_nobody(gate: Gate, logs: Logs) -> None:
    log = logs.open(gate.url)
    with pytest.raises(LogUnavailableError, match="timeout"):
        await log.boot(deadline_ns=within(-1.0))
    assert gate.connections == 0


@pytest.mark.parametrize("how", ["frozen", "nobody", "no socket"])
async def test_a_server_that_is_not_there_is_said_so_in_time(
    servers: RedisServers, logs: Logs, how: str
) -> None:
    server = servers.start()
    log = logs.open(server)
    if how == "frozen":
        server.freeze()
    elif how == "nobody":
        server.kill()
    else:
        server.kill()
        server.socket_path.unlink(missing_ok=True)
    try:
        began_ns = BoottimeClock().now_ns()
        with pytest.raises(LogUnavailableError) as failed:
            await log.boot(deadline_ns=within(0.3))
        assert failed.value.reason == ("timeout" if how == "frozen" else "unreachable")
        assert BoottimeClock().now_ns() - began_ns < 2_000_000_000
    finally:
        if how == "frozen":
            server.thaw()


async def test_it_heals_by_itself(servers: RedisServers, logs: Logs) -> None:
    server = servers.start()
    log = logs.open(server)
    await append(log)
    server.kill()
    with pytest.raises(LogUnavailableError, match="unreachable"):
        await append(log)
    server.start()
    assert (await append(log)).stamp.revision == 1


async def test_a_closed_log_answers_nobody(shared_redis: RedisServer, logs: Logs) -> None:
    log = logs.open(shared_redis, fleet="closing")
    await append(log)
    waiting = asyncio.create_task(log.woken(1, digest=NO_DIGEST, deadline_ns=within()))
    await asyncio.sleep(0)
    await log.close()
    with pytest.raises(LogUnavailableError, match="closed"):
        await append(log)
    with pytest.raises(LogUnavailableError):
        await waiting
    await log.close()


async def test_closing_ends_a_call_that_hangs(gate: Gate, logs: Logs) -> None:
    log = logs.open(gate.url)
    await log.boot(deadline_ns=within())
    gate.hold()
    hanging = asyncio.create_task(log.boot(deadline_ns=within(60.0)))
    await gate.answer_is_here()
    await log.close()
    with pytest.raises(LogUnavailableError, match="closed"):
        async with asyncio.timeout(5.0):
            await hanging
    gate.release()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda server: f"redis://:wrong@127.0.0.1:{server.port}", "denied"),
        (lambda server: f"redis://nobody:x@127.0.0.1:{server.port}", "denied"),
        (lambda server: f"redis://127.0.0.1:{server.port}", "denied"),
        (lambda server: f"redis://:secret@127.0.0.1:{server.port}/99", "refused"),
    ],
)
async def test_who_may_not_is_told_so(
    servers: RedisServers, logs: Logs, make: Callable[[RedisServer], str], reason: str
) -> None:
    server = servers.start()
    server.config(requirepass="secret")
    log = logs.open(make(server))
    with pytest.raises(LogUnavailableError) as failed:
        await log.boot(deadline_ns=within())
    assert failed.value.reason == reason
    assert "secret" not in str(failed.value)
    assert ("user and password in the URL" in str(failed.value)) == (reason == "denied")
    assert "ACL SETUSER" not in str(failed.value)
    allowed = logs.open(f"redis://default:secret@127.0.0.1:{server.port}/3")
    assert (await allowed.boot(deadline_ns=within())).tip.revision == 0


async def test_rights_that_are_missing_are_told_with_the_remedy(servers: RedisServers, logs: Logs) -> None:
    server = servers.start()
    rights = ["+@read", "+@write", "+eval", "+evalsha", "+info", "+wait"]
    for user, less in (("able", []), ("unable", ["-info"])):
        server.client.acl_setuser(
            user, enabled=True, passwords=["+x"], keys=["stratakv:*"], commands=rights + less
        )
    with pytest.raises(LogUnavailableError, match="ACL SETUSER") as failed:
        await logs.open(f"redis://unable:x@127.0.0.1:{server.port}").boot(deadline_ns=within())
    assert failed.value.reason == "denied"
    log = logs.open(f"redis://able:x@127.0.0.1:{server.port}", replicas=0)
    member = Follower(log)
    await member.boot()
    await append(log)
    assert (await member.renew()).status is RenewalStatus.OK
    assert await log.woken(0, digest=NO_DIGEST, deadline_ns=within())
    assert (await log.check(deadline_ns=within())).errors == ()
