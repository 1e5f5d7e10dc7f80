"""An asyncio event loop of one simulated process: real tasks and futures over the clockwork's time.

What asyncio's tasks, futures and timeouts need of a loop, and nothing that does input or output. A turn runs whatever is
ready in a fiber of the process, which may give way in the middle of it.
"""

from __future__ import annotations

import asyncio
from asyncio import events, tasks
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any

from tests.sim.clockwork import Clockwork, Fiber, Process
from tests.sim.nodes import Node

_NO_CONTEXT = Context()
_swap_current_task = getattr(tasks, "_swap_current_task", None)


class _Handle:
    __slots__ = ("_arguments", "_callback", "_context", "_when", "cancelled_")

    def __init__(self, callback: Callable[..., Any], arguments: tuple[Any, ...], context: Context) -> None:
        self._callback = callback
        self._arguments = arguments
        self._context = context
        self._when = 0.0
        self.cancelled_ = False

    def cancel(self) -> None:
        self.cancelled_ = True

    def cancelled(self) -> bool:
        return self.cancelled_

    def when(self) -> float:
        return self._when

    def run(self) -> None:
        if not self.cancelled_:
            self._context.run(self._callback, *self._arguments)


class SimulatedLoop:
    """`turn_ns` draws how long after it was woken a turn begins: what a busy machine makes of "at once"."""

    def __init__(
        self, clockwork: Clockwork, node: Node, process: Process, *, turn_ns: Callable[[], int]
    ) -> None:
        self.failures: list[BaseException] = []
        self._clockwork = clockwork
        self._node = node
        self._process = process
        self._turn_ns = turn_ns
        self._ready: deque[_Handle] = deque()
        self._is_awaited = False
        self._descriptors = 0
        self._readers: dict[int, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        self._readable: set[int] = set()
        self._fiber = Fiber(self._turns, clockwork.hub)
        self._fiber.process, self._fiber.leave = process, self._leave
        self._as_asyncio: Any = self  # to asyncio it is a loop, though it has not all of one's methods

    # --- what asyncio asks for ---

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return not self._process.alive

    def time(self) -> float:
        return self._node.monotonic_ns() / 1e9

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        handle = _Handle(callback, args, context if context is not None else copy_context())
        self._ready.append(handle)
        if not self._is_awaited:
            self._is_awaited = True
            self._clockwork.after(self._turn_ns(), self._fiber.switch, self._process)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        handle = _Handle(callback, args, context if context is not None else copy_context())
        handle._when = when
        self._arm(handle, round(when * 1e9))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._as_asyncio)

    def create_task(self, coro: Coroutine[Any, Any, Any], **settings: Any) -> Any:
        return asyncio.Task(coro, loop=self._as_asyncio, **settings)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception that nobody looked at is one of the simulated process; the simulation ends with it."""
        failure = context.get("exception")
        if failure is not None and self._process.alive and not self._clockwork.over:
            self.failures.append(failure)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    # --- descriptors ---

    def new_descriptor(self) -> int:
        """One of a thread of this process, which says by it that it has something for the loop."""
        self._descriptors += 1
        return self._descriptors

    def add_reader(self, descriptor: int, callback: Callable[..., Any], *args: Any) -> None:
        self._readers[descriptor] = callback, args
        self.became_readable(descriptor)

    def remove_reader(self, descriptor: int) -> bool:
        return self._readers.pop(descriptor, None) is not None

    def became_readable(self, descriptor: int) -> None:
        """Have whoever waits for it called, once for as much as there is by then."""
        if descriptor in self._readers and descriptor not in self._readable:
            self._readable.add(descriptor)
            self.call_soon(self._read, descriptor, context=_NO_CONTEXT)

    def _read(self, descriptor: int) -> None:
        self._readable.discard(descriptor)
        found = self._readers.get(descriptor)
        if found is not None:
            callback, arguments = found
            callback(*arguments)

    # --- turns ---

    def _arm(self, handle: _Handle, when_ns: int) -> None:
        delay_ns = self._node.true_delay_ns(when_ns - self._node.monotonic_ns())
        self._clockwork.after(delay_ns, lambda: self._ring(handle, when_ns), self._process)

    def _ring(self, handle: _Handle, when_ns: int) -> None:
        if handle.cancelled_:
            return
        if self._node.monotonic_ns() < when_ns - 1_000:  # the clock stood still meanwhile
            self._arm(handle, when_ns)
            return
        self._ready.append(handle)
        if not self._is_awaited:
            self._is_awaited = True
            self._clockwork.after(self._turn_ns(), self._fiber.switch, self._process)

    def _turns(self) -> None:
        ready, clockwork = self._ready, self._clockwork
        while True:
            events._set_running_loop(self._as_asyncio)
            for _ in range(len(ready)):  # what becomes ready now runs in the next turn, as in asyncio
                ready.popleft().run()
            events._set_running_loop(None)
            if self.failures:
                clockwork.fail(self.failures[0])
            if ready:
                clockwork.after(self._turn_ns(), self._fiber.switch, self._process)
            else:
                self._is_awaited = False
            clockwork.hand_over()

    def _leave(self) -> Callable[[], None]:
        """Put aside what asyncio keeps a thread, while others run in the middle of a turn."""
        task = _swap_current_task(self, None) if _swap_current_task is not None else None
        events._set_running_loop(None)

        def enter() -> None:
            events._set_running_loop(self._as_asyncio)
            if _swap_current_task is not None:
                _swap_current_task(self, task)

        return enter
