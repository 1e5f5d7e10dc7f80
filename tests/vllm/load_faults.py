"""Faults of one load or save each, put into a running engine's process (`Engine.inside`): the next one meets them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from inference_worker.client import Client, ClientSettings
from inference_worker.connectors.vllm import loads
from inference_worker.deadlines import Deadline
from inference_worker.lease import PageLease, empty_lease
from kv_types.clock import BoottimeClock
from kv_types.ids import NO_LIFE, new_life_id
from kv_types.outcomes import MissReason
from tests.support.polling import wait_until
from tests.support.spaces import fresh_chain, page_of, space_of

_LOADS: Any = loads


def worker_side(engine: Any) -> Any:
    """The worker's side of our connector in this process."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    del engine
    connector: Any = get_kv_transfer_group()
    return connector._worker


def scheduler_side(engine: Any) -> Any:
    """The scheduler's."""
    return engine.engine_core.engine_core.scheduler.connector._scheduler.side


class _Once:
    """Stands for a method until its first call, which `act` carries out; those behind it are as ever."""

    def __init__(self, owner: Any, name: str, act: Callable[..., Any]) -> None:
        self._owner, self._name, self._act = owner, name, act
        self._before = getattr(owner, name)
        self._lock = threading.Lock()
        self._is_spent = False
        setattr(owner, name, self)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with self._lock:
            is_mine, self._is_spent = not self._is_spent, True
        if not is_mine:
            return self._before(*arguments, **named)
        setattr(self._owner, self._name, self._before)
        return self._act(self._before, *arguments, **named)


class _Short:
    """A lease that ends after its first page."""

    def __init__(self, whole: PageLease) -> None:
        self._whole = whole
        self.pages, self.reason = 1, MissReason.LEASE_LIMIT

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def __getitem__(self, index: int) -> memoryview:
        return self._whole[index]

    def __enter__(self) -> _Short:
        return self

    def __exit__(self, *_: object) -> None:
        self._whole.release()


def refused(engine: Any) -> None:
    """The worker gets no lease."""
    _Once(worker_side(engine)._shard.client, "lease", lambda *_, **__: empty_lease(MissReason.STALE))


def short(engine: Any) -> None:
    """The worker's lease has one page."""
    _Once(worker_side(engine)._shard.client, "lease", lambda lease, *a, **n: _Short(lease(*a, **n)))


def late(engine: Any) -> None:
    """The time is over after the first page, or the first layer."""
    loader, module = worker_side(engine)._loader, _LOADS
    batch, module.LOAD_BATCH_BYTES_MAX = module.LOAD_BATCH_BYTES_MAX, 1

    def copy(before: Callable[..., None], load: Any, *arguments: Any, **named: Any) -> None:
        before(load, *arguments, **named)
        load.deadline = Deadline(0.0)
        module.LOAD_BATCH_BYTES_MAX = batch

    _Once(loader, "copy_layers", copy)


def of_another_life(engine: Any) -> None:
    """What was found is another sidecar's."""
    loader = worker_side(engine)._loader

    def lease(before: Callable[..., Any], load: Any, stack: Any) -> Any:
        load.life = new_life_id()
        return before(load, stack)

    _Once(loader, "lease", lease)


def in_the_copy(engine: Any) -> None:
    """Copying ends with an exception, having written a page of zeros."""
    layout = worker_side(engine)._shard.layout.copies

    def scatter(before: Callable[..., None], views: Any, block_ids: Any, **named: Any) -> None:
        before([memoryview(bytes(view.nbytes)) for view in views], block_ids, **named)
        raise RuntimeError("a test's")

    _Once(layout, "scatter", scatter)


def killed_before(engine: Any, pid: int) -> None:
    """The sidecar is killed before the worker's lease, and the worker knows."""
    client = worker_side(engine)._shard.client

    def lease(before: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: client.validity.life == NO_LIFE, what="the loss")
        return before(*arguments, **named)

    _Once(client, "lease", lease)


