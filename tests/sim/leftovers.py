"""What is left of loads and stores when all is quiet: nothing. And no record is corrupt that nobody damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.arena_entries import VISIBLE
from tests.sim.clockwork import MS, S
from tests.sim.truth import BrokenPromiseError

if TYPE_CHECKING:
    from tests.sim.sidecar import Life
    from tests.sim.world import World

WAIT_NS = 3 * S
"""Longer than a request that began when it was not quiet yet may take, and its interruptions."""
_ENDED = (
    "loads_requests", "loads_pages", "loads_flights", "loads_flight_bytes", "loads_probes_in_flight", "stores_queued_pages",
    "stores_queued_bytes", "stores_in_flight", "stores_in_flight_bytes", "records_in_flight", "records_path_queued",
)  # fmt: skip
"""Gauges that return to 0."""


def check_nothing_left(world: World) -> None:
    """Raises BrokenPromiseError where something of loads or stores remains though everybody has had the time to end."""
    lives = [one.life for one in world.sidecars if one.life is not None]
    limit_ns = world.clockwork.now_ns + WAIT_NS
    while (
        any(_left(life) or _unaccounted(world, life) for life in lives) and world.clockwork.now_ns < limit_ns
    ):
        world.clockwork.run(world.clockwork.now_ns + 100 * MS)
    world.loads.check_none_lost()
    for life in lives:
        missing = _unaccounted(world, life)
        if missing:
            raise BrokenPromiseError("BrokeAccount", missing)
        left = _left(life)
        if left:
            raise BrokenPromiseError(
                "BrokeLeft", f"{life.sidecar.node} has still {left}, though nobody asks for anything"
            )
        check_records(world, life)
        for entry in life.arena.entries:
            if entry.state == VISIBLE:
                world.truth.check_bytes(entry.birth, (entry.place[0], entry.place[1]), life.sidecar.node.name)


def _unaccounted(world: World, life: Life) -> str:
    """I7: whatever was asked for is accounted for, over clients that live and that have died; what is not, in words."""
    asked = world.arenas[life.id].asked
    counted = life.store.namespace_counts().values()
    requested = sum(one.requested for one in counted)
    if requested == asked and all(one.is_balanced for one in counted):
        return ""
    return f"{asked} pages were asked of {life.sidecar.node}, {requested} are accounted for"


def _left(life: Life) -> dict[str, int]:
    """Gauges of loads and stores, and places and leases of the sidecar's own, that are not 0."""
    figures, row = life.pages.statistics(), life.arena.row_statistics(life.store.own_row)
    left = {name: figures[name] for name in _ENDED if figures.get(name)}
    return left | {name: row[name] for name in ("leases", "reservations") if row[name]}


def check_records(world: World, life: Life) -> None:
    """Replies reach those who asked, and bytes are written and read as they stand: else records are none."""
    corrupt = life.pages.statistics().get("records_corrupt", 0)
    if corrupt and not world.damaged:
        raise BrokenPromiseError(
            "BrokeRecord", f"{corrupt} records were corrupt to {life.sidecar.node}, though nobody damaged one"
        )
