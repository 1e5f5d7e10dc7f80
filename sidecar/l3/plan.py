"""What the planner of loads is told (events), and what it tells its shell to do (actions). Plain values."""

from __future__ import annotations

from dataclasses import dataclass

from kv_types.ids import NamespaceId, PageKey
from kv_types.loading import ComputeCost, LoadDecision
from kv_types.outcomes import MissReason
from sidecar.l3.loads import RowLoaded


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRow:
    """One row of a request, as the arena has it now."""

    namespace: NamespaceId
    parent: PageKey | None
    keys: bytes
    """n × 32 bytes."""
    page_bytes: int
    resident: int
    """Leading pages that the arena has."""
    ended_by: MissReason = MissReason.NONE
    """Why nothing can be loaded for it."""


# --- events ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Somebody wants pages until a deadline. `request` was never used before."""

    request: int
    rows: tuple[AskedRow, ...]
    deadline_ns: int
    is_group: bool = False
    compute: ComputeCost | None = None
    """What computing each row's pages takes; None: whatever is there is loaded."""
    now_ns: int


@dataclass(frozen=True, slots=True)
class Waited:
    """Somebody waits for this request: it goes before those that nobody waits for."""

    request: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Nobody wants this request's answer any more; it gets none."""

    request: int


@dataclass(frozen=True, slots=True)
class Probed:
    """L3 was asked: one reason a page of the probe, NONE where a record is there that seems valid."""

    probe: int
    results: tuple[MissReason, ...]
    now_ns: int


@dataclass(frozen=True, slots=True)
class AlreadyThere:
    """No place was needed: the page of this flight is resident."""

    flight: int


@dataclass(frozen=True, slots=True)
class BeingPut:
    """No place was given: a client fills one for the same page."""

    flight: int


@dataclass(frozen=True, slots=True)
class NoPlace:
    """No place could be given, and why."""

    flight: int
    reason: MissReason


@dataclass(frozen=True, slots=True)
class NotTried:
    """The flight did not begin, because one before it in its run did not."""

    flight: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """A transfer has ended and writes no more: NONE when the record lies in its place, verified."""

    flight: int
    reason: MissReason
    now_ns: int


@dataclass(frozen=True, slots=True)
class Published:
    """The page of this flight became visible; its place is the page's."""

    flight: int


@dataclass(frozen=True, slots=True)
class NotPublished:
    """The page of this flight was refused at its publication, or was there already; its place has been given back."""

    flight: int
    reason: MissReason
    """NONE: it was there already."""


@dataclass(frozen=True, slots=True)
class BecameResident:
    """Somebody else has stored these pages, parents first."""

    keys: tuple[PageKey, ...]


@dataclass(frozen=True, slots=True)
class StoredThere:
    """This node has stored these pages in L3: they are not absent there any more."""

    keys: tuple[PageKey, ...]


@dataclass(frozen=True, slots=True)
class TimeCame:
    """The time of `Planner.due_ns` has come. Too early does no harm."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class BecameStale:
    """Nothing may be served now, so that nobody needs to wait."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The sidecar ends: nothing is begun any more."""


FlightTold = Published | NotPublished | AlreadyThere | BeingPut | NoPlace | NotTried
"""What ends a flight, with nothing left to give back."""

Event = (
    Asked | Waited | GivenUp | Probed | Arrived | FlightTold | BecameResident | StoredThere | TimeCame | BecameStale | Closing
)  # fmt: skip

# --- actions ---


@dataclass(frozen=True, slots=True)
class ProbedPage:
    """A page that L3 is asked about."""

    namespace: NamespaceId
    key: PageKey
    parent: PageKey | None
    page_bytes: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask L3 for the headers of these, and answer with Probed, whatever becomes of it."""

    probe: int
    pages: tuple[ProbedPage, ...]
    deadline_ns: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Reserve places for consecutive pages of one chain that follow `parent`, and get the records into them.

    Each flight is answered by exactly one of AlreadyThere, BeingPut, NoPlace, NotTried and Arrived.
    """

    namespace: NamespaceId
    parent: PageKey | None
    keys: tuple[PageKey, ...]
    flights: tuple[int, ...]
    deadline_ns: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Make the page of a flight that has arrived visible, and answer with Published or NotPublished at once."""

    flight: int


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Give back the place of a flight that has arrived. There is no answer."""

    flight: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell whoever asked. The planner knows nothing of the request any more."""

    request: int
    rows: tuple[RowLoaded, ...]
    decision: LoadDecision | None = None
    """What was chosen between loading and computing; None where L3 had nothing to load."""


Action = Probe | Fetch | Publish | GiveBack | Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much a planner takes on at a time. Related to each other and to the product's limits by whoever wires it."""

    requests: int
    pages: int
    """Pages that are asked about, wanted or on their way."""
    flights: int
    flight_bytes: int
    """Places reserved; one page may be larger than that, alone."""
    run_pages: int
    """Pages of one request that are fetched before another request has its turn."""
    probe_pages: int
    """Pages of one question."""
    absent_pages: int
    absent_ns: int
    """How long it is remembered that L3 has no valid record under a key."""
    put_awaited_ns: int
    """How long a page is awaited that a client is storing."""
    sent_ns: int
    """How long what was sent may take at least: longer than its caller waits, if need be."""
