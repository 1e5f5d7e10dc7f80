"""What an L1 keeps: of L2's pages once it is full, and of its own; what the tiers serve by that, and what it takes in copies.

`python -m benchmarks.l1_promotion [TRACE…]`: on made-up traces of all kinds, or on files that `stratakv simulate` reads. A
full L2 of a share of the distinct blocks stands behind L1; both evict as the tiers do. Pages that L2 has too cost L1 less to
lose, or the same (`--cost 1`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.request_traces import KINDS, Request, made_up
from kv_policy.admission import L1Promotion, Uses, is_promoted_to_l1
from kv_policy.learned import LearnedEviction
from kv_policy.losing_cost import LosingCosts
from kv_policy.trace import Trace
from kv_types.engine_limits import L1_USES_COUNTED_MAX
from kv_types.ids import PageKey
from stratakv.trace_files import read_traces

L1_SHARES = (0.01, 0.02, 0.05, 0.10)
L2_SHARE = 0.5
COST = 0.125
"""Of a page that L2 has too: what it costs at least, however fast that is."""
REQUESTS = 3_000


@dataclass(frozen=True, slots=True)
class Replayed:
    """Of all pages asked for: those that either tier served, and those of L2 that were copied into L1."""

    requested: int
    from_l1: int
    from_l2: int
    promoted: int


class _Cache:
    """Chains of blocks in so many places."""

    def __init__(self, capacity: int, below: _Cache | None = None, *, cost: float = 1.0) -> None:
        self._policy = LearnedEviction(capacity)
        self._policy.set_losing_costs(LosingCosts(elsewhere=cost))
        self._below = below
        self._free = list(range(capacity))
        self._places: dict[int, int] = {}
        self._blocks: dict[int, int] = {}

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def looked(self, chain: Sequence[int], now_ns: int) -> int:
        """Tell of a look-up; returns how many blocks of the chain are here."""
        here = next((at for at, block in enumerate(chain) if block not in self._places), len(chain))
        missing = len(chain) - here
        deepest = self._places[chain[here - 1]] if here else None
        self._policy.looked(
            deepest, resident_pages=here, missing_pages=missing, now_ns=now_ns,
            digest=_digest(chain[here]) if missing else 0,
        )  # fmt: skip
        return here

    def add(self, chain: Sequence[int], here: int, now_ns: int) -> None:
        """Keep what is not here of a chain, its front first, as far as there is room beside itself."""
        held = [self._places[block] for block in chain[:here]]
        for page in held:
            self._policy.hold(page)
        for at in range(here, len(chain)):
            if not self._free and not self._make_room():
                break
            page, parent = self._free.pop(), held[-1] if held else None
            self._policy.insert(page, parent=parent, now_ns=now_ns, digest=_digest(chain[at]))
            self._policy.hold(page)
            self._places[chain[at]], self._blocks[page] = page, chain[at]
            self._policy.set_elsewhere(page, self._is_below(page))
            held.append(page)
        for page in held:
            self._policy.release(page)

    def _is_below(self, page: int) -> bool:
        return self._below is not None and self._blocks[page] in self._below._places

    def _make_room(self) -> bool:
        victims = self._policy.evict(1, is_elsewhere=self._is_below)
        for page in victims:
            del self._places[self._blocks.pop(page)]
            self._free.append(page)
        return bool(victims)


def replay(
    requests: Sequence[Request],
    distinct: int,
    promotion: L1Promotion,
    *,
    l1_share: float,
    l2_share: float = L2_SHARE,
    cost: float = COST,
) -> Replayed:
    """Replay requests through both tiers, each of a share of the distinct blocks.

    `cost`: what L1 takes losing a page for that L2 has too, against one that L2 has not.
    """
    l2 = _Cache(max(1, int(distinct * l2_share)))
    l1 = _Cache(max(1, int(distinct * l1_share)), l2, cost=cost)
    uses = Uses(L1_USES_COUNTED_MAX)
    requested = from_l1 = from_l2 = promoted = 0
    for now_ns, chain in requests:
        in_l1, in_l2 = l1.looked(chain, now_ns), l2.looked(chain, now_ns)
        found = max(in_l1, in_l2)
        is_full = l1.free_pages < len(chain) - in_l1
        counts = [uses.add(_key(block)) for block in chain[in_l1:found]]
        kept = next(
            (
                at
                for at, count in enumerate(counts, in_l1)
                if not is_promoted_to_l1(promotion, uses=count, is_l1_full=is_full)
            ),
            found,
        )
        l2.add(chain, in_l2, now_ns)  # first, as a put comes before its pages are published in L1
        l1.add(chain if kept == found else chain[:kept], in_l1, now_ns)
        requested, from_l1, from_l2 = requested + len(chain), from_l1 + in_l1, from_l2 + found - in_l1
        promoted += kept - in_l1
    return Replayed(requested, from_l1, from_l2, promoted)


def _digest(block: int) -> int:
    return block * 2_654_435_761 % 2**32 or 1


def _key(block: int) -> PageKey:
    return PageKey(block.to_bytes(32, "little"))


def _requests(trace: Trace) -> list[Request]:
    bounds = trace.offsets.tolist()
    return [
        (int(now), trace.blocks[begin:end].tolist())
        for now, begin, end in zip(trace.times_ns, bounds[:-1], bounds[1:], strict=True)
    ]


def main(
    traces: Annotated[list[str] | None, typer.Argument(help="Traces, JSON lines.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Of each trace, from its front on.")] = REQUESTS,
    l2_share: Annotated[float, typer.Option(min=0.001, max=1.0, help="L2's part of the blocks.")] = L2_SHARE,
    cost: Annotated[float, typer.Option(min=0.01, max=1.0, help="Of losing what L2 has too.")] = COST,
) -> None:
    """Print what either promotion serves and costs."""
    read = read_traces(traces or (), merge=False)
    given = {trace.name: _requests(trace)[:requests] for trace in read}
    if not given:
        given = {kind: made_up(kind, 1, requests) for kind in KINDS}
    table = Table(
        title=f"Of all pages asked for, %; L2 of {l2_share:.0%} of the blocks, losing what it has costs {cost:g}"
    )
    for name in (
        "trace",
        "L1 of the blocks",
        "promotion",
        "L1 serves",
        "L2 serves",
        "both serve",
        "copied from L2 into L1",
    ):
        table.add_column(name, justify="left" if name in {"trace", "promotion"} else "right")
    for name, those in given.items():
        distinct = len({block for _, chain in those for block in chain})
        for share in L1_SHARES:
            for promotion in L1Promotion:
                done = replay(those, distinct, promotion, l1_share=share, l2_share=l2_share, cost=cost)
                shown = (done.from_l1, done.from_l2, done.from_l1 + done.from_l2, done.promoted)
                table.add_row(
                    name,
                    f"{share:.0%}",
                    promotion.value,
                    *(f"{100 * one / done.requested:.1f}" for one in shown),
                )
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
