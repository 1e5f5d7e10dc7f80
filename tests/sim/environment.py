"""What product code finds around it inside a simulation: clocks, randomness, locks and the arena of the simulated process.

Installed once in a process that does nothing else; never undone.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import structlog
from greenlet import getcurrent

from sidecar.l3.plan import Bounds
from tests.sim.arena import ModelArena
from tests.sim.arena_reader import ModelReader
from tests.sim.byte_engine import ModelEngine
from tests.sim.clockwork import MS, Clockwork, Fiber, current_fiber
from tests.sim.nodes import Node
from tests.sim.page_sockets import PageSocket, SimulatedConnector
from tests.sim.plan import Plan

PAGE_BYTES = 16
HIDING_STEP_WORK = 6
"""Entries that one step of hiding looks at: few, so that most hiding takes several and look-ups come between."""

LOADS = Bounds(
    requests=6, pages=24, flights=6, flight_bytes=6 * PAGE_BYTES, run_pages=2, probe_pages=2, absent_pages=64,
    absent_ns=100 * MS, put_awaited_ns=100 * MS, sent_ns=100 * MS,
)  # fmt: skip
"""Small, so that runs, questions and queues are shorter than chains."""

TURN_ENTRIES = 4
"""Entries of the log that are read or taken in at a time."""

_real_monotonic, _real_time_ns, _real_clock_gettime_ns = time.monotonic, time.time_ns, time.clock_gettime_ns
_real_monotonic_ns, _real_urandom = time.monotonic_ns, os.urandom


class _Present:
    """The world that runs now."""

    clockwork: Clockwork | None = None
    plan: Plan | None = None
    arenas: Callable[[Any, bytes], ModelArena]


def enter(clockwork: Clockwork, plan: Plan, arenas: Callable[[Any, bytes], ModelArena]) -> None:
    """From here on product code runs in this world; `arenas` makes one for a sidecar's life."""
    _Present.clockwork, _Present.plan, _Present.arenas = clockwork, plan, staticmethod(arenas)


def leave() -> None:
    """No world runs any more."""
    _Present.clockwork = None


def _node() -> Node | None:
    fiber = getcurrent()
    if not isinstance(fiber, Fiber) or fiber.process is None or _Present.clockwork is None:
        return None
    node: Node = fiber.process.node
    return node


def _monotonic() -> float:
    node = _node()
    return _real_monotonic() if node is None else node.monotonic_ns() / 1e9


def _monotonic_ns() -> int:
    node = _node()
    return _real_monotonic_ns() if node is None else node.monotonic_ns()


def _time_ns() -> int:
    node = _node()
    return _real_time_ns() if node is None else node.wall_ns()


def _clock_gettime_ns(clock: int) -> int:
    node = _node()
    return _real_clock_gettime_ns(clock) if node is None else node.now_ns()


def _urandom(size: int) -> bytes:
    clockwork = _Present.clockwork
    return _real_urandom(size) if clockwork is None else clockwork.random.randbytes(size)


class FiberLock:
    """threading.Lock among the fibers of one process."""

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: list[Fiber] = []

    def acquire(self) -> bool:
        while self._is_held:
            assert _Present.clockwork is not None, "outside of a world nobody waits"
            self._waiting.append(current_fiber())
            _Present.clockwork.hand_over()
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False
        clockwork = _Present.clockwork
        if self._waiting and clockwork is not None and not clockwork.over:
            fiber = self._waiting.pop(0)
            clockwork.after(0, fiber.switch, fiber.process)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class FiberCondition(FiberLock):
    """threading.Condition for those that wait for nothing."""

    def __init__(self, _: FiberLock) -> None:
        super().__init__()

    def notify_all(self) -> None:
        """Nobody waits."""


class _Socket:
    """What product modules find as `socket`."""

    socket = PageSocket


def _data_path(_: Any) -> Any:
    """The product's, with a window of the plan's."""
    from cache_l3.native_path import NativePath
    from cache_l3.verification import SHAPE

    assert _Present.plan is not None, "only in a world"
    return NativePath(SHAPE, window=_Present.plan.window)


def _queue(*, pages_max: int, bytes_max: int, age_ns_max: int) -> Any:
    """The product's, for as many pages as the plan says."""
    from sidecar.l3.store_queue import StoreQueue

    assert _Present.plan is not None, "only in a world"
    return StoreQueue(
        pages_max=min(pages_max, _Present.plan.queue_pages), bytes_max=bytes_max, age_ns_max=age_ns_max
    )


