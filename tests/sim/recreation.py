"""The end of each seed: whatever was purged can be computed, stored and served again, on every node (I9)."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from kv_types.namespace import Namespace
from kv_types.outcomes import KNOWN, STORED, Refused, RefuseReason
from tests.sim.clockwork import MS, S, Signal
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
    shared: set[tuple[Namespace, Path]] = set()
    for client in [*world.workers, *world.engines]:  # they go on, and call again some time
        if client.process.alive and client.attachment is not None:
            client.attachment.give_back()
    world.clockwork.sleep(world.plan.socket_ns + world.plan.turn_ns + 1 * MS)
    for number, sidecar in enumerate(world.sidecars):
        worker = Worker(world, sidecar, 100 + number)
        done = Signal(world.clockwork)
        world.clockwork.spawn(worker.process, partial(_on_node, world, worker, prefixes, shared, done))
        if not done.wait(30 * S):
            raise BrokenPromiseError("BrokeRecreate", f"requests on {sidecar.node} hang")


def _prefixes(world: World) -> list[tuple[Namespace, Path]]:
    """Some that were purged, or any."""
    spaces = [space for space, _ in world.operator.purged] or world.spaces
    paths = world.plan.paths
    return [(spaces[index % len(spaces)], paths[index % len(paths)]) for index in range(PREFIXES_MAX)]


def _on_node(
    world: World,
    worker: Worker,
    prefixes: list[tuple[Namespace, Path]],
    shared: set[tuple[Namespace, Path]],
    done: Signal,
) -> None:
    if not worker.connect():
        raise BrokenPromiseError("BrokeRecreate", f"{worker.name} can't attach although its sidecar is well")
    for space, path in prefixes:
        if (space, path) in shared and not _arrives(world, worker, space, path):
            raise BrokenPromiseError(
                "BrokeRecreate",
                f"what another node computed and stored in L3 of {path} can't be had by {worker.name}",
            )
        before = Counter(worker.attachment.life.pages.statistics() if worker.attachment is not None else {})
        for attempt in range(ATTEMPTS):
            first, stored = worker.serve(space, path, fetch=True)
            again, outcomes = worker.serve(space, path)
            if first.pages and not again.own:
                break
            refused = [one.reason for one in (*stored, *outcomes) if isinstance(one, Refused)]
            # a sidecar that takes its time settles what was posted later than a look-up waits for it
            is_settled_late = bool(outcomes) and all(one == KNOWN for one in outcomes)
            passing = not first.pages or is_settled_late or any(reason in _PASSING for reason in refused)
            if not passing or attempt == ATTEMPTS - 1:
                raise BrokenPromiseError(
                    "BrokeRecreate",
                    f"{worker.name} computed and stored {path} of {space.model} and then found {again.first_own} pages "
                    f"of it; storing said {stored}, then {outcomes}",
                )
            world.clockwork.sleep(int(world.plan.reservation_s * S) + 500 * MS)
        is_new = first.space == space and len(first.own) == len(path) and all(one == STORED for one in stored)
        if is_new and _is_shared(world, worker, before):
            shared.add((space, path))
    done.set()


def _arrives(world: World, worker: Worker, space: Namespace, path: Path) -> bool:
    """Whether a chain can be promoted; what others have reserved and forgotten may be in the way for a while."""
    for attempt in range(ATTEMPTS):
        if attempt:
            world.clockwork.sleep(int(world.plan.reservation_s * S) + 500 * MS)
        if worker.load(space, path) == len(path):
            return True
    return False


_UNSTORED = ("stores_dropped", "stores_refused", "stores_gone")


def _is_shared(world: World, worker: Worker, before: Counter[str]) -> bool:
    """Let what was just stored reach L3; whether all of it did."""
    if not world.plan.l3 or worker.attachment is None:
        return False
    pages = worker.attachment.life.pages
    while not pages.is_idle or worker.attachment.life.arena.posting_rows():
        world.clockwork.sleep(20 * MS)
    after = Counter(pages.statistics())
    return not any(after[name] > before[name] for name in after if name.startswith(_UNSTORED))


_PASSING = (
    RefuseReason.BUSY,
    RefuseReason.DEADLINE,
    RefuseReason.STAMP_FOREIGN,
    RefuseReason.UNREACHABLE,
)
