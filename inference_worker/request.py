"""A request: what one computation loaded before it reused anything, fixed until it ends (R1)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from inference_worker.buffers import Buffers
from inference_worker.lease import Home, PageLease
from inference_worker.namespaces import Begun, RegisteredNamespace
from kv_types.errors import ClosedError
from kv_types.ids import Stamp
from kv_types.outcomes import LookUpOutcome, PutOutcome, RefuseReason
from kv_types.page_keys import Keys


class RequestHost(Protocol):
    """What a request asks of its client."""

    def match(self, namespace: RegisteredNamespace, keys: Keys, *, start: int = 0) -> LookUpOutcome:
        """See Client.match."""
        ...

    def lease(self, namespace: RegisteredNamespace, keys: Keys, *, start: int = 0) -> PageLease:
        """See Client.lease."""
        ...

    def get(
        self,
        namespace: RegisteredNamespace,
        keys: Keys,
        destinations: Buffers,
        *,
        start: int = 0,
        deadline_s: float | None = None,
    ) -> LookUpOutcome:
        """See Client.get."""
        ...

    def put_computed(
        self,
        namespace: RegisteredNamespace,
        keys: Keys,
        sources: Buffers,
        *,
        start: int,
        stamp: Stamp | None,
        ttl_s: int | None,
        tags: Sequence[bytes],
        deadline_s: float | None,
        computed_from_ms: int,
        refused: RefuseReason,
    ) -> list[PutOutcome]:
        """Store pages, or check them and refuse each when `refused` says so."""
        ...


class Request:
    """Begun before any reuse, ended by leaving the `with` block or by `end()`.

    `stamp` is what every page that this request computes is stored under; None when there was none to load, and then
    `refused` says why its puts are refused, while look-ups go on as usual. `freshness_ns` and `view` were loaded in
    that order: pages of L1 may be used while CLOCK_BOOTTIME is below the one and L1 has applied the other (R16).
    After the end, and in a process forked after the beginning, every call raises ClosedError.
    """

    __slots__ = ("_began_ms", "_begun", "_client", "_ended", "_home", "namespace")

    def __init__(self, client: RequestHost, namespace: RegisteredNamespace, begun: Begun, home: Home) -> None:
        self.namespace = namespace
        self._client = client
        self._begun = begun
        self._home = home
        self._ended = False
        self._began_ms = time.time_ns() // 1_000_000

    @property
    def stamp(self) -> Stamp | None:
        """The log position that was loaded at the beginning."""
        return self._begun.stamp

    @property
    def view(self) -> int:
        """The view that was loaded at the beginning; 0 when no header could be read."""
        return self._begun.view

    @property
    def freshness_ns(self) -> int:
        """The freshness that was loaded before the view, CLOCK_BOOTTIME ns; 0 when no header could be read."""
        return self._begun.freshness_ns

    @property
    def refused(self) -> RefuseReason:
        """Why nothing that this request computes can be stored; NONE when it can."""
        return self._begun.refused

    def match(self, keys: Keys, *, start: int = 0) -> LookUpOutcome:
        """See Client.match."""
        self._check()
        return self._client.match(self.namespace, keys, start=start)

    def lease(self, keys: Keys, *, start: int = 0) -> PageLease:
        """See Client.lease."""
        self._check()
        return self._client.lease(self.namespace, keys, start=start)

    def get(
        self, keys: Keys, destinations: Buffers, *, start: int = 0, deadline_s: float | None = None
    ) -> LookUpOutcome:
        """See Client.get."""
        self._check()
        return self._client.get(self.namespace, keys, destinations, start=start, deadline_s=deadline_s)

    def put(
        self,
        keys: Keys,
        sources: Buffers,
        *,
        start: int = 0,
        ttl_s: int | None = None,
        tags: Sequence[bytes] = (),
        deadline_s: float | None = None,
    ) -> list[PutOutcome]:
        """See Client.put; the pages carry this request's stamp."""
        self._check()
        return self._client.put_computed(
            self.namespace,
            keys,
            sources,
            start=start,
            stamp=self._begun.stamp,
            ttl_s=ttl_s,
            tags=tags,
            deadline_s=deadline_s,
            computed_from_ms=self._began_ms,
            refused=self._begun.refused,
        )

    def end(self) -> None:
        """End the request; again does nothing."""
        if not self._ended:
            self._ended = True
            if not self._home.inherited:
                self._begun.end()

    def __del__(self) -> None:
        # A request that was forgotten would hold back `drained` for as long as this process lives.
        self.end()

    def __enter__(self) -> Request:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _check(self) -> None:
        if self._ended:
            raise ClosedError("this request has ended; begin another one")
        if self._home.inherited:
            raise ClosedError("this request belongs to the process that forked; begin one of your own")
