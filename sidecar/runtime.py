"""One daemon's life: the lock, the arena, the heartbeat, signals, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

from cache_l2.store import ArenaConfig, ArenaStore
from invalidation.listing import ListedJudge, Listings
from invalidation.validity import Validity
from kv_types.clock import BoottimeClock, Clock
from kv_wire.allocator import keep_freed_memory
from sidecar.arena_room import base_config, with_room
from sidecar.config import Settings
from sidecar.copy_kernel import choose_copy_kernels
from sidecar.endpoint import RuntimeDirectory
from sidecar.log.choice import ChosenLog, choose_log
from sidecar.logs import logger
from sidecar.metrics import Metrics
from sidecar.policy_state import PolicyState
from sidecar.services import Services

_TICK_S = 0.5
"""How often expired pages and late reservations are looked for."""
_LAG_PERIOD_S = 0.1
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = logger("runtime")


def arena_config(settings: Settings) -> ArenaConfig:
    """Return the arena's part of the settings; measures the copy kernels on the way."""
    cold, warm = choose_copy_kernels(settings.copy_kernel)
    return replace(base_config(settings), copy_kernel=cold, warm_copy_kernel=warm)


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
            self._settings = await with_room(self._settings)
            # Then the log: a server that must not be used is refused before a large arena is committed.
            chosen = await choose_log(self._settings, directory.path, clock=self._clock)
            try:
                validity, listings = Validity(skew_ms=int(self._settings.skew_bound * 1000)), Listings()
                judge = ListedJudge(validity, listings)
                with contextlib.closing(self._store(judge)) as store, self._signals(directory):
                    await self._serve(store, validity, listings, chosen, directory)
            finally:
                await chosen.close()
        finally:
            directory.release()
        _log.info("ended")

    def _store(self, judge: ListedJudge) -> ArenaStore:
        # Committing a large arena keeps this thread for many seconds. Nothing is served yet and nothing would be
        # left behind, so meanwhile signals end the process the plain way instead of waiting for the event loop.
        with _plain_signals():
            return ArenaStore(arena_config(self._settings), clock=self._clock, judge=judge)

    async def _serve(
        self,
        store: ArenaStore,
        validity: Validity,
        listings: Listings,
        chosen: ChosenLog,
        directory: RuntimeDirectory,
    ) -> None:
        services = Services(
            store, validity, listings, chosen, directory, self._settings, version=self._version,
            clock=self._clock,
        )  # fmt: skip
        try:
            await self._serve_until_ended(store, services, directory)
        except ExceptionGroup as group:
            # One cause ends the daemon; what it took down with it is only logged.
            first, *others = group.exceptions
            for other in others:
                _log.error("failed as well", reason=repr(other))
            raise first from None
        finally:
            await services.close()

    async def _serve_until_ended(
        self, store: ArenaStore, services: Services, directory: RuntimeDirectory
    ) -> None:
        following = services.following
        learned = PolicyState(store, directory.path)
        learned.load()
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(learned.keep(), name="policy state")
            background = [
                tasks.create_task(_periodically(_TICK_S, store.tick), name="expiry"),
                tasks.create_task(_measure_lag(services.metrics), name="lag"),
                tasks.create_task(services.memory.watch(), name="memory"),
                *following.start(tasks),
            ]
            if not await following.wait_confirmed(self._settings.log_deadline):
                _log.warning("starting without hits", reason=following.shell.state().reason)
            _spare_the_collector()
            await services.start()
            _log.info("ready", pid=os.getpid(), **services.described())
            await self._ending.wait()
            await services.drain(self._settings.drain_time)
            keeping.cancel()
            await asyncio.wait([keeping])  # what it writes is older than what is saved now
            learned.save()
            await following.shell.leave()
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


def _spare_the_collector() -> None:
    """Take what was loaded up to now, and stays, out of full collections: each would keep the event loop for 20 ms."""
    gc.collect()
    gc.freeze()


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
