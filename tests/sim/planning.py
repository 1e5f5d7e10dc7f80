"""Draws the plan of a seed: a fleet with its own mixture of settings, wishes and faults, or of one kind of trouble."""

from __future__ import annotations

import random

from tests.sim.clockwork import MS, US, S
from tests.sim.plan import MODELS, PAGE, PATHS, TENANTS, Fault, Plan, Wish
from tests.sim.profiles import PROFILE, PROFILES, draw_clocks

OF_SERVERS = ("flush", "restart", "old_dump", "stop_server", "full")
OF_REPLICATION = ("promote_zombie", "promote_zombie", "promote", "lag", "cut_replication", "fail_back")
OF_NODES = (
    "stand_still",
    "suspend",
    "stop_sidecar",
    "stop_worker",
    "crash",
    "goodbye",
    "kill_worker",
    "wall_step",
)
ALSO_WITH_LOG = frozenset({"evict", "damage", "reserve", "reset"})
"""Of what befalls servers of pages: what leaves a log that is on them alone."""
BEGINNING_ANEW = frozenset({"flush", "restart", "old_dump", "promote_zombie", "promote", "fail_back"})
"""What makes the log begin a new incarnation."""
OF_PAGES = (
    "page_evict", "page_evict", "page_damage", "page_damage", "page_reserve", "page_full", "page_flush", "page_restart",
    "page_old_dump", "page_stop_server", "page_reset", "page_partition", "page_partition_replies", "page_slow",
)  # fmt: skip
OF_PAGE_REPLICATION = (
    "page_promote_zombie",
    "page_promote",
    "page_lag",
    "page_fail_back",
    "page_cut_replication",
)
OF_NETWORK = ("partition", "partition_replies", "partition_requests", "slow")
SELECTORS = (
    "all",
    "namespace",
    "model",
    "tenant",
    "key",
    "key",
    "key",
    "producer",
    "tag",
    "since",
    "revisions",
    "key_producer",
)


def plan_of(seed: int) -> Plan:
    """Draw the plan of a seed. Most are small; each has its own mixture of faults, some have none."""
    draw = random.Random(seed)
    plan = Plan(seed)
    plan.sidecars = draw.choice((1, 2, 2, 2, 3))
    plan.workers = draw.choice((1, 1, 2))
    plan.servers = draw.choice((1, 2, 2, 2, 3))
    plan.replicas = plan.servers - 1
    plan.duration_ns = int(draw.uniform(1.2, 3.5) * S)
    plan.is_settled = draw.random() < 0.8
    plan.l3 = draw.choice(("", "log", "own", "own"))
    plan.page_servers = draw.choice((1, 2)) if plan.l3 == "own" else 0
    plan.connections, plan.window = draw.choice((1, 2)), draw.choice((1, 2, 4))
    plan.queue_pages = draw.choice((4, 16))
    plan.replicas_named_apart = draw.random() < 0.3
    plan.give_way_every = draw.choice((0.0, 30.0, 100.0, 300.0))
    plan.think_ns = draw.choice(((5 * MS, 100 * MS), (20 * MS, 500 * MS)))
    plan.pass_ns = draw.choice(((1 * MS, 20 * MS), (5 * MS, 300 * MS), (100 * MS, 1500 * MS)))
    plan.turn_ns = draw.choice((100 * US, 1 * MS, 20 * MS))
    plan.spaces = tuple(
        (model, "1", tenant)
        for model in MODELS
        for tenant in TENANTS
        if (model, tenant) == ("m", "") or draw.random() < 0.3
    )
    plan.paths = tuple(draw.sample(PATHS, draw.randint(2, 4)))
    plan.ring_records = draw.choice((2, 4, 8))
    if draw.random() < 0.3:
        plan.log_limits = (
            draw.choice((2, 4)),
            draw.choice((1, 2, 100)),
            draw.choice((2, 4)),
            draw.choice((4, 8)),
            2,
        )
    if draw.random() < 0.15:
        plan.arena_entries = 10
    if draw.random() < 0.3:
        plan.repeats = 0.05
    draw_clocks(plan, draw)
    plan.switches_weights = draw.random() < 0.2
    plan.threads = 2 if draw.random() < 0.2 else 1
    if draw.random() < 0.25:
        plan.engines, plan.engine_mode = draw.choice((1, 1, 2)), draw.choice(("keep", "drop"))
    plan.notices_ns = draw.choice((5 * MS, 5 * MS, 600 * MS))
    if plan.switches_weights:
        plan.spaces = tuple(names for names in plan.spaces if names[0] == "m")
        plan.engines = 0
        plan.weights_at_ns = int(draw.uniform(0.2, 0.7) * plan.duration_ns)
    _draw_wishes(plan, draw)
    _draw_faults(plan, draw)
    PROFILES[seed // PROFILE % len(PROFILES)](plan, draw)
    plan.faults.sort(key=lambda fault: fault.at_ns)
    return plan


def _draw_wishes(plan: Plan, draw: random.Random) -> None:
    for _ in range(draw.randint(1, 4)):
        plan.wishes.append(
            Wish(
                int(draw.uniform(0.15, 0.9) * plan.duration_ns),
                draw.choice(SELECTORS),
                draw.choice(("hidden", "hidden", "hidden", "drained", "none")),
                draw.random(),
            )
        )
    if draw.random() < 0.2:  # a storm, whose records compaction and trimming have to do with
        at_ns = int(draw.uniform(0.2, 0.7) * plan.duration_ns)
        for index in range(draw.randint(3, 10)):
            plan.wishes.append(
                Wish(
                    at_ns + index * draw.randint(1, 30) * MS,
                    draw.choice(("key", "producer", "tag", "model")),
                    "hidden",
                    draw.random(),
                )
            )


def _draw_faults(plan: Plan, draw: random.Random) -> None:
    kinds: list[str] = []
    if plan.servers > 1:
        kinds += OF_REPLICATION
    kinds += draw.choice(((), OF_SERVERS, OF_NODES, OF_NETWORK, OF_SERVERS + OF_NODES, OF_NODES + OF_NETWORK))
    if plan.l3 and draw.random() < 0.7:
        kinds += [kind for kind in OF_PAGES if plan.l3 == "own" or kind.removeprefix(PAGE) in ALSO_WITH_LOG]
        kinds += OF_PAGE_REPLICATION if plan.page_servers > 1 else ()
    if plan.engines and plan.engine_mode == "keep":
        # its member is known to one incarnation only: see docs/invalidation.md, what is not shown
        kinds = [kind for kind in kinds if kind not in BEGINNING_ANEW]
    if not kinds or draw.random() < 0.1:
        return
    picked = draw.sample(kinds, min(len(kinds), draw.randint(1, 3)))
    for _ in range(draw.choice((1, 1, 2, 2, 3))):
        kind = draw.choice(picked)
        near = (
            draw.choice(plan.wishes).at_ns
            if draw.random() < 0.6
            else int(draw.uniform(0.1, 0.9) * plan.duration_ns)
        )
        at_ns = max(1, near + int(draw.gauss(0, 0.3) * plan.lease_ns))
        length_ns = int(draw.choice((0.1, 0.5, 1.0, 2.0, 3.0)) * draw.uniform(0.5, 1.2) * plan.lease_ns)
        plan.faults.append(Fault(at_ns, kind, length_ns, draw.random(), draw.random()))
