"""What governing an engine's own prefix cache takes: the header, the engine's pool and requests, the weights, as Protocols."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from inference_worker.connectors.vllm.adapter_contents import EngineAdapter
from kv_types.errors import ConfigError
from kv_types.ids import LifeId, Stamp
from kv_types.namespace import Namespace
from kv_types.validity import ObservedView


class UngovernedEngineError(ConfigError):
    """This engine's prefix cache can't be governed: it looks different from those that are known."""


class GateAnswer(StrEnum):
    """What one look-up in the engine's own cache may do."""

    SERVE = "serve"
    EMPTY = "empty"
    """Nothing from the engine's own cache."""
    DEFER = "defer"
    """Nothing, and ask again in the next step: something has changed that only a step's boundary may apply."""


class ViewHold(Protocol):
    """Holds `drained` back from a view on."""

    @property
    def is_held(self) -> bool:
        """Whether it does."""
        ...

    def advance(self, view: int) -> None:
        """Hold back from a later view on."""
        ...

    def end(self) -> None:
        """Hold nothing back any more."""
        ...


class Header(Protocol):
    """The header of whichever sidecar serves now, or of one that died having granted `keep`: Client.validity of an engine.

    Reads shared memory, waits for nothing.
    """

    @property
    def never_attached(self) -> bool:
        """Whether no sidecar was ever attached: then this engine is no member of any fleet."""
        ...

    @property
    def life(self) -> LifeId:
        """The sidecar's life; NO_LIFE while no header can be read."""
        ...

    @property
    def freshness_ns(self) -> int:
        """CLOCK_BOOTTIME ns until which the view is vouched for; load it before the view. 0: none."""
        ...

    def stamped_view(self) -> tuple[ObservedView, Stamp] | None:
        """The present view with its life, and the log's position there; None while no header can be read."""
        ...

    def events_since(self, view: int) -> Sequence[tuple[int, bytes, int, int, bytes]] | None:
        """(view, incarnation, revision, kind, payload) of each event after `view`; None: not all there any more."""
        ...

    def set_applied_view(self, view: int) -> None:
        """Tell the sidecar up to which view events were applied."""
        ...

    def claim_freshness(self, freshness_ns: int | None = None) -> tuple[int, int]:
        """Claim to serve until then, and load the view behind the claim; returns what was granted, and the view."""
        ...

    def hold(self, view: int | None = None, *, life: LifeId | None = None) -> ViewHold:
        """Hold `drained` back from `view` of `life` on; nothing is held where that can't be had."""
        ...


class BlockPool(Protocol):
    """The engine's cached blocks, by their hashes."""

    def has(self, block_hash: bytes) -> bool:
        """Whether any block is cached under this hash."""
        ...

    def evict(self, block_hashes: Iterable[bytes]) -> int:
        """Take the hash from all blocks that have one of these, also those in use; returns how many did."""
        ...

    def evict_all(self) -> int:
        """Take the hash from all blocks; returns how many had one."""
        ...


class LiveRequest(Protocol):
    """One request of the engine, as it is at the moment of asking."""

    @property
    def request_id(self) -> str:
        """The engine's name of it."""
        ...

    @property
    def namespaces(self) -> tuple[Namespace, ...]:
        """Of its computation, one a rank; empty where it can't be named. Under the weights as of its last look-up."""
        ...

    @property
    def computed_tokens(self) -> int:
        """Tokens from the first on whose KV its blocks have, will have by steps in flight, or are being loaded. 0: no blocks."""
        ...

    @property
    def adapter(self) -> EngineAdapter | None:
        """The adapter that it computes with, if any."""
        ...

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """The engine's hashes of its full blocks."""
        ...

    def page_keys(self, start: int, end: int) -> tuple[bytes, ...]:
        """Packed keys of pages [start, end), one a rank; fewer where tokens aren't there yet."""
        ...


class BoardReading(NamedTuple):
    """What all ranks say of their weights: how often a version was set, over all of them, and the last one (empty: as they
    loaded them)."""

    number: int
    version: str


class VersionBoard(Protocol):
    """Where ranks write the version of their weights when it is set in the running engine."""

    def read(self) -> BoardReading | None:
        """What all ranks say; None while they disagree or it can't be read. Costs a look at shared memory."""
        ...
