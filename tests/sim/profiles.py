"""Profiles: seeds from one million on are of one kind of trouble each, so that what needs just that is met more often."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.sim.clockwork import MS, S
from tests.sim.plan import PATHS, Fault, Plan, Wish


def draw_clocks(plan: Plan, draw: random.Random) -> None:
    """Clocks of the fleet's machines, as far apart as it is told that they may be."""
    limit = int(plan.drift * 490_000)
    plan.rates_ppm = tuple(
        draw.choice((0, -limit, limit, draw.randint(-limit, limit))) for _ in range(plan.sidecars)
    )
    error_ms = plan.skew_ms // 2 - 1
    plan.wall_errors_ms = tuple(draw.randint(-error_ms, error_ms) for _ in range(plan.sidecars))


def _mixture(plan: Plan, draw: random.Random) -> None:
    """Seeds below one million: whatever was drawn."""


def _zombies(plan: Plan, draw: random.Random) -> None:
    """Promotions while the old primary lives on, still reached by some, and records on both sides of them."""
    plan.servers = max(plan.servers, 2)
    plan.replicas = plan.servers - 1
    plan.replicas_named_apart = draw.random() < 0.7
    plan.engines = 0
    plan.duration_ns = int(draw.uniform(2.5, 5) * S)
    at_ns = int(draw.uniform(0.3, 0.8) * S)
    kinds = draw.choice(
        (
            ("promote_zombie",),
            ("fail_back",),
            ("promote_zombie", "partition"),
            ("cut_replication", "promote_zombie"),
        )
    )
    plan.faults = [
        Fault(
            at_ns + draw.randint(0, 600) * MS, kind, int(draw.uniform(1, 4) * S), draw.random(), draw.random()
        )
        for kind in kinds
    ]
    _spread(plan, draw, draw.randint(2, 5))


def _pauses(plan: Plan, draw: random.Random) -> None:
    """A machine that is cut off and whose clock stands still, while somebody fences without it."""
    plan.sidecars = max(plan.sidecars, 2)
    draw_clocks(plan, draw)
    plan.is_settled, plan.engines = True, 0
    plan.duration_ns = int(draw.uniform(3, 4) * S)
    plan.think_ns, plan.pass_ns = (5 * MS, 100 * MS), (1 * MS, 20 * MS)
    at_ns, pick = int(draw.uniform(0.4, 1.2) * S), draw.random() * 0.999
    node = int(pick * plan.sidecars)
    plan.faults = [
        Fault(at_ns, "partition", 3 * S, pick, 0.1),
        Fault(at_ns + draw.randint(0, 500) * MS, "stand_still", plan.pause_ns, pick, draw.random()),
    ]
    other = (node + 1) % plan.sidecars
    plan.wishes = [
        Wish(
            at_ns + draw.randint(-50, 400) * MS,
            draw.choice(("all", "model", "key")),
            "hidden",
            (other + 0.5) / plan.sidecars,
        )
    ]


def _losses(plan: Plan, draw: random.Random) -> None:
    """Servers that lose what they had, with machines that don't hear of it."""
    plan.engines = 0
    plan.duration_ns = int(draw.uniform(2.5, 4.5) * S)
    at_ns, pick = int(draw.uniform(0.4, 1.2) * S), draw.random() * 0.999
    plan.faults = [
        Fault(
            at_ns,
            draw.choice(("flush", "restart", "old_dump")),
            int(draw.uniform(0.01, 0.3) * S),
            draw.random(),
            draw.random(),
        )
    ]
    if draw.random() < 0.7:
        kind = draw.choice(("partition", "partition_replies", "stop_sidecar", "slow"))
        plan.faults.append(
            Fault(at_ns - draw.randint(0, 300) * MS, kind, int(draw.uniform(0.5, 3) * S), pick, 0.1)
        )
    _spread(plan, draw, draw.randint(1, 4))


def _compaction(plan: Plan, draw: random.Random) -> None:
    """Storms of records in a log that keeps few, with sidecars that come late or start again in their midst."""
    plan.log_limits = (
        draw.choice((1, 2)),
        draw.choice((1, 2, 100)),
        2,
        draw.choice((3, 4)),
        draw.choice((1, 2)),
    )
    plan.engines, plan.is_settled = 0, True
    plan.pass_ns = draw.choice(((20 * MS, 200 * MS), (100 * MS, 600 * MS)))
    at_ns = int(draw.uniform(0.3, 0.6) * plan.duration_ns)
    plan.wishes = [
        Wish(
            at_ns + draw.randint(0, 800) * MS,
            draw.choice(("key", "key", "producer", "tag", "namespace")),
            "hidden",
            draw.random(),
        )
        for _ in range(draw.randint(6, 16))
    ]
    kind = draw.choice(("crash", "partition_replies", "slow", "stop_sidecar", "partition"))
    plan.faults = [
        Fault(
            at_ns + draw.randint(-100, 500) * MS,
            kind,
            draw.randint(20, 900) * MS,
            draw.random(),
            draw.random(),
        )
    ]


