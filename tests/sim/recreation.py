"""The end of each seed: whatever was purged can be computed, stored and served again, on every node (I9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kv_types.namespace import Namespace
from kv_types.outcomes import Refused, RefuseReason
from tests.sim.clockwork import MS, S, Signal
from tests.sim.sidecar import SimulatedSidecar
from tests.sim.spaces import Path
from tests.sim.truth import BrokenPromiseError
from tests.sim.worker import Worker

if TYPE_CHECKING:
    from tests.sim.world import World

ATTEMPTS = 4
PREFIXES_MAX = 2


def recreate(world: World) -> None:
    """Raises BrokenPromiseError where a prefix stays a miss. Runs in a fiber of nobody's."""
    prefixes = _prefixes(world)
    for number, sidecar in enumerate(world.sidecars):
        worker = Worker(world, sidecar, 100 + number)
        done = Signal(world.clockwork)
        world.clockwork.spawn(
            worker.process, lambda worker=worker, done=done: _on_node(world, worker, prefixes, done)
        )  # type: ignore[misc]
        if not done.wait(30 * S):
            raise BrokenPromiseError("BrokeRecreate", f"requests on {sidecar.node} hang")


def _prefixes(world: World) -> list[tuple[Namespace, Path]]:
    """Some that were purged, or any."""
    spaces = [space for space, _ in world.operator.purged] or world.spaces
    paths = world.plan.paths
    return [(spaces[index % len(spaces)], paths[index % len(paths)]) for index in range(PREFIXES_MAX)]


def _on_node(world: World, worker: Worker, prefixes: list[tuple[Namespace, Path]], done: Signal) -> None:
    _connect(worker)
    for space, path in prefixes:
        for attempt in range(ATTEMPTS):
            worker.serve(space, path)
            now, outcomes = worker.serve(space, path)
            if not now.own:
                break
            busy = [one for one in outcomes if isinstance(one, Refused) and one.reason in _PASSING]
            if not busy or attempt == ATTEMPTS - 1:
                raise BrokenPromiseError(
                    "BrokeRecreate",
                    f"{worker.name} computed and stored {path} of {space.model} and then found {now.first_own} pages of it; "
                    f"storing said {outcomes}",
                )
            world.clockwork.sleep(int(world.plan.reservation_s * S) + 500 * MS)
    done.set()


def _connect(worker: Worker) -> None:
    if not worker.connect():
        raise BrokenPromiseError("BrokeRecreate", f"{worker.name} can't attach although its sidecar is well")


_PASSING = (RefuseReason.BUSY, RefuseReason.DEADLINE, RefuseReason.STAMP_FOREIGN)
assert SimulatedSidecar
