"""The Admin service over a scripted fleet on real sockets, in a thread of the test's process, on the real clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar, cast

import grpc

from invalidation.log import InvalidationLog
from invalidation.timing import Timing
from invalidation.validity import Validity
from kv_types.clock import BoottimeClock
from kv_types.namespace import Namespace
from kv_wire.addresses import GRPC_SOCKET
from kv_wire.channel import SERVICE, server_options
from kv_wire.gen import cache_pb2
from sidecar.admin.administration import Administration
from sidecar.admin.inspection import Inspection
from sidecar.admin.pins import PinAdministration
from sidecar.admin.service import AdminService
from sidecar.pin_file import PIN_FILE
from sidecar.recording import Recorder
from sidecar.serving.calls import Calls
from tests.support.fleet import ScriptedFleet, ScriptedMember
from tests.support.grpc_servers import end_server
from tests.support.node import FakeStore
from tests.support.scripted_loads import ScriptedLoads
from tests.support.turns import finish

MS_NS = 1_000_000
TIMING = Timing(lease_ns=600 * MS_NS, pause_ns=200 * MS_NS, drift=0.001)
"""Long against what a loaded machine may hold this process up."""
RENEW_S = 0.01
Answer = TypeVar("Answer")


class AdminSite:
    """Context manager; its folder is a runtime directory. Members renew every RENEW_S unless a test silences them."""

    def __init__(self, folder: Path, *spaces: Namespace, members: int = 2, calls_max: int = 8) -> None:
        self.runtime_dir = folder
        self.members = [ScriptedMember(lease_ns=TIMING.lease_ns) for _ in range(members)]
        self.store = FakeStore(*spaces)
        self.weights: dict[str, str] = {}
        self.tcp = ""
        self.is_fresh = True
        self._calls_max = calls_max
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="admin site")
        self._failure: BaseException | None = None

    @property
    def address(self) -> str:
        return f"unix:{self.runtime_dir / GRPC_SOCKET}"

    def call(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Run a coroutine on the site's loop and wait for what it returns."""

        async def awaited() -> Answer:
            return await work()

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result(30)

    def __enter__(self) -> AdminSite:
        self._thread.start()
        assert self._ready.wait(30), "the site did not start"
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(30)
        assert not self._thread.is_alive(), "the site did not stop"
        if self._failure is not None and error is None:
            raise self._failure

    async def _serve(self) -> None:
        try:
            await self._serve_until_stopped()
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve_until_stopped(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.fleet = await ScriptedFleet(*self.members).settled()
        self.clock = clock = BoottimeClock()
        log = cast("InvalidationLog", self.fleet.log)
        self.validity = Validity(skew_ms=1000)
        finish(self.validity.restarting(await self.fleet.local.boot(deadline_ns=0)))
        self.admin = Administration(self.fleet, log, self.store, timing=TIMING, clock=clock)
        inspection = Inspection(
            self.store, self.validity, clock=clock, freshness_ns=lambda: self.is_fresh and 1 << 62
        )
        self.loads = ScriptedLoads()
        self.loads.is_available = False
        self.pins = PinAdministration(self.store, self.loads, clock=clock, file=self.runtime_dir / PIN_FILE)
        self.calls = Calls(lambda method, code, seconds: None, calls_max=self._calls_max)
        self.recorder = Recorder(lambda on: None, clock=clock)
        self.service = AdminService(
            self.admin, inspection, self.calls, self.pins, fleet="test", recorder=self.recorder
        )
        await self._listen()
        self._ready.set()
        stopped = asyncio.ensure_future(self._stopping.wait())
        while not (await asyncio.wait([stopped], timeout=RENEW_S))[0]:
            await self.fleet.renew()
        self.admin.end()
        await end_server(self.server)

    async def restart_server(self) -> None:
        """Break every connection, and listen again at the same place."""
        await self.server.stop(None)
        await self._listen()

    async def _listen(self) -> None:
        self.server = grpc.aio.server(options=server_options())
        self.server.add_generic_rpc_handlers((self.service.handler(), self._cache()))
        self.server.add_insecure_port(self.address)
        self.tcp = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()

    def _cache(self) -> grpc.GenericRpcHandler[bytes, bytes]:
        async def status(_: bytes, __: object) -> bytes:
            incarnation = self.fleet.position.incarnation if self.is_fresh else b""
            log = cache_pb2.LogStatus(incarnation=incarnation, reason="" if self.is_fresh else "booting")
            return cache_pb2.StatusResponse(weights_versions=self.weights, log=log).SerializeToString()

        return grpc.method_handlers_generic_handler(
            SERVICE, {"Status": grpc.unary_unary_rpc_method_handler(status)}
        )
