"""The parts of a running daemon that face outwards, started, described, drained and closed together."""

from __future__ import annotations

import asyncio

from cache_l2.attach_messages import Looked, Speeds
from cache_l2.store import ArenaStore
from invalidation.listing import Listings
from invalidation.validity import Validity
from kv_types import limits
from kv_types.clock import Clock
from kv_wire.gen import cache_pb2
from sidecar.admin.administration import Administration
from sidecar.admin.inspection import Inspection
from sidecar.admin.pins import PinAdministration
from sidecar.admin.service import AdminService
from sidecar.arena_memory import MemoryPicture
from sidecar.attach.server import AttachServer
from sidecar.config import Settings
from sidecar.endpoint import RuntimeDirectory
from sidecar.l3.choice import choose_l3
from sidecar.l3.tier import L3Tier
from sidecar.log.choice import ChosenLog
from sidecar.log.following import Following
from sidecar.logs import logger
from sidecar.metrics import Metrics, Snapshot
from sidecar.metrics_server import MetricsServer
from sidecar.pin_file import PIN_FILE
from sidecar.recording import Recorder
from sidecar.serving.arena_service import ArenaService
from sidecar.serving.cache_service import CacheService
from sidecar.serving.calls import Calls
from sidecar.serving.grpc_server import GrpcServer
from sidecar.status_report import Addresses, StatusReport

_FLUSH_S = 0.25
"""What the last answers may take from a finished handler to the socket."""

_log = logger("services")


class Services:
    """Attach server, gRPC and metrics over one store."""

    def __init__(
        self,
        store: ArenaStore,
        validity: Validity,
        listings: Listings,
        chosen: ChosenLog,
        directory: RuntimeDirectory,
        settings: Settings,
        *,
        version: str,
        clock: Clock,
    ) -> None:
        self._store = store
        self._directory = directory
        self._settings = settings
        self._addresses = Addresses(runtime_dir=str(directory.path), attach_path=str(directory.attach_path))
        self.metrics = Metrics(version=version, life=store.life, snapshot=self._snapshot)
        self.following = Following(
            chosen, store, validity, listings, settings, version=version, clock=clock,
            observe=self.metrics.observe_applying,
        )  # fmt: skip
        self._l3 = L3Tier(
            store, validity, choose_l3(settings, log_candidates=chosen.candidates), settings, clock=clock,
            observe=self.metrics.observe_load,
        )  # fmt: skip
        self._recorder = Recorder(store.record, clock=clock)
        service = ArenaService(
            store, directory=self.following.directory, loads=self._l3.loads, clock=clock,
            prefetch_s=settings.l3_deadline, recorder=self._recorder,
        )  # fmt: skip
        self.memory = MemoryPicture(store)
        self._report = StatusReport(
            store, self.following.picture, self._l3.state, self.memory.message, version=version, clock=clock,
            addresses=self._addresses,
        )  # fmt: skip
        self._attach = AttachServer(
            store,
            directory.attach_path,
            clock=clock,
            observe=self.metrics.observe_attach,
            engine_came=self.following.shell.look_at_clients,
            directory=self.following.directory,
            loads=self._l3.loads,
            looked=self._on_looked,
        )
        self._calls = Calls(self.metrics.observe_call)
        self._admin_calls = Calls(self.metrics.observe_call, calls_max=limits.ADMIN_CALLS_MAX)
        self._administration = Administration(
            self.following.shell, chosen.log, store, timing=self.following.timing, clock=clock,
            admit_replicas=chosen.admit_replicas, call_s=settings.log_deadline,
        )  # fmt: skip
        inspection = Inspection(store, validity, clock=clock, freshness_ns=store.reader.freshness_ns)
        self._pins = PinAdministration(store, self._l3.loads, clock=clock, file=directory.path / PIN_FILE)
        admin = AdminService(
            self._administration,
            inspection,
            self._admin_calls,
            self._pins,
            fleet=chosen.fleet,
            recorder=self._recorder,
        )
        self._grpc = GrpcServer(
            CacheService(service, self._calls, self._status, load_s=settings.l3_deadline).handler(),
            admin.handler(),
        )
        self._metrics_server = MetricsServer(self.metrics.registry)
        self._attach_started = False

    async def start(self) -> None:
        """Open every socket. What may be refused (ports) comes before what workers wait for (sockets)."""
        if self._settings.metrics_port is not None:
            await self._metrics_server.start(self._settings.metrics_port)
            self._addresses.metrics = self._metrics_server.address
        await self._l3.start()
        await self._pins.restore()
        await self._grpc.start(self._directory.grpc_path, tcp=self._settings.grpc_tcp)
        self._addresses.grpc = self._grpc.addresses
        await self._attach.start()
        self._attach_started = True

    def described(self) -> dict[str, object]:
        """Where it can be reached, for the log."""
        return {
            "attach": self._addresses.attach_path,
            "grpc": self._addresses.grpc,
            "metrics": f"http://{self._addresses.metrics}/metrics" if self._addresses.metrics else "off",
            "life": self._store.life.hex(),
            "l3": self._l3.state().why_off or "on",
            "log": self.following.chosen.address or str(self.following.chosen.kind),
        }

    async def drain(self, drain_s: float) -> None:
        """Stop hits, tell everybody, and let what runs finish for up to `drain_s` seconds; what outlasts them is ended.

        No call runs and holds pages after this: what the sidecar says of itself at its goodbye is true then.
        """
        await self._grpc.stop_serving()
        self._store.drain()
        self._administration.end()
        self._recorder.end_all()
        finished, _, _, _ = await asyncio.gather(
            self._calls.drain(drain_s), self._admin_calls.drain(drain_s), self._attach.stop(drain_s),
            self._l3.drain(drain_s),
        )  # fmt: skip
        if finished:
            return
        _log.warning("calls still ran at the end of the drain time and are ended", calls=self._calls.running)
        await self._grpc.stop(_FLUSH_S)
        if not await self._calls.drain(_FLUSH_S):  # cancelled, and on their way out
            _log.warning("calls do not end", calls=self._calls.running)

    async def close(self) -> None:
        """Close every socket; may be called at any time after construction."""
        await self._grpc.stop(_FLUSH_S)
        if self._attach_started:
            await self._attach.stop(0.0)
        await self._l3.close()
        await self._metrics_server.stop()

    def _on_looked(self, message: Looked) -> None:
        record = self._store.namespace_of_number(message.namespace_number)
        self._recorder.looked(record.namespace.page_tokens, message.digests, dropped=message.dropped)

    def _status(self) -> cache_pb2.StatusResponse:
        return self._report.message(
            attach=self._attach.statistics(),
            names={process.row: process.name for process in self._attach.processes()},
            speeds=self._speeds(),
        )

    def _speeds(self) -> dict[int, Speeds]:
        return {process.row: process.speeds for process in self._attach.processes()}

    def _snapshot(self) -> Snapshot:
        return self._report.snapshot(
            attach=self._attach.statistics(),
            speeds=self._speeds(),
            calls_running=self._calls.running,
            calls_refused=self._calls.refused,
        )
