"""What the connector asks of a client, as protocols: the part of `inference_worker.client` it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from inference_worker.lease import PageLease
from inference_worker.prefetch import Prefetch
from inference_worker.settings import RegisterMemory
from inference_worker.weights import Announced
from kv_types.ids import LifeId
from kv_types.namespace import Namespace
from kv_types.outcomes import LookUpOutcome, PutOutcome
from kv_types.validity import Instances, ValiditySource


class PageRequest(Protocol):
    """One request: freshness and view loaded before any reuse, its stamp fixed until it ends.

    `keys` is n packed page keys from the chain's root on; buffers are one of page_bytes a key of
    keys[start:].
    """

    def get(
        self, keys: bytes, destinations: Sequence[Any], *, start: int = 0, deadline_s: float | None = None
    ) -> LookUpOutcome:
        """Copy the longest valid prefix of keys[start:] into `destinations`; Hit counts those pages.

        What L2 lacks and L3 has is brought within `deadline_s`.
        """
        ...

    def lease(self, keys: bytes, *, start: int = 0, deadline_s: float | None = None) -> PageLease:
        """The same without a copy: the pages pinned, for a device that takes them from there."""
        ...

    def put(
        self, keys: bytes, sources: Sequence[Any], *, start: int = 0, deadline_s: float | None = None
    ) -> list[PutOutcome]:
        """Store keys[start:] under the request's stamp; refuse each page when it has none."""
        ...

    def reused(self, keys: bytes, instances: Instances) -> None:
        """Tell that all pages of `keys` came from the connector's own L1, and which pages of L2 they are."""
        ...

    def instances(self, keys: bytes) -> Instances:
        """Which pages of L2 were got or stored under `keys`, for L1."""
        ...

    def end(self) -> None:
        """End the request."""
        ...


class PageClient(Protocol):
    """Registers namespaces and begins requests; never fails because no sidecar is there."""

    def register(self, namespace: Namespace) -> Any:
        """Name a namespace for `begin`; no sidecar needs to be there."""
        ...

    def begin(self, namespace: Any) -> PageRequest:
        """Load freshness and view, before anything is reused."""
        ...

    def prefetch(self, namespace: Any, keys: bytes, *, deadline_s: float | None = None) -> Prefetch | None:
        """Ask for what only L3 has of a chain, without waiting; None where nothing is asked."""
        ...

    def register_memory(self, register: RegisterMemory) -> None:
        """Have a device reach the pages of L2, in this life of the sidecar and in later ones, until the client closes."""
        ...

    def observe_prefill(self, tokens: int, *, start: int, seconds: float) -> None:
        """Take note of how long a pass over so many tokens of prompts, behind `start` others, took."""
        ...

    def has_page(self, instance: int, *, life: LifeId) -> bool:
        """Whether L2 has the page that is this instance still, in this life of the sidecar; never raises or waits."""
        ...

    def forget(self, namespace: Any) -> None:
        """Let go of a namespace under which nothing is under way and nothing follows."""
        ...

    def announced(self, model: str, *, deadline_s: float | None = None) -> Announced | None:
        """What weights are announced for a model now, or None when that can't be told."""
        ...

    @property
    def validity(self) -> ValiditySource:
        """The header that tells which pages of L1 may be served."""
        ...
