"""What the scheduler's side tells the workers at each step, and what they tell it: plain values, no engine's types.

A **page** is one or more engine blocks. A **variant** says in what the computation of a request differs from the model as
its workers loaded it; each worker makes its own shard's namespace of it, so that scheduler and ranks can't disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kv_types.computation import Adapter
from kv_types.ids import KEY_BYTES, NO_LIFE, LifeId, Stamp

IN_PLACE = -1
"""Among the blocks of a load: one that holds its tokens already and is not to be written."""


@dataclass(frozen=True, slots=True)
class Variant:
    """How a request's computation differs from the workers' base namespace; a key in dictionaries.

    `weights_version` None: the weights as the workers named them when they loaded them.
    """

    weights_version: str | None = None
    adapter: Adapter | None = None
    tenant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """Bring pages [start, pages) of a chain into engine blocks.

    `keys`: for each rank, by its number, the packed chain from the root to the last page to load. `block_ids`: the
    engine's blocks of pages start…, blocks_per_page of each, in order, or IN_PLACE. They were looked up and counted already.
    """

    request_id: str
    variant: Variant
    keys: tuple[bytes, ...]
    start: int
    block_ids: tuple[int, ...]
    is_async: bool

    @property
    def pages(self) -> int:
        """Pages of the chain up to the last to load."""
        return len(self.keys[0]) // KEY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveJob:
    """Store pages [start, pages) of a chain from engine blocks; fields as in LoadJob.

    The blocks hold confirmed KV and are neither freed nor written before the worker has told that `number` is done.
    `stamp` was loaded before the request reused anything, or its chain was held against all that came since (R1).
    `computed_from`: pages before that one came from the engine's own cache or were loaded, the request has computed the rest,
    from the wall clock `computed_from_ms` on. None and 0: that is not known, and origins are told with less precision.
    """

    number: int
    request_id: str
    variant: Variant
    keys: tuple[bytes, ...]
    start: int
    block_ids: tuple[int, ...]
    stamp: Stamp
    computed_from: int | None = None
    computed_from_ms: int = 0

    @property
    def pages(self) -> int:
        """Pages of the chain up to the last to store."""
        return len(self.keys[0]) // KEY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step's orders. `life` and `view`: the header as the scheduler applied it at this step's boundary.

    `interrupted`: requests whose blocks are taken away in this step (preempted): saves that still read them end first.
    `recompute_block_ids`: blocks to report as failed to load, though nothing was loaded, so that the engine computes them anew.
    `freed`: requests whose blocks the engine frees once they are told as saved.
    """

    step: int
    life: LifeId = NO_LIFE
    view: int = 0
    loads: tuple[LoadJob, ...] = ()
    saves: tuple[SaveJob, ...] = ()
    interrupted: frozenset[str] = frozenset()
    recompute_block_ids: frozenset[int] = frozenset()
    freed: frozenset[str] = frozenset()


@dataclass(slots=True)
class WorkerReport:
    """What one rank did since its last report; reports of all ranks of a step are merged.

    `step`: number of the plan whose execution it reports.
    `saved`: numbers of save jobs that are over on this rank, each with the pages that it counts as stored or known. The
    scheduler's side takes a job for done when all ranks have told it. `failed_loads`: request → first page (index in its
    chain) that is not in place.
    """

    step: int = 0
    saved: dict[int, list[int]] = field(default_factory=dict)
    failed_loads: dict[str, int] = field(default_factory=dict)
    version_numbers: tuple[int, ...] = ()

    def merge(self, other: WorkerReport) -> WorkerReport:
        """Return both ranks' reports as one."""
        saved = {number: [*pages] for number, pages in self.saved.items()}
        for number, pages in other.saved.items():
            saved.setdefault(number, []).extend(pages)
        failed = dict(self.failed_loads)
        for request_id, page in other.failed_loads.items():
            failed[request_id] = min(page, failed.get(request_id, page))
        return WorkerReport(
            min(self.step, other.step), saved, failed, self.version_numbers + other.version_numbers
        )
