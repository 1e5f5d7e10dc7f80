"""Clockwork: one true time for a whole simulation, and processes that run on it and can be stopped and killed apart.

Work is either a plain action at a time or a fiber: straight-line code that gives way by `sleep`, `Signal.wait` or, in the
middle of what looks atomic to it, `give_way`. Everything is decided by one seeded generator, so a seed is a history.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

Action = Callable[[], Any]

US = 1_000
MS = 1_000_000
S = 1_000_000_000


class SimulationError(Exception):
    """The simulation itself went wrong: a deadlock, too many events, or a model asked for what it doesn't know."""


class Process:
    """A process on a node. Stopped, its work waits; dead, its work is forgotten."""

    __slots__ = ("_stopped_ns", "alive", "away_ns", "held", "name", "node", "stops")

    def __init__(self, name: str, node: Any) -> None:
        self.name = name
        self.node = node
        self.alive = True
        self.stops = 0
        self.held: list[Action] = []
        self.away_ns = 0
        """True time in which it was stopped, or something else had its processor."""
        self._stopped_ns = 0

    def __repr__(self) -> str:
        return self.name


class Fiber(greenlet):
    """Straight-line code of a process. `leave`, if there is one, puts aside what it must not leave lying about while others
    run in its middle, and returns what brings that back."""

    process: Process | None = None
    leave: Callable[[], Callable[[], None]] | None = None


class Clockwork:
    """True time, the queue of what happens next, and the seeded generator behind every choice."""

    def __init__(self, seed: int, *, events_max: int = 2_000_000) -> None:
        self.now_ns = 0
        self.random = random.Random(seed)
        self.events = 0
        self.over = False
        self._events_max = events_max
        self._queue: list[tuple[int, int, Action, Process | None]] = []
        self._order = 0
        self.hub = getcurrent()
        self._until_give_way = 1 << 60
        self._give_way_every = 0.0
        self._give_way_ns: Callable[[], int] = lambda: 0
        self._graves: list[Fiber] = []
        self._failure: BaseException | None = None

    # --- what happens when ---

    def at(self, when_ns: int, action: Action, process: Process | None = None) -> None:
        """Do something at a true time, on behalf of a process."""
        self._order += 1
        heappush(self._queue, (when_ns, self._order, action, process))

    def after(self, delay_ns: int, action: Action, process: Process | None = None) -> None:
        """Do something in a while."""
        self._order += 1
        heappush(self._queue, (self.now_ns + delay_ns, self._order, action, process))

    def run(self, until_ns: int) -> None:
        """Let time pass up to `until_ns`. Called from outside of all fibers."""
        queue = self._queue
        while queue and queue[0][0] <= until_ns:
            when_ns, _, action, process = heappop(queue)
            if process is not None:
                if not process.alive:
                    continue
                if process.stops:
                    process.held.append(action)
                    continue
            self.now_ns = when_ns
            self.events += 1
            action()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self.events > self._events_max:
                raise SimulationError(f"more than {self._events_max} events by {self.now_ns} ns")
        self.now_ns = max(self.now_ns, until_ns)

    # --- processes ---

    def stop(self, process: Process) -> None:
        """Stop a process as SIGSTOP or a paused machine would; stops nest."""
        if not process.stops:
            process._stopped_ns = self.now_ns
        process.stops += 1

    def resume(self, process: Process) -> None:
        """End one stop; when it was the last, what waited happens now, in its order."""
        process.stops -= 1
        if not process.stops:
            process.away_ns += self.now_ns - process._stopped_ns
        if not process.stops and process.alive:
            held, process.held = process.held, []
            for action in held:
                self.at(self.now_ns, action, process)

    def kill(self, process: Process) -> None:
        """End a process as SIGKILL would: nothing of it runs any more."""
        process.alive = False
        process.held = []

    # --- fibers ---

    def spawn(self, process: Process | None, body: Callable[[], Any], *, delay_ns: int = 0) -> None:
        """Run straight-line code as a fiber of a process. An exception in it ends the simulation."""
        fiber = Fiber(self._guarded, self.hub)
        self._graves.append(
            fiber
        )  # or a killed fiber would be unwound, and its `finally` run, in mid-simulation
        fiber.process = process
        self.after(delay_ns, lambda: fiber.switch(body), process)

    def _guarded(self, body: Callable[[], Any]) -> None:
        try:
            body()
        except GreenletExit:
            raise
        except BaseException as failure:
            self._failure = failure

    def sleep(self, delay_ns: int) -> None:
        """Let others run for a while; only from a fiber."""
        fiber = current_fiber()
        self.after(delay_ns, fiber.switch, fiber.process)
        self.hand_over()

    def hand_over(self) -> None:
        """Leave the current fiber until somebody switches to it."""
        if self.over:
            raise GreenletExit
        self.hub.switch()

    def often(self, every: float, length_ns: Callable[[], int]) -> None:
        """How often (on average once in `every` calls; 0: never) and for how long `give_way` gives way."""
        self._give_way_every, self._give_way_ns = every, length_ns
        self._draw()

    def _draw(self) -> None:
        every = self._give_way_every
        self._until_give_way = int(self.random.expovariate(1.0 / every)) + 1 if every else 1 << 60

    def give_way(self) -> None:
        """A point at which the machine may run others: between two steps that are visible to them."""
        self._until_give_way -= 1
        if self._until_give_way <= 0:
            self._draw()
            fiber = getcurrent()
            if not isinstance(fiber, Fiber):
                return  # the clockwork's own doing can't be interrupted
            enter = fiber.leave() if fiber.leave is not None else None
            length_ns = self._give_way_ns()
            if fiber.process is not None:
                fiber.process.away_ns += length_ns
            self.sleep(length_ns)
            if enter is not None:
                enter()

    def fail(self, failure: BaseException) -> None:
        """End the simulation with this exception, once the present event is over."""
        self._failure = failure

    def end(self) -> None:
        """Unwind every fiber that is left; from here on nothing waits."""
        self.over = True
        self._queue.clear()
        for fiber in self._graves:
            if fiber:
                fiber.throw(GreenletExit)
        self._graves.clear()


def current_fiber() -> Fiber:
    """The fiber that runs now."""
    fiber = getcurrent()
    assert isinstance(fiber, Fiber), "only fibers wait"
    return fiber


class Signal:
    """Something that fibers wait for. Set once."""

    __slots__ = ("_clockwork", "_waiting", "is_set", "value")

    def __init__(self, clockwork: Clockwork) -> None:
        self._clockwork = clockwork
        self.is_set = False
        self.value: Any = None
        self._waiting: list[Fiber] = []

    def set(self, value: Any = None) -> None:
        """Wake whoever waits."""
        if self.is_set:
            return
        self.is_set, self.value = True, value
        waiting, self._waiting = self._waiting, []
        for fiber in waiting:
            self._clockwork.after(0, fiber.switch, fiber.process)

    def wait(self, timeout_ns: int) -> bool:
        """Wait until it is set or the time (true ns) has passed; whether it is set."""
        if self.is_set:
            return True
        fiber = current_fiber()
        self._waiting.append(fiber)

        def give_up() -> None:
            if fiber in self._waiting:
                self._waiting.remove(fiber)
                fiber.switch()

        self._clockwork.after(timeout_ns, give_up, fiber.process)
        self._clockwork.hand_over()
        return self.is_set
