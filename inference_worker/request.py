"""A request: what one computation loaded before it reused anything, fixed until it ends (R1)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from inference_worker.buffers import Buffers
from inference_worker.chains import packed_chain
from inference_worker.deadlines import Deadline
from inference_worker.lease import Home, PageLease
from inference_worker.namespaces import Begun, RegisteredNamespace
from inference_worker.reused import ReusedPages
from kv_types.errors import ClosedError, InvalidArgumentError
from kv_types.ids import Stamp
from kv_types.outcomes import LookUpOutcome, PutOutcome, RefuseReason
from kv_types.page_keys import Keys
from kv_types.validity import NO_INSTANCES, Instances


class RequestHost(Protocol):
    """What a request asks of its client."""

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
        reused: ReusedPages | None,
    ) -> list[PutOutcome]:
        """Store pages, or check them and refuse each when `refused` says so."""
        ...


class Request:
    """Begun before any reuse, ended by leaving the `with` block or by `end()`.

    `stamp` is what every page that this request computes is stored under; None when there was none to load, and then
    `refused` says why its puts are refused, while look-ups go on as usual. `freshness_ns` and `view` were loaded in
    that order: pages of L1 may be used while CLOCK_BOOTTIME is below the one and L1 has applied the other (R16).

    It remembers which pages it was given by `lease` and `get`, and says at each `put` on which of them its pages rest;
    `reused` tells it of those that the caller had already. So an invalidation by producer, tag or time finds what was
    computed from the pages that it selects, and spares the rest. Pages whose origin can't be told go with any such
    invalidation. For one thread at a time. After the end, and in a process forked after the beginning, every call raises
    ClosedError.
    """

    __slots__ = ("_began_ms", "_begun", "_client", "_deadline_s", "_ended", "_home", "_reused", "namespace")

    def __init__(
        self,
        client: RequestHost,
        namespace: RegisteredNamespace,
        begun: Begun,
        home: Home,
        *,
        deadline_s: float,
    ) -> None:
        """`deadline_s` is that of calls which name none."""
        self.namespace = namespace
        self._client = client
        self._begun = begun
        self._home = home
        self._deadline_s = deadline_s
        self._ended = False
        self._reused = ReusedPages()
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
        return self.namespace.pages.match(keys, start)

    @property
    def pages_l3(self) -> int:
        """Pages that were brought from L3 for look-ups of this request."""
        return self._reused.pages_l3

    @property
    def load_waited_s(self) -> float:
        """How long look-ups of this request have waited for loads, all together; over gRPC that can't be told."""
        return self._reused.waited_ns / 1e9

    def lease(self, keys: Keys, *, start: int = 0, deadline_s: float | None = None) -> PageLease:
        """See Client.lease."""
        self._check()
        deadline = Deadline(self._deadline_s if deadline_s is None else deadline_s)
        return self.namespace.pages.lease(keys, start, deadline, self._reused)

    def get(
        self, keys: Keys, destinations: Buffers, *, start: int = 0, deadline_s: float | None = None
    ) -> LookUpOutcome:
        """See Client.get."""
        self._check()
        deadline = Deadline(self._deadline_s if deadline_s is None else deadline_s)
        return self.namespace.pages.get(keys, destinations, start, deadline, self._reused)

    def reused(self, keys: Keys, instances: Instances = NO_INSTANCES) -> None:
        """Tell that all pages of `keys` came from the caller's own L1, and which pages of L2 they are.

        Without it, look-ups that start behind them count as resting on anything. Raises InvalidArgumentError,
        LimitExceededError, ClosedError.
        """
        self._check()
        packed, _ = packed_chain(keys, 0)
        if not isinstance(instances, Instances):
            raise InvalidArgumentError(f"instances are Instances; got {type(instances).__name__}")
        self._reused.had(packed, instances)

    def instances(self, keys: Keys) -> Instances:
        """Which pages of L2 the bytes are that this request was given or has stored, for an L1 that keeps them.

        One number a page of `keys`; where a look-up gave a page, it is not that of bytes computed anew under its key.
        Raises InvalidArgumentError, LimitExceededError, ClosedError.
        """
        self._check()
        packed, _ = packed_chain(keys, 0)
        return self._reused.instances(packed)

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
            reused=self._reused,
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
