"""What an L1 checks its pages by: life, view and events of the sidecar's header, whichever life serves now (R16)."""

from __future__ import annotations

from typing import Protocol

from inference_worker.local import LocalArena
from inference_worker.outlived import OutlivedHeader
from inference_worker.view_hold import ViewHold
from kv_types.ids import NO_LIFE, LifeId, Stamp
from kv_types.numbers import check_word
from kv_types.validity import ObservedView

Header = LocalArena | OutlivedHeader


class HeaderHolder(Protocol):
    """Who knows the header that counts now."""

    @property
    def header(self) -> Header | None:
        """That of the shared memory that serves, else `outlived`, or None while there is neither."""
        ...

    @property
    def outlived(self) -> OutlivedHeader | None:
        """What is left of a sidecar that has died, for an engine that may go on without."""
        ...

    @property
    def was_attached(self) -> bool:
        """Whether a sidecar has ever served."""
        ...


class ClientValidity:
    """Conforms to kv_types.validity.ValiditySource, and says for an engine how long it may serve without asking.

    Without shared memory there is no header: the life is NO_LIFE then, and an L1 trusts no page. An engine of mode KEEP goes by
    the header of a sidecar that died until the next one comes: `outlived`.
    """

    def __init__(self, link: HeaderHolder) -> None:
        self._link = link

    @property
    def life(self) -> LifeId:
        """The sidecar's life; NO_LIFE while no header can be read."""
        arena = self._link.header
        return NO_LIFE if arena is None else arena.life

    @property
    def view(self) -> int:
        """Events published in this life up to now; 0 while no header can be read."""
        arena = self._link.header
        return 0 if arena is None else arena.view()

    @property
    def freshness_ns(self) -> int:
        """CLOCK_BOOTTIME ns until which the view is vouched for; load it before `view`. 0 while no header can be read."""
        arena = self._link.header
        return 0 if arena is None else arena.freshness_ns()

    @property
    def outlived(self) -> bool:
        """Whether the sidecar has died, having told the log of this engine of mode KEEP, and no other one has come since.

        The engine may go on with what it has, as while a sidecar can't be heard: `life` and `view` stay those of the header
        that was left behind, freshness runs out, and a claim without limit is granted once all events up to its view are
        applied, since the log still names that member to every fence. False where the sidecar closed its header in order,
        where the log doesn't know of the engine, for other modes, and as soon as another life serves.
        """
        return self._link.outlived is not None

    @property
    def never_attached(self) -> bool:
        """Whether no sidecar has ever served this client: then no fence can have counted on it."""
        return not self._link.was_attached

    def events_since(self, view: int) -> list[tuple[int, bytes, int, int, bytes]] | None:
        """(view, incarnation, revision, kind, payload) of each event after `view`; None: unknown, drop everything.

        Raises InvalidArgumentError.
        """
        check_word(view, "view")
        arena = self._link.header
        return None if arena is None else arena.events_since(view)

    def set_applied_view(self, view: int) -> None:
        """Tell the sidecar that this worker's L1 trusts no page that an event up to `view` selects.

        Raises InvalidArgumentError.
        """
        check_word(view, "view")
        arena = self._link.header
        if arena is not None:
            arena.set_applied_view(view)

    def stamped_view(self) -> tuple[ObservedView, Stamp] | None:
        """Life, view and log position of one moment; None while no header can be read. Load `freshness_ns` before.

        What is begun afterwards may be stored under the stamp, once all events up to the view are applied (R1).
        """
        arena = self._link.header
        return None if arena is None else arena.stamped_view()

    def hold(self, view: int | None = None, *, life: LifeId | None = None) -> ViewHold:
        """Hold `drained` back from the present view on, until what is returned has advanced or ended (R19).

        For a process that follows views by itself: one hold stands for all its work. `view`: an older view, which work
        rests on that another process has begun; `life`: the life that it counts in. Nothing is held (`is_held` tells) where
        no header can be read, another life serves, or this client holds 256 requests and holds already: then no fence waits
        for this process, and nothing may be stored that rests on what it does. Raises InvalidArgumentError for what is no
        view, or not published in this life.
        """
        if view is not None:
            check_word(view, "view")
        arena = self._link.header
        if arena is None or (life is not None and life != arena.life):
            return ViewHold(None)
        return arena.hold(view)

    def claim_freshness(self, freshness_ns: int | None = None) -> tuple[int, int]:
        """For an engine (ClientSettings.engine): say until when its index may serve without asking, then load the view.

        CLOCK_BOOTTIME ns; None takes the sidecar's own freshness, past which nothing is granted: fences wait no longer for
        a sidecar that is gone. 0 gives the claim up, 2**64 − 1 (KEEP) is without limit: granted once the log knows of this
        client, until then the sidecar's own freshness is claimed.
        Returns what was claimed and the view: events up to it must be applied before anything is served. (0, 0) while no
        header can be read: nothing may be served then by DROP. Never lower a claim that is still relied on. Raises
        InvalidArgumentError.
        """
        if freshness_ns is not None:
            check_word(freshness_ns, "freshness_ns")
        arena = self._link.header
        return (0, 0) if arena is None else arena.claim_freshness(freshness_ns)