def _lives(plan: Plan, draw: random.Random) -> None:
    """Sidecars that die and start again at once, and workers that don't notice."""
    plan.is_settled, plan.engines = True, 0
    plan.notices_ns = draw.choice((600 * MS, 1500 * MS))
    plan.think_ns, plan.pass_ns = (5 * MS, 100 * MS), (1 * MS, 20 * MS)
    at_ns = int(draw.uniform(0.3, 0.8) * plan.duration_ns)
    plan.faults = [
        Fault(
            at_ns,
            draw.choice(("crash", "crash", "goodbye")),
            draw.randint(1, 60) * MS,
            draw.random(),
            draw.random(),
        )
    ]
    plan.wishes = [
        Wish(
            at_ns + draw.randint(-100, 400) * MS,
            draw.choice(("all", "model", "key")),
            "hidden",
            draw.random(),
        )
        for _ in range(draw.randint(1, 3))
    ]


def _engines(plan: Plan, draw: random.Random) -> None:
    """Engines with an index of their own, whose requests run while records come."""
    plan.engines, plan.engine_mode = draw.choice((1, 2)), draw.choice(("keep", "drop"))
    plan.is_settled, plan.faults, plan.switches_weights = True, [], False
    plan.pass_ns = draw.choice(((20 * MS, 200 * MS), (100 * MS, 600 * MS)))
    _spread(plan, draw, draw.randint(2, 6))


def _wall_steps(plan: Plan, draw: random.Random) -> None:
    """Wall clocks of servers that step while somebody fences."""
    plan.is_settled, plan.engines = True, 0
    plan.sidecars = max(plan.sidecars, 2)
    draw_clocks(plan, draw)
    _spread(plan, draw, 2)
    plan.faults = [
        Fault(
            wish.at_ns + draw.randint(-20, 20) * MS, "wall_step", 1 * MS, draw.random(), draw.uniform(0.6, 1)
        )
        for wish in plan.wishes
    ]
    plan.faults.append(
        Fault(plan.wishes[0].at_ns - 50 * MS, "partition_replies", 900 * MS, draw.random() * 0.999, 0.1)
    )


def _deaths(plan: Plan, draw: random.Random) -> None:
    """Workers that are killed in the middle of what they do."""
    plan.give_way_every = draw.choice((10.0, 20.0))
    plan.faults = [
        Fault(
            int(draw.uniform(0.2, 0.9) * plan.duration_ns),
            "kill_worker",
            draw.randint(1, 300) * MS,
            draw.random(),
            draw.random(),
        )
        for _ in range(4)
    ]


def _goodbyes(plan: Plan, draw: random.Random) -> None:
    """Sidecars that leave in good order, with clients that go on, and records right after, mostly through somebody else."""
    plan.sidecars = max(plan.sidecars, 2)
    draw_clocks(plan, draw)
    plan.is_settled, plan.switches_weights = True, False
    plan.engines, plan.engine_mode = draw.choice((0, 1, 2)), "drop"
    plan.think_ns, plan.pass_ns = (5 * MS, 100 * MS), draw.choice(((1 * MS, 20 * MS), (5 * MS, 300 * MS)))
    at_ns = int(draw.uniform(0.3, 0.7) * plan.duration_ns)
    pick = draw.random() * 0.999
    others = [
        (number + 0.5) / plan.sidecars
        for number in range(plan.sidecars)
        if number != int(pick * plan.sidecars)
    ]
    plan.faults = [Fault(at_ns, "goodbye", draw.randint(500, 1500) * MS, pick, draw.random())]
    plan.wishes = [
        Wish(
            at_ns + draw.choice((draw.randint(0, 100), draw.randint(0, 700))) * MS,
            draw.choice(("all", "model", "key")),
            "hidden",
            draw.choice((*others, draw.random())),
        )
        for _ in range(draw.randint(1, 4))
    ]


