"""The one connection that all namespaces of a client share: publishes it to them when it comes, withdraws it when it goes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from inference_worker.absent import AbsentPages
from inference_worker.accounting import PageCounts
from inference_worker.deadlines import Deadline
from inference_worker.endpoint import Endpoint
from inference_worker.forking import keep_untouched, reset_after_fork
from inference_worker.lease import Home
from inference_worker.loading import LoadCounts, Staged
from inference_worker.local import LocalArena
from inference_worker.namespaces import Pages, RegisteredNamespace, page_bytes_of
from inference_worker.outlived import OutlivedHeader
from inference_worker.prefetch import Prefetch
from inference_worker.prefill_speed import PrefillSpeed
from inference_worker.remote import RemoteSidecar
from inference_worker.session import Phase, Session
from inference_worker.settings import ClientSettings, RegisterMemory
from inference_worker.supervisor import Connection, Supervisor
from inference_worker.validity import ClientValidity, Header
from inference_worker.weights import Announced, Versions, WeightsWatch
from kv_types.errors import (
    ClosedError,
    ConfigError,
    DeadlineExceededError,
    InvalidArgumentError,
    LayoutConflictError,
    LimitExceededError,
    LogUnreachableError,
    OverloadedError,
    ProtocolError,
    SidecarUnreachableError,
)
from kv_types.ids import KEY_BYTES, Stamp
from kv_types.limits import NAMESPACES_MAX, NAMESPACES_PER_CLIENT_MAX
from kv_types.namespace import Namespace, Uncacheable
from kv_types.outcomes import MissReason
from kv_types.validity import EngineMode

_FORGOTTEN = "forgotten"
"""What namespaces that were forgotten are called together in statistics."""
_REFRESH_S_MIN = 0.05
"""How soon announced versions are asked for again: a sidecar that can't tell them is asked no faster than this."""


