"""A sidecar in this process and engines' workers at it; nothing of theirs may be left behind when a test ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from inference_worker.client import Client, ClientSettings
from tests.connectors.vllm.workers import Engine
from tests.support.attach_site import AttachSite
from tests.support.descriptors import open_descriptors, wait_until_closed
from tests.support.polling import wait_until


class WorkerWorld:
    """A context manager."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._descriptors = open_descriptors()
        self.site = AttachSite(folder, **settings)
        self._engines: list[Engine] = []

    def __enter__(self) -> Self:
        self.site.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for engine in self._engines:
                engine.side.shutdown()
            if error is None:
                self.check_nothing_left()
        finally:
            self.site.__exit__(kind, error, trace)
        if error is None:
            wait_until_closed(self._descriptors)

    def connect(self, name: str = "engine", **settings: Any) -> Client:
        return Client.connect(
            self.site.path.parent,
            settings=ClientSettings(**{"name": name, "prefault": False, "deadline_s": 5.0, **settings}),
        )

    def engine(self, name: str = "engine", kind: str = "cpu", **terms: Any) -> Engine:
        engine = Engine(self.connect(name), kind, **terms)
        self._engines.append(engine)
        return engine

    def hide(self, selector: object) -> None:
        self.site.call(lambda store: store.hide(selector))  # type: ignore[arg-type]

    def check_nothing_left(self) -> None:
        """No lease, no reservation, no view held by anybody."""

        def rows(figure: str) -> Callable[[], bool]:
            return lambda: (
                not any(getattr(row, figure) for row in self.site.call(lambda store: store.clients()))
            )

        wait_until(rows("leases"), what="all leases' end")
        wait_until(rows("reservations"), what="all reservations' end")
        wait_until(rows("oldest_view"), what="all holds' end")
