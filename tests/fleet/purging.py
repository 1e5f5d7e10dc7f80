"""Invalidating again and again while other things happen to a fleet, and letting time pass."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

from kv_types.clock import BoottimeClock
from tests.fleet.fleet import Fleet, Load
from tests.fleet.purges import Purge
from tests.support.polling import wait_until

_CLOCK = BoottimeClock()


class Purging:
    """A thread that invalidates again and again, whatever goes on, one after the other."""

    def __init__(
        self, fleet: Fleet, choose: Callable[[int], tuple[Purge, int]], *, timeout_s: float, pause_s: float
    ) -> None:
        """`choose` is given a running number and returns what to purge and through which sidecar."""
        self._fleet = fleet
        self._choose = choose
        self._timeout_s = timeout_s
        self._ending = threading.Event()
        self._pause_s = pause_s
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="purging")
        self.count = 0

    def _run(self) -> None:
        try:
            while not self._ending.wait(self._pause_s):
                purge, via = self._choose(self.count)
                self._fleet.purge(purge, via=via, timeout_s=self._timeout_s)
                self.count += 1
        except BaseException as error:
            self._failure = error

    def __enter__(self) -> Purging:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(self._timeout_s + 30.0)
        assert not self._thread.is_alive(), "an invalidation hangs"
        if self._failure is not None:
            raise self._failure


def purging(
    fleet: Fleet,
    *,
    timeout_s: float = 3.0,
    seed: int = 1,
    sidecars: tuple[int, ...] = (0, 1, 2),
    pause_s: float = 0.15,
) -> Purging:
    """Invalidate one thing after the other, of every kind, through one sidecar after the other."""
    draw, load = random.Random(seed), fleet.load
    producers = [10 * sidecar + number for sidecar in range(3) for number in range(2)]

    def choose(number: int) -> tuple[Purge, int]:
        return draw_purge(draw, load, producers, number), sidecars[number % len(sidecars)]

    return Purging(fleet, choose, timeout_s=timeout_s, pause_s=pause_s)


def wait_s(seconds: float) -> None:
    """Let processes go on for so long."""
    end_ns = _CLOCK.now_ns() + int(seconds * 1e9)
    wait_until(lambda: _CLOCK.now_ns() >= end_ns, timeout_s=seconds + 5.0)


def draw_purge(draw: random.Random, load: Load, producers: Sequence[int], number: int) -> Purge:
    """Something to invalidate, of each kind by turns."""
    tenant = draw.randrange(load.tenants)
    kinds = [
        Purge(tenant=tenant, chain=draw.randrange(load.chains), page=draw.randrange(load.pages)),
        Purge(tenant=tenant, chain=draw.randrange(load.chains), page=draw.randrange(load.pages)),
        Purge(tenant=tenant, producer=draw.choice(producers)),
        Purge(tag=draw.randrange(load.tags)),
        Purge(tenant=tenant),
    ]
    return kinds[number % len(kinds)]
