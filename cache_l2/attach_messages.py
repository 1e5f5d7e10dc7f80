"""Messages of the attach protocol between a worker and its sidecar, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from kv_types.ids import LifeId, NamespaceId, PageKey, Stamp
from kv_types.loading import ComputeCost, LoadDecision
from kv_types.numbers import check_rate
from kv_types.validity import UNKNOWN_INSTANCE, EngineMode


class MessageType(IntEnum):
    """Numbers of the messages; never reused."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    REGISTER = 4
    REGISTERED = 5
    RESERVE = 6
    RESERVED = 7
    COMMIT = 8
    COMMITTED = 9
    ABORT = 10
    DETACH = 11
    PING = 12
    DONE = 13
    PONG = 14
    FAILED = 15
    UNREGISTER = 16
    LOAD = 17
    LOADED = 18
    CANCEL_LOAD = 19
    LOOKED = 20
    SPEEDS = 21


class Role(IntEnum):
    """What a client may do with the data file."""

    READER = 0
    WRITER = 1


class Refusal(IntEnum):
    """Why a handshake was refused; never reused."""

    VERSION = 1
    LAYOUT = 2
    FOREIGN_USER = 3
    FOREIGN_CLOCK = 4
    FOREIGN_PROCESS = 5
    ROWS_FULL = 6
    CLOSING = 7
    MALFORMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The client introduces itself: what it speaks, and the clock that it lives by.

    `boot_now_ns` is CLOCK_BOOTTIME; `time_namespace` the inode of its time namespace, 0 when unknown. `gone` names
    attachments of the same process that it has unmapped: no thread of it can touch their rows or places any more.
    `engine` says whether it has an index of its own that invalidations must reach (rule R18).
    """

    version_min: int
    version_max: int
    layout_version: int
    role: Role
    time_namespace: int
    boot_now_ns: int
    name: str
    gone: tuple[int, ...] = ()
    engine: EngineMode = EngineMode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The sidecar accepts: the row to use, the sizes of the three files in bytes, and its own clock.

    `attachment` is a random name of this attachment, by which the client says in a later Hello that it is gone. Without
    `has_l3` no load can bring anything.
    """

    version: int
    layout_version: int
    row: int
    life: LifeId
    control_bytes: int
    clients_bytes: int
    data_bytes: int
    batch_pages_max: int
    reservation_ms: int
    time_namespace: int
    boot_now_ns: int
    attachment: int
    has_l3: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The sidecar refuses the handshake; `text` says what to do about it."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Register:
    """Make a namespace known: its canonical encoding and the bytes of one page."""

    canonical: bytes
    page_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The namespace's id, its number in this life, and the counter that this client counts it under."""

    namespace: NamespaceId
    number: int
    counter: int
    page_bytes: int


@dataclass(frozen=True, slots=True)
class Unregister:
    """This client uses a namespace no more: none of its threads looks anything up, reserves or counts under it."""

    namespace_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Ask for places for a run of pages of one chain; `parent` is the page before keys[0], None for a root.

    `keys` is n × 32 bytes. `ttl_s` None takes the sidecar's default, 0 is never.
    """

    namespace_number: int
    parent: PageKey | None
    keys: bytes
    ttl_s: int | None


@dataclass(frozen=True, slots=True)
class ReservedPages:
    """One column entry a page: PutStatus (STORED means reserved), RefuseReason, reservation id, data offset."""

    statuses: bytes
    reasons: bytes
    reservations: tuple[int, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Publish filled reservations, parents first. Times are the producer's wall clock in Unix ms.

    `rests_on` is the instance of the deepest page that the request reused of their chain, NO_INSTANCE where it reused
    none.
    """

    reservations: tuple[int, ...]
    stamp: Stamp
    producer: bytes = b""
    tags: tuple[bytes, ...] = ()
    computed_from_ms: int = 0
    computed_until_ms: int = 0
    rests_on: int = UNKNOWN_INSTANCE


@dataclass(frozen=True, slots=True)
class CommittedPages:
    """One column entry a page: PutStatus and RefuseReason."""

    statuses: bytes
    reasons: bytes


@dataclass(frozen=True, slots=True)
class Abort:
    """Give reservations back; ids that are not this client's are ignored."""

    reservations: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainToLoad:
    """Pages of one chain that L2 may lack; `parent` is the page before keys[0], None for a root. `keys` is n × 32 bytes."""

    namespace_number: int
    parent: PageKey | None
    keys: bytes


@dataclass(frozen=True, slots=True)
class Load:
    """Ask for pages to be brought from L3 into L2. Answered once, by LoadedPages, when that is done or `deadline_ms` is over.

    With `group` the rows are shards of one tensor-parallel group: no more is brought for one than for all. With `compute`, what
    computing each row's pages takes the worker, no more is brought than that takes longer.
    """

    rows: tuple[ChainToLoad, ...]
    deadline_ms: int
    group: bool = False
    compute: ComputeCost | None = None


@dataclass(frozen=True, slots=True)
class LoadedRow:
    """What has become of one row: `pages` of it are resident, those from index `from_l3` on because of this load.

    `reason` is the MissReason for which there are no more, `pending` how many may yet come.
    """

    pages: int
    from_l3: int
    reason: int
    pending: int = 0


@dataclass(frozen=True, slots=True)
class LoadedPages:
    """One entry a row of the Load, and what was chosen between loading and computing where there was something to choose."""

    rows: tuple[LoadedRow, ...]
    decision: LoadDecision | None = None


@dataclass(frozen=True, slots=True)
class CancelLoad:
    """Nobody waits for the Load of this request any more; it is answered with what there is by now."""

    request: int


@dataclass(frozen=True, slots=True)
class Looked:
    """A look-up that this client has made while look-ups are recorded. Never answered.

    `digests` is DIGEST_BYTES of each key of the whole chain; `dropped` counts look-ups since the last message that could not
    be told.
    """

    namespace_number: int
    digests: bytes
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast this client is, as it has measured, each 0 where that is unknown. Never answered; what was told before is over.

    A copy of pages out of the arena takes `copy_latency_s` + bytes / `copy_bytes_per_s`. Raises InvalidArgumentError for what
    is no rate.
    """

    prefill_tokens_per_s: float = 0.0
    copy_latency_s: float = 0.0
    copy_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("prefill_tokens_per_s", "copy_latency_s", "copy_bytes_per_s"):
            check_rate(getattr(self, name), name)


@dataclass(frozen=True, slots=True)
class Detach:
    """The client leaves and has unmapped, or will not touch, the arena any more."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask whether the sidecar answers."""


@dataclass(frozen=True, slots=True)
class Done:
    """Abort, unregister, the cancelling of a load, or detach was carried out."""


@dataclass(frozen=True, slots=True)
class Pong:
    """The sidecar's CLOCK_BOOTTIME."""

    boot_now_ns: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A request was understood and can't be met: `code` is that of the StrataError it stands for."""

    code: str
    text: str


ClientMessage = (
    Hello
    | Register
    | Unregister
    | Reserve
    | Commit
    | Abort
    | Load
    | CancelLoad
    | Looked
    | Speeds
    | Detach
    | Ping
)
SidecarMessage = (
    Welcome | Refused | Registered | ReservedPages | CommittedPages | LoadedPages | Done | Pong | Failed
)
