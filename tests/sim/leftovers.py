"""What is left of loads and stores when all is quiet: nothing. And no record is corrupt that nobody damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.truth import BrokenPromiseError

if TYPE_CHECKING:
    from tests.sim.sidecar import Life
    from tests.sim.world import World

_ENDED = (
    "loads_requests", "loads_pages", "loads_flights", "loads_flight_bytes", "loads_probes_in_flight", "stores_queued_pages",
    "stores_queued_bytes", "stores_in_flight", "stores_in_flight_bytes", "records_in_flight", "records_path_queued",
)  # fmt: skip
"""Gauges that return to 0."""


def check_nothing_left(world: World) -> None:
    """Raises BrokenPromiseError where something of loads or stores remains."""
    world.loads.check_none_lost()
    for sidecar in world.sidecars:
        if sidecar.life is not None and sidecar.life.pages is not None:
            _check_gauges(sidecar.life)
            _check_arena(sidecar.life)
            check_records(world, sidecar.life)


def _check_gauges(life: Life) -> None:
    assert life.pages is not None, "it has an L3"
    figures = life.pages.statistics()
    left = {name: figures[name] for name in _ENDED if figures[name]}
    if left:
        raise BrokenPromiseError("BrokeLeft", f"{life.sidecar.node} has still {left}, though nobody asks for anything")


def _check_arena(life: Life) -> None:
    """Places and leases of the sidecar's own are given back."""
    row = life.arena.row_statistics(life.store.own_row)
    left = {name: row[name] for name in ("leases", "reservations") if row[name]}
    if left:
        raise BrokenPromiseError("BrokeLeft", f"{life.sidecar.node} keeps {left} of its own")


def check_records(world: World, life: Life) -> None:
    """Replies reach those who asked, and bytes are written and read as they stand: else records are none."""
    if life.pages is None or not life.pages.is_started or world.damaged:
        return
    corrupt = life.pages.records.statistics()["corrupt"]
    if corrupt:
        raise BrokenPromiseError(
            "BrokeRecord", f"{corrupt} records were corrupt to {life.sidecar.node}, though nobody damaged one"
        )
