"""Shared memory of one sidecar's life as a client has it: its mapping, its row, the namespaces that are bound to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from cache_l2.attach_messages import Looked, Speeds
from cache_l2.attach_registrations import Registration, RegistrationTicket
from cache_l2.reader import AttachedArena
from inference_worker.accounting import PageCounts, of_row
from inference_worker.deadlines import Deadline
from inference_worker.lease import Home
from inference_worker.loading import LoadCounts, Loader
from inference_worker.local_pages import LocalPages
from inference_worker.namespaces import Pages, RegisteredNamespace
from inference_worker.outlived import OutlivedHeader
from inference_worker.settings import ClientSettings, RegisterMemory
from inference_worker.view_hold import ViewHold
from kv_types.errors import (
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    ProtocolError,
    StrataError,
)
from kv_types.ids import KEY_BYTES, LifeId, LogIncarnation, Stamp
from kv_types.limits import LISTINGS_IN_FLIGHT_PER_CLIENT_MAX
from kv_types.page_keys import key_digests
from kv_types.trace_limits import LOOKED_PAGES_MAX
from kv_types.validity import ObservedView

_DEATH_S = 1.0
"""How long a broken connection's process is given to end: the kernel closes its connections first."""

_UNTOLD_MOST = 2**32 - 1
_SPEEDS_S = 1.0

Writer = Callable[[RegisteredNamespace], Pages]
"""Gives the pages of a namespace that puts go to."""