class Link:
    """Thread-safe. `arena` is the published shared memory or None; `remote` is used where that cannot be had.

    `outlived` is what an engine of mode KEEP goes by when its sidecar has died, until another one comes (R18).

    Lock order: `_binding`, `_accounts`, `_state`. `_state` guards the fields and `_accounts` what a row has counted;
    neither is held over I/O. `_binding` serialises registrations with the sidecar.
    """

    def __init__(self, endpoint: Endpoint, settings: ClientSettings) -> None:
        """Raises ConfigError."""
        if settings.engine is not EngineMode.NONE and endpoint.attach_path is None:
            raise ConfigError(
                f"an engine attaches to the sidecar of its own node; {endpoint} has no shared memory: give a runtime "
                "directory"
            )
        self.endpoint = endpoint
        self.settings = settings
        self.closed = False
        self.forks = 0
        self.was_attached = False
        """Whether shared memory was ever published, in this process or the one that it was forked from."""
        self._namespaces: dict[Namespace | tuple[str, str], RegisteredNamespace] = {}
        self._forgotten = PageCounts()
        self._make_anew()
        reset_after_fork(self)

    def _make_anew(self) -> None:
        """Set up everything that a forked child must not share."""
        self.home = Home()
        self._binding = threading.Lock()
        self._accounts = threading.Lock()
        # Re-entrant: a client that is collected as garbage closes its link on whichever thread that happens.
        self._state = threading.Condition(threading.RLock())
        self._supervisor: Supervisor | None = None
        self._attempted = False
        self._remote_serves = not self.wants_shared_memory
        self.arena: LocalArena | None = None
        self.outlived: OutlivedHeader | None = None
        self._leaving: list[LocalArena] = []
        self.prefill = PrefillSpeed(self.settings.prefill_tokens_per_s)
        self.loads = LoadCounts(self.prefill)
        self.remote = RemoteSidecar(self.endpoint.grpc_target, self.settings, prefill=self.prefill)
        self._weights = WeightsWatch(ClientValidity(self), self._read_versions, wake=self._poke)
        self._refresh_from_s = 0.0

    @property
    def wants_shared_memory(self) -> bool:
        """Whether this client attaches at all."""
        return self.settings.shared_memory and self.endpoint.attach_path is not None

    @property
    def header(self) -> Header | None:
        """What validity goes by: the shared memory that serves, else what is left of the sidecar that was outlived."""
        return self.arena or self.outlived

    # --- what the client asks for ----------------------------------------------------------------------------------

    def register(self, identity: Namespace | Uncacheable, page_bytes: int | None) -> RegisteredNamespace:
        """Return the one object of this identity; nothing is sent. See Client.register."""
        if not isinstance(identity, Namespace | Uncacheable):
            raise InvalidArgumentError(
                f"what is registered is a Namespace or an Uncacheable; got {type(identity).__name__}"
            )
        key = identity if isinstance(identity, Namespace) else (identity.reason.value, identity.detail)
        size = page_bytes_of(identity, page_bytes)
        with self._state:
            self._check_open()
            known = self._namespaces.get(key)
            if known is None:
                known = self._namespaces[key] = self._admit(identity, size)
        if known.page_bytes != size:
            raise LayoutConflictError(
                f"this namespace was registered with pages of {known.page_bytes} bytes, now with {size}"
            )
        return known

    def forget(self, namespace: RegisteredNamespace, deadline: Deadline) -> None:
        """Keep nothing of a namespace but what was counted. See Client.forget."""
        if not self._binding.acquire(timeout=deadline.remaining_s()):
            raise DeadlineExceededError("a registration under way held the call back until its deadline")
        try:
            arena = self.arena
            if arena is not None:
                arena.await_answer(namespace, deadline)
            with self._accounts:
                with self._state:
                    self._check_open()
                    self._namespaces = {k: v for k, v in self._namespaces.items() if v is not namespace}
                    namespace.owner = None
                    namespace.absent = AbsentPages(namespace, self._refuse_forgotten, deadline_s=0.0)
                    namespace.pages = namespace.absent
                    arena = self.arena
                self._settle()
                registration, live = (None, PageCounts()) if arena is None else arena.unbind(namespace)
                for one in self._leaving:
                    live += one.unbind(namespace)[1]
                self._forgotten += live + namespace.counts.snapshot()
            self.remote.forget(namespace)
            if arena is not None and registration is not None:
                arena.unregister(registration, deadline)
        finally:
            self._binding.release()

    def register_memory(self, register: RegisterMemory) -> None:
        """Let a device reach the pages of this life and of those that follow. See Client.register_memory."""
        with self._state:
            self._check_open()
            if self.settings.register_memory is None:
                self.settings = replace(self.settings, register_memory=register)
                self._register_arena()

    def _register_arena(self) -> None:
        # With the state locked: whoever withdraws the arena takes the lock first, and closes it later.
        if self.arena is not None and self.settings.register_memory is not None:
            self.arena.register_memory(self.settings.register_memory)

    def start(self) -> None:
        """Begin to attach in the background, unless that has begun or makes no sense."""
        with self._state:
            self._check_open()
            if self._supervisor is None and self.wants_shared_memory:
                self._supervisor = Supervisor(Session(reattach_s=self.settings.reattach_s), self)
                self._supervisor.start()

    def wait_serving(self, deadline: Deadline) -> bool:
        """Wait until pages can be reached or the deadline passes; returns whether they can."""
        self.start()
        with self._state:
            self._state.wait_for(lambda: self._serving() or self.closed, deadline.remaining_s())
            return self._serving()

    def wait_attempted(self, deadline: Deadline) -> None:
        """Wait until the first attempt to attach is over, whatever came of it, or the deadline passes."""
        self.start()
        with self._state:
            self._state.wait_for(self._settled, deadline.remaining_s())

    def acquire(self, namespace: RegisteredNamespace, deadline: Deadline) -> Pages | MissReason:
        """Return how to reach a namespace's pages now, or why that is impossible (see AbsentPages)."""
        if (
            self._attempted
            and not self._serving()
            and not self.closed
            and not self.settings.wait_for_reconnect
        ):
            return MissReason.UNREACHABLE  # without a lock: an outage must not make callers queue
        with self._state:
            self._check_open()
            running, serving = self._supervisor is not None, self._serving()
        if not running and not serving:
            self.start()
        if not serving:
            with self._state:
                ready = self._serving if self.settings.wait_for_reconnect else self._settled
                self._state.wait_for(lambda: ready() or self.closed, deadline.remaining_s())
                self._check_open()
                if not self._serving():
                    return MissReason.UNREACHABLE if self._attempted else MissReason.DEADLINE
        return self._bind(namespace, deadline)

    def prefetch(
        self, namespace: RegisteredNamespace, packed: bytes, *, deadline_s: float
    ) -> Prefetch | None:
        """Ask for what L2 lacks of a chain, without waiting. See Client.prefetch."""
        arena, pages = self.arena, len(packed) // KEY_BYTES
        if arena is None:
            return self.remote.prefetch(namespace, packed, deadline_s) if self._remote_serves else None
        loader, number = arena.loader, arena.number_of(namespace)
        if loader is None:
            return None
        if number is None:  # to register it would take an answer
            return self.remote.prefetch(namespace, packed, deadline_s)
        resident = arena.resident(number, packed)
        if resident == pages:
            return None
        tokens = namespace.identified.page_tokens
        return self.remote.prefetches.ask(
            lambda: loader.begin(number, packed, resident, deadline_s=deadline_s, page_tokens=tokens)
        )

    def stage_group(
        self, shards: Sequence[tuple[RegisteredNamespace, bytes]], first: int, deadline: Deadline
    ) -> Staged | None:
        """Have the chains of a group brought from index `first` on; None where nothing can be."""
        arena = self.arena
        if arena is None or arena.loader is None:
            return None
        numbered = [(arena.number_of(namespace), packed) for namespace, packed in shards]
        known = [(number, packed) for number, packed in numbered if number is not None]
        if len(known) < len(shards):
            return None
        tokens = shards[0][0].identified.page_tokens
        return arena.loader.stage_group(known, first, deadline, page_tokens=tokens)

    def stamp(self, deadline: Deadline) -> Stamp | None:
        """Return the sidecar's present log position, or None while it cannot be told. Raises ClosedError."""
        if self.wants_shared_memory:
            self.wait_attempted(deadline)
        with self._state:
            self._check_open()
            arena, remote_serves = self.arena, self._remote_serves
        if arena is not None:
            return arena.stamp()
        return self.remote.stamp(deadline) if remote_serves else None

    def announced(self, model: str, deadline: Deadline | None) -> Announced | None:
        """Return what weights are announced for a model, or None when that can't be told. Raises ClosedError.

        Without a deadline shared memory is looked at and not waited for; a call over gRPC has the usual one.
        """
        with self._state:
            self._check_open()
            arena, remote_serves = self.arena, self._remote_serves
        if arena is None and remote_serves:  # no ring to follow: each look is a call
            told = self.remote.versions(deadline or Deadline(self.settings.deadline_s))
            return None if told is None else Announced(told.by_model.get(model), 0, 0)
        return self._weights.look(model) if deadline is None else self._weights.wait(model, deadline)

    def close(self) -> None:
        """End the connection; leases that are held stay readable. Again does nothing."""
        with self._state:
            already, self.closed = self.closed, True
            supervisor = self._supervisor
            self._withdraw_namespaces()
            self.outlived = None
            self._state.notify_all()
        if already:
            return
        if supervisor is not None:
            supervisor.stop()
        self.remote.close()

    # --- what the supervisor's thread asks for (Host) --------------------------------------------------------------

    def attach(self) -> Connection:
        """Make one attempt; raises StrataError."""
        path = self.endpoint.attach_path
        assert path is not None, "a link without an attach path starts no supervisor"
        writer = None if self.settings.writable else self.remote.pages
        return LocalArena.attach(str(path), self.settings, writer=writer, loads=self.loads)

    def publish(self, connection: Connection) -> None:
        """Register every namespace in the new life, then serve from it."""
        arena = cast("LocalArena", connection)
        deadline = Deadline(self.settings.attach_deadline_s)
        with self._binding:
            bound = self._bind_all(arena, deadline)
            with self._state:
                if self.closed:
                    raise ClosedError("the client was closed while it attached")
                self.was_attached = True
                self.arena, self.outlived = arena, None
                self._register_arena()  # it was told of that while it attached, if not before
                self._remote_serves = False
                for namespace, pages in bound.items():
                    namespace.pages = pages
        with self._state:
            self._state.notify_all()

    def withdraw(self, connection: Connection) -> None:
        """Stop serving from shared memory; what its row counts is kept, up to the end of the last request that uses it."""
        arena = cast("LocalArena", connection)
        has_served = self.arena is arena  # else it broke before, and what was outlived still is
        outlived = arena.outlived() if has_served and not self.closed else None
        with self._accounts:
            with self._state:
                if has_served:  # in this order: whoever looks in between finds the one or the other
                    self.outlived = None if self.closed else outlived
                self.arena = None
                self._withdraw_namespaces()
            self._leaving.append(arena)
        arena.close()
        with self._accounts:
            self._settle()

    def use_remote(self) -> None:
        """Serve over gRPC from now on, until shared memory can be had."""
        if self.settings.engine is not EngineMode.NONE:
            return  # it could not be told what to forget of what it got
        with self._state:
            if not self.closed:
                self._remote_serves = True
                self._state.notify_all()

    def attempted(self) -> None:
        """Let those go on who wait for the first attempt."""
        with self._state:
            self._attempted = True
            self._state.notify_all()

    def attend(self) -> None:
        """Read announced versions anew where the ring could not tell them, and tell how fast this client is."""
        now_s, arena = time.monotonic(), self.arena
        if arena is not None:
            arena.tell_speeds(now_s)
        if now_s >= self._refresh_from_s:
            self._refresh_from_s = now_s + _REFRESH_S_MIN
            self._weights.refresh()

    # --- statistics ------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, int | str]:
        """State of the connection by name."""
        with self._state:
            supervisor, arena, remote_serves = self._supervisor, self.arena, self._remote_serves
        session = supervisor.session if supervisor is not None else None
        transport = "shared_memory" if arena is not None else "grpc" if remote_serves else "none"
        attaches = session.attaches if session is not None else 0
        return {
            "transport": transport,
            "phase": (session.phase if session is not None else Phase.NEW).value,
            "reason": session.reason if session is not None else "",
            "grpc_error": self.remote.last_error,
            "attaches": attaches,
            "reconnects": max(0, attaches - 1) + self.remote.reconnects,
            "losses": session.losses if session is not None else 0,
            "forks": self.forks,
            "leases_held": arena.held() if arena is not None else 0,
            "posted_pages": arena.posted() if arena is not None else 0,
            "prefaulting": 1 if arena is not None and arena.is_prefaulting() else 0,
        }

    def counts(self) -> dict[str, PageCounts]:
        """Pages by namespace, from the row of shared memory and from what was counted here, together."""
        with self._accounts:
            self._settle()
            arenas = self._leaving if self.arena is None else [*self._leaving, self.arena]
            live = [arena.counts() for arena in arenas]
            counts = {
                one.label: sum((each[one] for each in live if one in each), one.counts.snapshot())
                for one in list(self._namespaces.values())
            }
            return {**counts, _FORGOTTEN: self._forgotten} if self._forgotten.look_ups else counts

    # --- inside ----------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Take over what rows that were given back have counted. The caller holds `_accounts`."""
        for arena in [one for one in self._leaving if one.has_left]:
            self._leaving.remove(arena)
            for namespace, counts in arena.counts().items():
                namespace.counts.add(counts)

    def reset_in_child(self) -> None:
        """Forget the parent's connection without touching it; the next call attaches anew."""
        self.forks += 1
        self.home.inherited = True
        keep_untouched((self._supervisor, self.arena, self.remote, self._binding, self._state, self._weights))
        keep_untouched(tuple(self._leaving))
        if self._supervisor is not None:
            self._supervisor.abandon_in_child()
        for arena in (*self._leaving, self.arena):
            if arena is not None:
                arena.inherited = True
        self._make_anew()
        for namespace in self._namespaces.values():
            namespace.pages = namespace.absent
            namespace.counts.reset_after_fork()
        self._forgotten = PageCounts()

    def _admit(self, identity: Namespace | Uncacheable, page_bytes: int) -> RegisteredNamespace:
        limit = NAMESPACES_PER_CLIENT_MAX if self.wants_shared_memory else NAMESPACES_MAX
        if len(self._namespaces) >= limit:
            raise LimitExceededError(
                f"this client has {limit} namespaces, the most it may have; forget some, or connect another"
            )
        namespace = RegisteredNamespace(self, identity, page_bytes=page_bytes)
        acquire = self._refuse_uncacheable if namespace.uncacheable is not None else self.acquire
        looked = (lambda: None) if namespace.uncacheable is not None else self._looked_in_vain
        namespace.absent = AbsentPages(namespace, acquire, deadline_s=self.settings.deadline_s, looked=looked)
        namespace.pages = namespace.absent
        return namespace

    def _looked_in_vain(self) -> None:
        arena = self.arena
        if arena is not None:
            arena.looked_in_vain()

    def _refuse_uncacheable(self, namespace: RegisteredNamespace, deadline: Deadline) -> MissReason:
        self._check_open()
        return MissReason.UNCACHEABLE

    def _refuse_forgotten(self, namespace: RegisteredNamespace, deadline: Deadline) -> MissReason:
        raise ClosedError(f"{namespace} was forgotten; register it again")

    def _bind(self, namespace: RegisteredNamespace, deadline: Deadline) -> Pages | MissReason:
        """Register a namespace that is new to this life, once, within the deadline."""
        if not self._binding.acquire(timeout=deadline.remaining_s()):
            return MissReason.DEADLINE
        try:
            return self._bind_held(namespace, deadline)
        except DeadlineExceededError:
            return MissReason.DEADLINE
        except OverloadedError:
            return MissReason.OVERLOADED
        except LogUnreachableError:  # nothing is fresh either while the fleet's log is out of reach
            return MissReason.STALE
        except (SidecarUnreachableError, ProtocolError):
            return MissReason.UNREACHABLE
        finally:
            self._binding.release()

    def _bind_held(self, namespace: RegisteredNamespace, deadline: Deadline) -> Pages | MissReason:
        arena = self.arena
        if arena is None:
            return self.remote.pages(namespace) if self._remote_serves else MissReason.UNREACHABLE
        if namespace.pages is not namespace.absent:
            return namespace.pages  # another thread was quicker
        pages = arena.bind(namespace, deadline)
        with self._state:
            if self.arena is arena and not self.closed:
                namespace.pages = pages
        return pages

    def _bind_all(self, arena: LocalArena, deadline: Deadline) -> dict[RegisteredNamespace, Pages]:
        """Register all namespaces; one that is refused by itself stays absent, and its next call says why."""
        bound: dict[RegisteredNamespace, Pages] = {}
        for namespace in list(self._namespaces.values()):
            if namespace.uncacheable is None:
                with contextlib.suppress(LayoutConflictError, InvalidArgumentError, LogUnreachableError):
                    bound[namespace] = arena.bind(namespace, deadline)
        return bound

    def _withdraw_namespaces(self) -> None:
        for namespace in self._namespaces.values():
            namespace.pages = namespace.absent

    def _read_versions(self) -> Versions | None:
        return self.remote.versions(Deadline(self.settings.deadline_s))

    def _poke(self) -> None:
        supervisor = self._supervisor
        if supervisor is not None:
            supervisor.poke()

    def _serving(self) -> bool:
        return self.arena is not None or self._remote_serves

    def _settled(self) -> bool:
        return self._attempted or self._serving() or self.closed

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("this client was closed; connect another one")
