"""One daemon's life: the lock, the arena, the heartbeat, signals, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterator

from cache_l2.store import ArenaConfig, ArenaStore
from kv_types.clock import BoottimeClock, Clock
from kv_wire.allocator import keep_freed_memory
from sidecar.config import Settings
from sidecar.copy_kernel import choose_copy_kernels
from sidecar.endpoint import RuntimeDirectory
from sidecar.logs import logger
from sidecar.metrics import Metrics
from sidecar.services import Services

_BEATS_PER_LEASE = 4
_LAG_PERIOD_S = 0.1
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = logger("runtime")


def arena_config(settings: Settings) -> ArenaConfig:
    """Return the arena's part of the settings; measures the copy kernels on the way."""
    cold, warm = choose_copy_kernels(settings.copy_kernel)
    return ArenaConfig(
        arena_bytes=settings.arena_size,
        segment_bytes=settings.segment_size or 0,
        pages_max=settings.pages_max or 0,
        client_rows=settings.client_rows,
        leases_per_client=settings.leases_per_client,
        freshness_lease_s=settings.freshness_lease,
        reservation_s=settings.reservation_time,
        default_ttl_s=math.ceil(settings.default_ttl),
        copy_kernel=cold,
        warm_copy_kernel=warm,
        prefault=settings.prefault,
    )


class Sidecar:
    """A daemon, made and run on one event loop."""

    def __init__(self, settings: Settings, *, version: str, clock: Clock | None = None) -> None:
        self._settings = settings
        self._version = version
        self._clock = clock or BoottimeClock()
        self._ending = asyncio.Event()
        self._signals_seen = 0

    async def run(self) -> None:
        """Start everything, serve until SIGTERM or SIGINT, drain, and leave nothing behind.

        Raises StrataError when it cannot start. A background task that fails ends the daemon with its error:
        without a heartbeat nothing is served anyway, and a restart is seen.
        """
        keep_freed_memory()
        directory = RuntimeDirectory(self._settings.runtime_dir)
        directory.acquire()
        try:
            with contextlib.closing(self._store()) as store, self._signals(directory):
                await self._serve(store, directory)
        finally:
            directory.release()
        _log.info("ended")

    def _store(self) -> ArenaStore:
        # Committing a large arena keeps this thread for many seconds. Nothing is served yet and nothing would be
        # left behind, so meanwhile signals end the process the plain way instead of waiting for the event loop.
        with _plain_signals():
            return ArenaStore(arena_config(self._settings), clock=self._clock)

    async def _serve(self, store: ArenaStore, directory: RuntimeDirectory) -> None:
        services = Services(store, directory, self._settings, version=self._version, clock=self._clock)
        try:
            await self._serve_until_ended(store, services)
        except ExceptionGroup as group:
            # One cause ends the daemon; what it took down with it is only logged.
            first, *others = group.exceptions
            for other in others:
                _log.error("failed as well", reason=repr(other))
            raise first from None
        finally:
            await services.close()

    async def _serve_until_ended(self, store: ArenaStore, services: Services) -> None:
        async with asyncio.TaskGroup() as tasks:
            # The heartbeat first: freshness must not run out while the rest starts.
            period_s = self._settings.freshness_lease / _BEATS_PER_LEASE
            background = [
                tasks.create_task(_periodically(period_s, store.tick), name="heartbeat"),
                tasks.create_task(_measure_lag(services.metrics), name="lag"),
            ]
            await services.start()
            _log.info("ready", pid=os.getpid(), **services.described())
            await self._ending.wait()
            await services.drain(self._settings.drain_time)
            for task in background:
                task.cancel()

    @contextlib.contextmanager
    def _signals(self, directory: RuntimeDirectory) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number, directory)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals, directory: RuntimeDirectory) -> None:
        self._signals_seen += 1
        if self._signals_seen == 1:
            _log.info("draining", signal=number.name, drain_s=self._settings.drain_time)
            self._ending.set()
            return
        _log.warning("ended at once by a second signal", signal=number.name)
        directory.release()
        os._exit(128 + number)


@contextlib.contextmanager
def _plain_signals() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _periodically(period_s: float, step: Callable[[], object]) -> None:
    while True:
        step()
        await asyncio.sleep(period_s)


async def _measure_lag(metrics: Metrics) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LAG_PERIOD_S
        await asyncio.sleep(_LAG_PERIOD_S)
        metrics.observe_lag(max(0.0, loop.time() - due))
