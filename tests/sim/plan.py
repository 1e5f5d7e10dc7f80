"""A plan: everything that a seed decides beforehand: the fleet, its settings, what is asked of it and what befalls it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.sim.clockwork import MS, US, S
from tests.sim.spaces import Path

PATHS: tuple[Path, ...] = ((0, 0, 0), (0, 0, 1), (0, 1), (1, 0, 0), (1, 0), (0,))
MODELS = ("m", "o")
TENANTS = ("", "t")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that befalls the fleet: what, when, for how long, to whom."""

    at_ns: int
    kind: str
    length_ns: int
    pick: float
    """Chooses among whom it may befall, 0 to 1."""
    size: float


@dataclass(frozen=True, slots=True)
class Wish:
    """An invalidation that somebody asks for."""

    at_ns: int
    selector: str
    wait: str
    pick: float


@dataclass
class Plan:
    """What one seed runs."""

    seed: int
    sidecars: int = 2
    workers: int = 1
    servers: int = 1
    replicas: int = 0
    lease_ns: int = 1 * S
    pause_ns: int = 500 * MS
    drift: float = 0.05
    call_ns: int = 250 * MS
    skew_ms: int = 200
    duration_ns: int = 5 * S
    turn_ns: int = 200 * US
    socket_ns: int = 200 * US
    shelf_ns: int = 200 * MS
    think_ns: tuple[int, int] = (20 * MS, 500 * MS)
    pass_ns: tuple[int, int] = (5 * MS, 400 * MS)
    give_way_every: float = 60.0
    keep: float = 0.8
    has_shelf: bool = False
    is_settled: bool = False
    """Whether the log was there long before, so that its incarnation is settled."""
    replicas_named_apart: bool = False
    arena_entries: int = 32
    ring_records: int = 8
    reservation_s: float = 1.5
    log_limits: tuple[int, int, int, int, int] = (1000, 100, 50, 100, 50)
    is_compacted: bool = False
    switches_weights: bool = False
    """Whether workers follow announced weights, and new ones are loaded and announced at some time."""
    threads: int = 1
    """Threads of a worker, which share its L1."""
    engines: int = 0
    engine_mode: str = "keep"
    paths: tuple[Path, ...] = PATHS
    spaces: tuple[tuple[str, str, str], ...] = (("m", "1", ""),)
    repeats: float = 0.0
    """How likely a message to a server arrives twice."""
    rates_ppm: tuple[int, ...] = ()
    wall_errors_ms: tuple[int, ...] = ()
    notices_ns: int = 5 * MS
    """How long, at most, a client takes to notice that its sidecar has died."""
    weights_at_ns: int = 0
    """When new weights are loaded; they are announced once everybody has them."""
    faults: list[Fault] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether nothing befalls the fleet and nothing is compacted: then exactly what records select goes."""
        return not self.faults and not self.repeats and not self.is_compacted

    @property
    def window_ns(self) -> int:
        """How long a fence waits for a silent member."""
        return int((self.lease_ns + self.pause_ns) * (1 + self.drift)) + 1


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
BEGINNING_ANEW = frozenset({"flush", "restart", "old_dump", "promote_zombie", "promote", "fail_back"})
"""What makes the log begin a new incarnation."""
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
    plan.has_shelf = draw.random() < 0.5
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
    _draw_clocks(plan, draw)
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


def _draw_clocks(plan: Plan, draw: random.Random) -> None:
    limit = int(plan.drift * 490_000)
    plan.rates_ppm = tuple(
        draw.choice((0, -limit, limit, draw.randint(-limit, limit))) for _ in range(plan.sidecars)
    )
    error_ms = plan.skew_ms // 2 - 1
    plan.wall_errors_ms = tuple(draw.randint(-error_ms, error_ms) for _ in range(plan.sidecars))


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


# --- profiles: seeds from one million on are of one kind of trouble each, so that what needs just that is met more often ---


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
    _draw_clocks(plan, draw)
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
    plan.is_compacted = True
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
    _draw_clocks(plan, draw)
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
    """Sidecars that leave in good order, with clients that go on, and records right after."""
    plan.is_settled, plan.switches_weights = True, False
    plan.engines, plan.engine_mode = draw.choice((0, 1, 2)), "drop"
    plan.think_ns, plan.pass_ns = (5 * MS, 100 * MS), draw.choice(((1 * MS, 20 * MS), (5 * MS, 300 * MS)))
    at_ns = int(draw.uniform(0.3, 0.7) * plan.duration_ns)
    plan.faults = [Fault(at_ns, "goodbye", draw.randint(500, 1500) * MS, draw.random(), draw.random())]
    plan.wishes = [
        Wish(at_ns + draw.randint(0, 700) * MS, draw.choice(("all", "model", "key")), "hidden", draw.random())
        for _ in range(draw.randint(1, 4))
    ]


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
    _mixture, _zombies, _pauses, _losses, _compaction, _lives, _engines, _wall_steps, _deaths, _goodbyes,
)  # fmt: skip