class LocalArena(Home):
    """One attach: the arena of one life, and the namespaces bound to it."""

    __slots__ = (
        "_applied_view", "_asked", "_attached", "_bound", "_is_leaving", "_last_counts", "_requests", "_settings", "_speeds",
        "_tell_from_s", "_unregister", "_untold", "_writer", "loader", "loads", "reader",
    )  # fmt: skip

    def __init__(
        self,
        attached: AttachedArena,
        settings: ClientSettings,
        writer: Writer | None,
        loads: LoadCounts,
    ) -> None:
        super().__init__()
        self._attached = attached
        self._settings = settings
        self._writer = writer
        self.loader = Loader(attached, loads) if attached.has_l3 else None
        """Brings what L2 lacks; None where there is nothing to bring it from."""
        self._bound: dict[RegisteredNamespace, LocalPages] = {}
        self._asked: dict[RegisteredNamespace, RegistrationTicket] = {}
        """Registrations under way that nobody waits for now."""
        self._requests: set[object] = set()
        self._is_leaving = False
        self._applied_view = 0
        self._untold = 0
        self._last_counts: dict[RegisteredNamespace, PageCounts] | None = None
        self._speeds = Speeds()
        self._tell_from_s = 0.0
        self.loads = loads
        self.reader = attached.reader
        self._unregister: Callable[[], None] | None = None
        if settings.register_memory is not None:
            self.register_memory(settings.register_memory)

    @classmethod
    def attach(
        cls, path: str, settings: ClientSettings, *, writer: Writer | None, loads: LoadCounts
    ) -> LocalArena:
        """Attach within settings.attach_deadline_s. Raises SidecarUnreachableError, HandshakeError.

        `writer` takes the puts of a client that attaches read-only; None: they go into shared memory. `loads` counts what
        look-ups have the sidecar load, and how fast this client is.
        """
        attached = AttachedArena.connect(
            path,
            name=settings.name,
            writable=settings.writable,
            prefault=settings.prefault,
            engine=settings.engine,
            deadline_s=settings.attach_deadline_s,
        )
        return cls(attached, settings, writer, loads)

    def register_memory(self, register: RegisterMemory) -> None:
        """Let a device reach the pages until this ends, unless one does already. Not while this is closed."""
        if self._unregister is None:
            self._unregister = register(*self.reader.pages_memory)

    @property
    def life(self) -> LifeId:
        """The sidecar's life."""
        return self._attached.life

    def fileno(self) -> int:
        """Return the descriptor that hangs up when the sidecar ends."""
        return self._attached.fileno()

    def is_ending(self) -> bool:
        """Whether the sidecar has closed its header, or the connection broke."""
        return not self._attached.alive

    def outlived(self) -> OutlivedHeader | None:
        """What an engine of mode KEEP goes by when this sidecar is gone; None where it may not serve on (rule R18).

        Only a process that has ended can't publish any more: one whose connection broke may, and then be acknowledged.
        """
        if self.stamped_view() is None or not self._attached.has_outlived(within_s=_DEATH_S):
            return None  # closed in order, or not known to be over
        stamped, freshness_ns, since = self.stamped_view(), self.freshness_ns(), self._applied_view
        try:
            if stamped is None or not self.reader.keep_granted:
                return None
        except ValueError:
            return None
        return OutlivedHeader(*stamped, freshness_ns, since, self.events_since(since))

    def bind(self, namespace: RegisteredNamespace, deadline: Deadline) -> LocalPages:
        """Register a namespace in this life; one caller at a time. Raises StrataError.

        What is not answered within the deadline, which may leave no time at all, goes on, and the next call takes the answer.
        """
        registration = self._registered(namespace, deadline)
        pages = LocalPages(self, namespace, registration, settings=self._settings)
        self._bound[namespace] = pages
        return pages

    def _registered(self, namespace: RegisteredNamespace, deadline: Deadline) -> Registration:
        ticket = self._asked.pop(namespace, None)
        what = namespace.identified.canonical, namespace.page_bytes
        if ticket is None and len(self._asked) < LISTINGS_IN_FLIGHT_PER_CLIENT_MAX:
            ticket = self._attached.begin_register(*what)
        if ticket is None:  # as many as may be are under way: this one has to be waited for
            if deadline.passed:
                raise DeadlineExceededError("as many registrations are under way as may be")
            return self._attached.register(*what, deadline_s=deadline.remaining_s())
        try:
            return ticket.wait(deadline_s=deadline.remaining_s())
        except DeadlineExceededError:
            self._asked[namespace] = ticket
            raise

    def await_answer(self, namespace: RegisteredNamespace, deadline: Deadline) -> None:
        """Let a registration that is under way end, so that `unbind` knows what to give back; else nobody wants it any more."""
        if namespace not in self._asked:
            return
        with contextlib.suppress(StrataError):
            self.bind(namespace, deadline)
        ticket = self._asked.pop(namespace, None)
        if ticket is not None:
            ticket.forget()

    @property
    def has_left(self) -> bool:
        """Whether the row is given back: `counts` will not change any more."""
        return self._last_counts is not None

    def counts(self) -> dict[RegisteredNamespace, PageCounts]:
        """Pages that this client's row has counted up to now, or had when it was given back."""
        try:
            return self._last_counts if self._last_counts is not None else self._read_counts()
        except ValueError:  # given back meanwhile, and read before
            return self._last_counts or {}

    def _read_counts(self) -> dict[RegisteredNamespace, PageCounts]:
        return {
            namespace: of_row(self.reader.counts(pages.registration.counter))
            for namespace, pages in list(self._bound.items())
        }

    def unbind(self, namespace: RegisteredNamespace) -> tuple[Registration | None, PageCounts]:
        """Forget a namespace that nothing uses any more: what to unregister, and what was counted under it."""
        pages = self._bound.pop(namespace, None)
        if pages is None:
            return None, PageCounts()
        try:
            return pages.registration, of_row(self.reader.counts(pages.registration.counter))
        except ValueError:  # the mapping was closed meanwhile, and its counts with it
            return None, PageCounts()

    def unregister(self, registration: Registration, deadline: Deadline) -> None:
        """Give a counter back; not confirmed in time, it may stay taken until this client leaves."""
        with contextlib.suppress(ClosedError, ProtocolError):  # gone meanwhile, and the row with it
            self._attached.unregister(registration, deadline_s=deadline.remaining_s())

    def resident(self, namespace_number: int, packed: bytes) -> int:
        """Pages of a chain that could be served now; 0 when the mapping was closed meanwhile."""
        try:
            return self.reader.match(packed, namespace=namespace_number)[0]
        except ValueError:
            return 0

    def has_page(self, instance: int) -> bool:
        """Whether the page that is this instance is there still; False when the mapping was closed meanwhile."""
        try:
            lease = self.reader.pin(instance)
        except ValueError:
            return False
        if lease is None:
            return False
        lease.release()
        return True

    def number_of(self, namespace: RegisteredNamespace) -> int | None:
        """What the sidecar calls a namespace in this life; None where it was not told of it yet."""
        pages = self._bound.get(namespace)
        return None if pages is None else pages.registration.number

    def hold(self, view: int | None) -> ViewHold:
        """See Client.validity.hold; of this life. Raises InvalidArgumentError."""
        self._check_published(view)
        request = self.request_begins()
        try:
            slot, present, _, _ = self.reader.begin_request(view=view)
        except BaseException as error:
            self.request_ended(request)
            if isinstance(error, ValueError | RuntimeError):  # closed meanwhile, or events come too fast
                return ViewHold(None)
            raise
        if slot < 0:
            self.request_ended(request)
            return ViewHold(None)
        return ViewHold(self, slot=slot, view=present if view is None else view, request=request)

    def _check_published(self, view: int | None) -> None:
        """Raise InvalidArgumentError for a view that this life hasn't published; says nothing once this mapping is closed."""
        with contextlib.suppress(ValueError):
            if view is not None and not 0 < view <= self.reader.view:
                raise InvalidArgumentError(f"view {view} is not published in this life")

    def advance_hold(self, slot: int, view: int) -> bool:
        """Raise what a slot holds; False where that view is not published in this life."""
        try:
            self.reader.advance_request(slot, view)
        except ValueError:
            return False
        return True

    def end_hold(self, slot: int, request: object) -> None:
        """Give a slot back that `hold` took."""
        with contextlib.suppress(ValueError):
            self.reader.end_request(slot)
        self.request_ended(request)

    def stamped_view(self) -> tuple[ObservedView, Stamp] | None:
        """View and stamp of one moment; None once the header or this mapping is closed, or events come too fast."""
        try:
            if self.reader.closed:
                return None
            view, incarnation, revision = self.reader.stamp()
        except (ValueError, RuntimeError):
            return None
        return ObservedView(self.life, view), Stamp(LogIncarnation(incarnation), revision)

    def stamp(self) -> Stamp | None:
        """The present log position; None when the mapping was closed meanwhile."""
        try:
            _, incarnation, revision = self.reader.stamp()
        except ValueError:
            return None
        return Stamp(LogIncarnation(incarnation), revision)

    def view(self) -> int:
        """Events published in this life; 0 once the header or this mapping is closed."""
        try:
            return 0 if self.reader.closed else self.reader.view
        except ValueError:
            return 0

    def freshness_ns(self) -> int:
        """Until when the sidecar vouches for its view; 0 once the header or this mapping is closed.

        A sidecar that closed its header has left the fleet (rule R13): no fence waits for what L1 would serve after that.
        """
        try:
            return 0 if self.reader.closed else self.reader.freshness_ns()
        except ValueError:
            return 0

    def events_since(self, view: int) -> list[tuple[int, bytes, int, int, bytes]] | None:
        """Events after `view`; None when they are not all there any more, or this mapping is closed."""
        try:
            return self.reader.events_since(view)
        except ValueError:
            return None

    def set_applied_view(self, view: int) -> None:
        """Publish what this worker's L1 has applied; says nothing once this mapping is closed."""
        self._applied_view = view
        with contextlib.suppress(ValueError):
            self.reader.set_applied_view(view)

    def claim_freshness(self, freshness_ns: int | None) -> tuple[int, int]:
        """See Client.validity.claim_freshness; nothing is claimed once the header or this mapping is closed."""
        with contextlib.suppress(ValueError):
            return self.reader.claim_freshness(freshness_ns)
        return 0, 0

    def is_prefaulting(self) -> bool:
        """Whether the arena's pages are still being mapped in, in the background."""
        try:
            return not self.reader.prefault_ended
        except ValueError:
            return False

    def held(self) -> int:
        """Leases held now, each of however many pages."""
        return self.reader.held()

    def posted(self) -> int:
        """Pages that were put here and that the sidecar has not taken over yet."""
        return self.reader.posted()

    def close(self) -> None:
        """Detach, once no request is open any more: until then the row holds back `drained` for what they compute.

        Leases that are held stay readable.
        """
        self._is_leaving = True
        self._leave_if_unused()

    def request_begins(self) -> object:
        """Keep the row from now on, until `request_ended` is told of what this returns. Never waits for another thread."""
        request = object()
        # Before the mapping is looked at, as a close marks its end before it looks here.
        self._requests.add(request)
        return request

    def request_ended(self, request: object) -> None:
        """A request ended, or could not begin."""
        self._requests.discard(request)
        self._leave_if_unused()

    def _leave_if_unused(self) -> None:
        if self._is_leaving and not self._requests:
            if self._last_counts is None:
                with contextlib.suppress(ValueError):  # another thread does the same
                    self._last_counts = self._read_counts()
            unregister, self._unregister = self._unregister, None
            if unregister is not None:
                unregister()
            self._attached.close()

    def looked(self, namespace_number: int, packed: bytes) -> None:
        """Tell the sidecar of a look-up, for a recording; never waits, and what can't be told is counted with the next."""
        untold = self._untold
        told = len(packed) // KEY_BYTES <= LOOKED_PAGES_MAX and self._attached.tell(
            Looked(namespace_number, key_digests(packed), min(untold, _UNTOLD_MOST))
        )
        self._untold = 0 if told else untold + 1

    def tell_speeds(self, now_s: float) -> None:
        """Tell the sidecar how fast this client is, if that has changed, and no more often than every _SPEEDS_S; never waits."""
        if now_s < self._tell_from_s:
            return
        self._tell_from_s = now_s + _SPEEDS_S
        now = Speeds(self.loads.prefill.tokens_per_s(), *self.loads.copies.told())
        if now != self._speeds and self._attached.tell(now):
            self._speeds = now

    def looked_in_vain(self) -> None:
        """A look-up was answered before the sidecar knew its namespace: it is counted with the next that is told."""
        with contextlib.suppress(ValueError):
            if self.reader.recording:
                self._untold += 1

    def connection(self) -> AttachedArena:
        """Return the attach connection, for puts."""
        return self._attached

    def writer(self, namespace: RegisteredNamespace) -> Pages | None:
        """Who takes puts instead of shared memory; None when nobody does."""
        return None if self._writer is None else self._writer(namespace)
