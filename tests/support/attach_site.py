"""A store and its attach server in a thread of the test's process, with its loop at hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from cache_l2.attach_messages import Looked
from cache_l2.attach_registrations import Registration
from cache_l2.reader import AttachedArena
from cache_l2.store import ArenaConfig
from kv_types.clock import BoottimeClock
from kv_types.namespace import Namespace
from sidecar.attach.server import AttachServer
from sidecar.l3.loads import Loads
from sidecar.l3.residency import ResidentOnly
from sidecar.log.directory import ListsNamespaces
from tests.support.directory import EverythingListed
from tests.support.followed_store import FollowedStore
from tests.support.pages import page_bytes_of

MIB = 1 << 20
Answer = TypeVar("Answer")

SMALL: dict[str, Any] = {
    "arena_bytes": 8 * MIB,
    "segment_bytes": MIB // 4,
    "client_rows": 8,
    "leases_per_client": 16_384,
    "ring_records": 64,
}


class AttachSite:
    """Context manager. `call` runs a function of the store on the thread that owns it."""

    def __init__(
        self,
        folder: Path,
        *,
        lease_s: float = 3.0,
        directory: ListsNamespaces | None = None,
        loads: Callable[[FollowedStore], Loads] | None = None,
        **settings: Any,
    ) -> None:
        self.path = folder / "attach.sock"
        self._config = ArenaConfig(**{**SMALL, **settings})
        self._lease_s = lease_s
        self._directory = directory or EverythingListed()
        self._make_loads = loads or ResidentOnly
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="attach site")
        self._failure: BaseException | None = None
        self.looked: list[Looked] = []
        """What clients have told of their look-ups."""
        self.loop: asyncio.AbstractEventLoop
        self.store: FollowedStore
        self.server: AttachServer
        self.loads: Loads

    def __enter__(self) -> Self:
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

    def call(self, function: Callable[[FollowedStore], Answer]) -> Answer:
        """Run `function(store)` on the loop's thread."""

        async def run() -> Answer:
            return function(self.store)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(30)

    def statistic(self, name: str) -> int:
        """One figure of the store, the server's after a dot: `server.garbage`."""
        if name.startswith("server."):
            return self.call(lambda _: self.server.statistics()[name.removeprefix("server.")])
        return self.call(lambda store: store.statistics()[name])

    def attach(self, **options: Any) -> AttachedArena:
        """Attach from this process."""
        return AttachedArena.connect(str(self.path), **{"prefault": False, "deadline_s": 5.0, **options})

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.store = FollowedStore(self._config, lease_s=self._lease_s)
        self.loads = self._make_loads(self.store)
        self.server = AttachServer(
            self.store, self.path, clock=BoottimeClock(), directory=self._directory, loads=self.loads,
            looked=self.looked.append,
        )  # fmt: skip
        await self.server.start()
        self._ready.set()
        try:
            await self._tick_until_stopped()
        finally:
            self.store.drain()
            await self.server.stop(0.0)
            await self._loads_end()
            self.store.check_invariants()
            self.store.close()

    async def _loads_end(self) -> None:
        """Nothing is on its way into the arena any more after this."""

    async def _tick_until_stopped(self) -> None:
        while True:
            self.store.tick()
            try:
                await asyncio.wait_for(self._stopping.wait(), min(0.1, self._lease_s / 4))
            except TimeoutError:
                continue
            return


def register(arena: AttachedArena, namespace: Namespace) -> Registration:
    """Register a namespace of tests."""
    return arena.register(namespace.canonical, page_bytes_of(namespace), deadline_s=5.0)
