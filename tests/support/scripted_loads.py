"""Loads that end when and as a test says, on the loop of whoever began them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kv_types.ids import KEY_BYTES
from kv_types.loading import ComputeCost, LoadDecision
from kv_types.outcomes import MissReason
from sidecar.l3.loads import LoadRow, RowLoaded


class ScriptedLoad:
    """One load. `finish` answers it, `fail` has its wait raise."""

    def __init__(
        self,
        rows: Sequence[LoadRow],
        *,
        deadline_ns: int,
        group: bool,
        compute: ComputeCost | None = None,
    ) -> None:
        self.compute = compute
        self.decision: LoadDecision | None = None
        self.rows = list(rows)
        self.deadline_ns = deadline_ns
        self.group = group
        self.is_cancelled = False
        self.staged = 0
        self._done: asyncio.Future[list[RowLoaded]] = asyncio.get_running_loop().create_future()

    async def wait(self) -> list[RowLoaded]:
        return await self._done

    def so_far(self) -> list[RowLoaded]:
        pages = [len(row.keys) // KEY_BYTES for row in self.rows]
        staged = [min(self.staged, count) for count in pages]
        return [
            RowLoaded(done, 0, MissReason.ABSENT if done < count else MissReason.NONE, count - done)
            for done, count in zip(staged, pages, strict=True)
        ]

    def cancel(self) -> None:
        self.is_cancelled = True

    def finish(self, *answers: RowLoaded) -> None:
        self._done.set_result(list(answers))

    def fail(self, error: Exception) -> None:
        self._done.set_exception(error)


class ScriptedLoads:
    """What a server is given; `begun` has the loads in the order they came."""

    is_available = True

    def __init__(self) -> None:
        self.begun: list[ScriptedLoad] = []

    def begin(
        self,
        rows: Sequence[LoadRow],
        *,
        deadline_ns: int,
        group: bool = False,
        compute: ComputeCost | None = None,
    ) -> ScriptedLoad:
        load = ScriptedLoad(rows, deadline_ns=deadline_ns, group=group, compute=compute)
        self.begun.append(load)
        return load