def _outliving(plan: Plan, draw: random.Random) -> None:
    """Engines that keep their pages, below sidecars that crash or leave right behind a record, which somebody else fences."""
    plan.sidecars = max(plan.sidecars, 2)
    draw_clocks(plan, draw)
    plan.is_settled, plan.switches_weights = True, False
    plan.engines, plan.engine_mode = draw.choice((1, 1, 2)), "keep"
    plan.think_ns, plan.pass_ns = (5 * MS, 100 * MS), draw.choice(((1 * MS, 20 * MS), (5 * MS, 300 * MS)))
    plan.notices_ns = draw.choice((5 * MS, 5 * MS, 600 * MS))
    at_ns = int(draw.uniform(0.3, 0.7) * plan.duration_ns)
    pick = draw.random() * 0.999
    number = int(pick * plan.sidecars)
    other = (draw.choice([one for one in range(plan.sidecars) if one != number]) + 0.5) / plan.sidecars
    plan.wishes = [Wish(at_ns, draw.choice(("all", "model", "key")), "hidden", other)]
    kind = draw.choice(("crash", "crash", "goodbye"))
    plan.faults = [
        Fault(at_ns + draw.randint(0, 100) * MS, kind, draw.randint(300, 3000) * MS, pick, draw.random())
    ]


def _splits(plan: Plan, draw: random.Random) -> None:
    """An old primary that lives on for somebody who reaches nothing else, and fences there."""
    plan.servers, plan.replicas, plan.engines = 2, 1, 0
    plan.sidecars = max(plan.sidecars, 2)
    draw_clocks(plan, draw)
    plan.duration_ns = int(draw.uniform(3.5, 5) * S)
    plan.think_ns, plan.pass_ns = (5 * MS, 100 * MS), (1 * MS, 20 * MS)
    pick = draw.random() * 0.999
    at_ns = draw.randint(200, 600) * MS
    plan.faults = [Fault(at_ns, "split", 5 * S, pick, 0.9)]
    plan.wishes = [
        Wish(at_ns + draw.randint(0, 1800) * MS, draw.choice(("all", "model", "key")), "hidden", pick)
        for _ in range(draw.randint(1, 4))
    ]


def _bounces(plan: Plan, draw: random.Random) -> None:
    """A primary that loses its newest records to a replica without them, and is the primary again before anybody asks."""
    plan.servers, plan.replicas, plan.engines = 2, 1, 0
    plan.l3, plan.page_servers = "own", 1  # which have not lost what they keep
    plan.is_settled, plan.switches_weights = True, False
    plan.notices_ns = 5 * MS
    plan.duration_ns = int(draw.uniform(2.5, 3.5) * S)
    # what was stored before is not overwritten at once: few look, at many chains
    plan.think_ns, plan.pass_ns, plan.paths = (20 * MS, 200 * MS), (1 * MS, 20 * MS), PATHS
    at_ns = draw.randint(400, 700) * MS
    plan.faults = [Fault(at_ns, "cut_replication", 400 * MS, draw.random(), draw.random())]
    plan.faults += [
        Fault(at_ns + 350 * MS, "crash", 150 * MS, (number + 0.5) / plan.sidecars, 0.5)
        for number in range(plan.sidecars)
    ]
    plan.faults.append(Fault(at_ns + 390 * MS, "bounce", 1 * MS, draw.random(), draw.random()))
    plan.wishes = [Wish(at_ns + draw.randint(20, 150) * MS, "tag", "none", draw.random())]
    plan.wishes += [
        Wish(
            at_ns + draw.randint(560, 1100) * MS,
            draw.choice(("all", "model", "key", "key")),
            "hidden",
            draw.random(),
        )
        for _ in range(draw.randint(1, 2))
    ]


def _stalls(plan: Plan, draw: random.Random) -> None:
    """Workers that stand still while they store, for longer than what they reserved is kept."""
    plan.is_settled, plan.engines, plan.switches_weights = True, 0, False
    plan.workers, plan.arena_entries, plan.turn_ns = 2, 10, draw.choice((1 * MS, 20 * MS))
    plan.reservation_s = 0.3
    plan.duration_ns = int(draw.uniform(2.5, 4) * S)
    plan.give_way_every = draw.choice((10.0, 30.0))
    plan.think_ns, plan.pass_ns = (5 * MS, 40 * MS), (1 * MS, 20 * MS)
    plan.faults = [
        Fault(
            int(draw.uniform(0.2, 0.9) * plan.duration_ns),
            "stop_worker",
            draw.randint(350, 700) * MS,
            draw.random(),
            draw.random(),
        )
        for _ in range(6)
    ]
    _spread(plan, draw, draw.randint(1, 3))