def killed_under(engine: Any, pid: int) -> None:
    """The sidecar is killed when the copy begins."""
    layout = worker_side(engine)._shard.layout.copies

    def scatter(before: Callable[..., None], *arguments: Any, **named: Any) -> None:
        os.kill(pid, signal.SIGKILL)
        before(*arguments, **named)

    _Once(layout, "scatter", scatter)


def evicted(engine: Any, endpoint: str, pages: int) -> None:
    """All that the node has is evicted between the scheduler's look-up and its lease."""
    client = scheduler_side(engine)._client
    page_bytes = worker_side(engine)._shard.page_bytes

    def lease(before: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        fill(endpoint, page_bytes=page_bytes, pages=pages)
        return before(*arguments, **named)

    _Once(client, "lease", lease)


def purged(engine: Any, endpoint: str, prefix: str) -> None:
    """A fence is waited for between the scheduler's look-up and the worker's lease."""
    from tests.vllm.sidecars import run_command

    client = worker_side(engine)._shard.client

    def lease(before: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        run_command("invalidate", "--prefix-tokens", prefix, "--wait", "--yes", "--runtime-dir", endpoint)
        return before(*arguments, **named)

    _Once(client, "lease", lease)


def aborted(engine: Any) -> None:
    """The load is refused, and its request is aborted before the scheduler hears of it."""
    loader = worker_side(engine)._loader
    core = engine.engine_core.engine_core

    def lease(_: Callable[..., Any], load: Any, stack: Any) -> None:
        del stack
        load.why = "stale"
        core.aborts_queue.put_nowait([load.job.request_id])

    _Once(loader, "lease", lease)


def in_the_put(engine: Any) -> None:
    """Storing ends with an exception."""

    def put(*_: Any, **__: Any) -> None:
        raise RuntimeError("a test's")

    _Once(worker_side(engine)._shard.client, "put_computed", put)


def fill(endpoint: str, *, page_bytes: int, pages: int) -> None:
    """Put so many pages that nobody else has: what fills the arena evicts all else."""
    with Client.connect(endpoint, settings=ClientSettings(name="filler", prefault=False)) as client:
        assert client.wait_ready(deadline_s=10.0)
        space = client.register(space_of(page_bytes))
        for _ in range(pages):
            keys = fresh_chain(1)
            client.put(space, keys, [page_of(keys[0], page_bytes)], stamp=client.stamp(), deadline_s=5.0)


def failed_jobs(engine: Any) -> dict[str, float]:
    """Loads that failed, by reason."""
    prefix = "load_jobs_failed_"
    figures: dict[str, float] = worker_side(engine).statistics()
    return {name.removeprefix(prefix): value for name, value in figures.items() if name.startswith(prefix)}


def posted_pages(engine: Any) -> int:
    """Pages that the engine has put and its sidecar has not taken over: who looks one up waits for it, but not long."""
    from vllm.distributed.kv_transfer import has_kv_transfer_group

    shard = worker_side(engine)._shard if has_kv_transfer_group() else None
    return int(shard.client.statistics()["posted_pages"]) if shard is not None else 0


def overrun(engine: Any) -> None:
    """At its next look the engine finds that events were overwritten before it has read them."""
    _Once(scheduler_side(engine)._client.validity, "events_since", lambda _, view: None)


def header(engine: Any) -> dict[str, Any]:
    """What the scheduler sees of the sidecar: its view, whether that is fresh, and whether it has died."""
    return _header(scheduler_side(engine)._client)


def headers(engine: Any) -> list[dict[str, Any]]:
    """What the scheduler sees of the sidecar, and what the worker."""
    return [_header(scheduler_side(engine)._client), _header(worker_side(engine)._shard.client)]


def _header(client: Client) -> dict[str, Any]:
    validity = client.validity
    return {
        "life": validity.life.hex(),
        "view": validity.view,
        "is_fresh": BoottimeClock().now_ns() < validity.freshness_ns,
        "outlived": validity.outlived,
    }