def _engine(**settings: Any) -> ModelEngine:
    process = current_fiber().process
    assert process is not None, "only a sidecar's loop makes one"
    assert _Present.clockwork is not None, "only in a world"
    return ModelEngine(_Present.clockwork, process, **settings)


class _Threading:
    """What product modules find as `threading`."""

    Lock, Condition = FiberLock, FiberCondition


class _Failures:
    """Nothing may fail in a simulation: what a loader or write-behind would log, and go on, is raised there."""

    def __init__(self, *_: object) -> None:
        self._loop = asyncio.get_running_loop()

    def error(self, _: str, **__: object) -> None:
        self._loop.call_exception_handler({"exception": sys.exception()})


@functools.cache
def install() -> None:
    """Put it all in place."""
    time.monotonic, time.time_ns, time.clock_gettime_ns = _monotonic, _time_ns, _clock_gettime_ns
    time.monotonic_ns, os.urandom = _monotonic_ns, _urandom
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    sys.unraisablehook = lambda _: (
        None
    )  # coroutines of processes that were killed are unwound wherever they were
    _shorten()
    import cache_l1.cache
    import cache_l2.store
    import cache_l3.native_path
    import cache_l3.router
    import inference_worker.loading
    import inference_worker.prefetch
    import inference_worker.weights
    from cache_l2.huge_pages import ArenaMemory, HugePages
    from invalidation.notes import MemberNote
    from invalidation.records import LogEntry
    from kv_types.namespace import Namespace
    from kv_types.selectors import Selector

    _put(
        (cache_l1.cache, "threading", _Threading),
        (inference_worker.loading, "threading", _Threading),
        (inference_worker.prefetch, "threading", _Threading),
        (inference_worker.weights, "threading", _Threading),
        (cache_l3.native_path, "Engine", _engine),
        (cache_l3.native_path, "socket", _Socket),
        (cache_l3.router, "Connector", SimulatedConnector),
        (
            cache_l2.store,
            "create_arena",
            lambda config, life, probe=None: (_Present.arenas(config, life), ArenaMemory(HugePages.OFF)),
        ),
        (cache_l2.store, "map_own", lambda arena, row, life, prefault: ModelReader(arena, row)),
    )
    # read anew by every sidecar's every life; parsing them costs more than all else that is done with them
    for kind, name in (
        (Namespace, "from_canonical"),
        (Selector, "decode"),
        (LogEntry, "decode"),
        (MemberNote, "decode"),
    ):
        setattr(kind, name, functools.lru_cache(4096)(getattr(kind, name)))


def _shorten() -> None:
    """Less of what only people look at, and steps of work so small that others come between."""
    import cache_l2.selecting
    import invalidation.compaction
    import invalidation.redis.replies
    import invalidation.selector_tables
    import sidecar.admin.fencing
    import sidecar.l3.loader
    import sidecar.l3.tier
    import sidecar.l3.write_behind
    import sidecar.log.directory
    import sidecar.log.watch

    _put(
        (sidecar.l3.loader, "SeldomLogger", _Failures),
        (sidecar.l3.write_behind, "SeldomLogger", _Failures),
        (sidecar.l3.tier, "bounds", lambda _: LOADS),
        (sidecar.l3.tier, "open_data_path", _data_path),
        (sidecar.l3.tier, "StoreQueue", _queue),
        (cache_l2.selecting, "HIDING_STEP_WORK_MAX", HIDING_STEP_WORK),
        (invalidation.compaction, "LOG_TURN_ENTRIES_MAX", TURN_ENTRIES),
        (invalidation.redis.replies, "LOG_TURN_ENTRIES_MAX", TURN_ENTRIES),
        (invalidation.selector_tables, "LOG_TURN_ENTRIES_MAX", TURN_ENTRIES),
        (sidecar.admin.fencing, "FENCE_POLL_S_MAX", 0.2),
        (sidecar.admin.fencing, "_FIRST_PAUSE_S", 0.01),
        (sidecar.log.directory, "_DIRECTORY_S", 3.0),
        (sidecar.log.watch, "_FIGURES_S", 3.0),
        (sidecar.log.watch, "LOG_STATISTICS_S", 60.0),
        (sidecar.log.watch, "CLIENTS_WATCH_S_MAX", 0.2),
    )


def _put(*places: tuple[ModuleType, str, Any]) -> None:
    for module, name, value in places:
        getattr(module, name)  # what is not there would change nothing
        setattr(module, name, value)