def _sharing(plan: Plan, draw: random.Random) -> None:
    """Nodes that share pages while little fits each, and records that ask where pages come from."""
    _share(plan, draw)
    plan.faults = []
    plan.duration_ns = int(draw.uniform(1.5, 3) * S)
    plan.arena_entries = draw.choice((6, 10, 10, 16))
    plan.wishes = [
        Wish(
            int(draw.uniform(0.2, 0.95) * plan.duration_ns),
            draw.choice(("producer", "producer", "tag", "since", "key", "key_producer", "revisions", "all")),
            "hidden",
            draw.random(),
        )
        for _ in range(draw.randint(2, 6))
    ]


def _page_servers(plan: Plan, draw: random.Random) -> None:
    """Servers of pages that are slow, full, stopped, flushed, cut off, and whose pages go one by one or change."""
    _share(plan, draw)
    plan.l3, plan.page_servers = "own", draw.choice((1, 1, 2))
    plan.duration_ns = int(draw.uniform(1.5, 3) * S)
    kinds = (
        "page_evict", "page_damage", "page_reserve", "page_full", "page_flush", "page_stop_server", "page_reset",
        "page_partition", "page_partition_replies", "page_slow", "page_slow", "kill_worker", "crash",
    )  # fmt: skip
    _scatter(plan, draw, kinds, count=draw.randint(2, 6), within=(0.15, 0.9), length_ms=(20, 900))
    _spread(plan, draw, draw.randint(1, 4))


def _page_failovers(plan: Plan, draw: random.Random) -> None:
    """Old pages that come back: out of a dump, or with a replica that had not heard of the newest."""
    _share(plan, draw)
    plan.l3, plan.page_servers = "own", 2
    plan.duration_ns = int(draw.uniform(2, 3.5) * S)
    kinds = (
        "page_promote_zombie", "page_promote", "page_fail_back", "page_old_dump", "page_restart", "page_lag",
        "page_cut_replication",
    )  # fmt: skip
    _scatter(plan, draw, kinds, count=draw.randint(1, 3), within=(0.2, 0.8), length_ms=(50, 1200))
    _spread(plan, draw, draw.randint(2, 6))


def _weighing(plan: Plan, draw: random.Random) -> None:
    """Workers that say how fast they compute, some faster than pages come, of servers that are slow at times."""
    _share(plan, draw)
    plan.l3, plan.page_servers = "own", 1
    plan.duration_ns = int(draw.uniform(1.5, 3) * S)
    plan.speeds = tuple(
        draw.sample((0.0, 200.0, 2_000.0, 8_000.0, 40_000.0, 1_000_000.0), draw.randint(1, 3))
    )
    kinds = (
        "page_slow",
        "page_slow",
        "page_slow",
        "page_evict",
        "page_partition",
        "page_reset",
        "kill_worker",
        "crash",
    )
    _scatter(plan, draw, kinds, count=draw.randint(1, 5), within=(0.15, 0.9), length_ms=(50, 900))
    _spread(plan, draw, draw.randint(1, 4))


def _share(plan: Plan, draw: random.Random) -> None:
    """Several nodes that compute, look up and load without much thought."""
    plan.l3, plan.page_servers = draw.choice(("log", "own")), 1
    plan.sidecars = max(plan.sidecars, 2)
    draw_clocks(plan, draw)
    plan.is_settled, plan.engines, plan.switches_weights = True, 0, False
    plan.think_ns, plan.pass_ns = (5 * MS, 60 * MS), draw.choice(((1 * MS, 20 * MS), (5 * MS, 150 * MS)))
    plan.connections, plan.window = draw.choice((1, 2)), draw.choice((1, 2, 4))


def _scatter(
    plan: Plan, draw: random.Random, kinds: Sequence[str], *, count: int, within: tuple[float, float], length_ms: tuple[int, int]
) -> None:  # fmt: skip
    """So many faults, any time within this part of the run."""
    plan.faults = [
        Fault(
            int(draw.uniform(*within) * plan.duration_ns), draw.choice(kinds), draw.randint(*length_ms) * MS,
            draw.random(), draw.random(),
        )
        for _ in range(count)
    ]  # fmt: skip


def _spread(plan: Plan, draw: random.Random, count: int) -> None:
    plan.wishes = [
        Wish(
            int(draw.uniform(0.1, 0.95) * plan.duration_ns),
            draw.choice(("all", "model", "key", "key", "tenant")),
            "hidden",
            draw.random(),
        )
        for _ in range(count)
    ]


PROFILE = 1_000_000
PROFILES: tuple[Callable[[Plan, random.Random], None], ...] = (
    _mixture, _zombies, _pauses, _losses, _compaction, _lives, _engines, _wall_steps, _deaths, _goodbyes, _splits, _bounces,
    _stalls, _sharing, _page_servers, _page_failovers, _outliving, _weighing,
)  # fmt: skip
