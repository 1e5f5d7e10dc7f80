"""A plan: everything that a seed decides beforehand: the fleet, its settings, what is asked of it and what befalls it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.sim.clockwork import MS, US, S
from tests.sim.spaces import Path

PATHS: tuple[Path, ...] = ((0, 0, 0), (0, 0, 1), (0, 1), (1, 0, 0), (1, 0), (0,))
PAGE = "page_"
"""What a fault's kind begins with that befalls servers of pages, and not those of the log."""
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
    think_ns: tuple[int, int] = (20 * MS, 500 * MS)
    pass_ns: tuple[int, int] = (5 * MS, 400 * MS)
    give_way_every: float = 60.0
    keep: float = 0.8
    l3: str = ""
    """Where pages are shared: "log", on the log's servers, "own", on servers of their own; empty: nowhere."""
    page_servers: int = 0
    """Servers of their own; the first is the primary at first."""
    window: int = 4
    """Requests on one connection that moves pages."""
    connections: int = 2
    queue_pages: int = 8
    """Pages that wait to be stored in L3."""
    record_ttl_s: int = 3600
    is_settled: bool = False
    """Whether the log was there long before, so that its incarnation is settled."""
    replicas_named_apart: bool = False
    arena_entries: int = 32
    ring_records: int = 8
    reservation_s: float = 1.5
    log_limits: tuple[int, int, int, int, int] = (1000, 100, 50, 100, 50)
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
    speeds: tuple[float, ...] = ()
    """Tokens a second that workers may say that they compute; 0, and none at all: they say nothing, and all is loaded."""
    weights_at_ns: int = 0
    """When new weights are loaded; they are announced once everybody has them."""
    faults: list[Fault] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether nothing befalls the fleet: then exactly what the log selects goes."""
        return not self.faults and not self.repeats

    @property
    def window_ns(self) -> int:
        """How long a fence waits for a silent member."""
        return int((self.lease_ns + self.pause_ns) * (1 + self.drift)) + 1
