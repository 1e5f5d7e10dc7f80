"""What the connector asks of a client: the part of `inference_worker.client.Client` it depends on, as
protocols.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from cache_l1.cache import ValiditySource

from kv_types.ids import Stamp
from kv_types.namespace import Namespace
from kv_types.outcomes import LookUpOutcome, PutOutcome


class PageRequest(Protocol):
    """One request: freshness and view loaded before any reuse, its stamp fixed until it ends."""

    @property
    def view(self) -> int: ...
    @property
    def stamp(self) -> Stamp | None: ...
    def get(
        self, keys: bytes, destinations: Sequence[Any], *, start: int = 0, deadline_s: float | None = None
    ) -> LookUpOutcome: ...
    def put(
        self, keys: bytes, sources: Sequence[Any], *, start: int = 0, deadline_s: float | None = None
    ) -> list[PutOutcome]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...


class PageClient(Protocol):
    """Registers namespaces and begins requests; never fails because no sidecar is there."""

    def register(self, namespace: Namespace) -> Any: ...
    def begin(self, namespace: Any) -> PageRequest: ...
    @property
    def validity(self) -> ValiditySource: ...
