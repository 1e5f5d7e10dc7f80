"""A hold on a view: what a process that follows views by itself keeps `drained` back with (R19)."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from kv_types.errors import InvalidArgumentError
from kv_types.ids import NO_LIFE, LifeId
from kv_types.numbers import check_word


class HoldingArena(Protocol):
    """What a hold asks of the shared memory that it was taken in."""

    @property
    def life(self) -> LifeId:
        """The sidecar's life."""
        ...

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that attached."""
        ...

    def advance_hold(self, slot: int, view: int) -> bool:
        """Raise what a slot holds; False where that view is not published."""
        ...

    def end_hold(self, slot: int, request: object) -> None:
        """Give a slot back."""
        ...


class ViewHold:
    """Says that work of this process may rest on pages as they were at a view, until it is ended. A context manager.

    While it is held, no fence that waits for `drained` is over before this hold is past its view, or has ended. A sidecar
    that ends changes nothing here: it holds on in a life that nobody waits for any more; `life` says which one that is. One
    that holds nothing, since no header could be read, another life serves, or all slots of this client are taken, answers
    every call: then nobody waits for what this process does, and pages of L2 that it uses may be declared drained.
    For one thread at a time. In a process forked afterwards it does nothing: the hold is the parent's.
    """

    __slots__ = ("_arena", "_request", "_slot", "_view")

    def __init__(
        self, arena: HoldingArena | None, *, slot: int = -1, view: int = 0, request: object = None
    ) -> None:
        """Use `Client.validity.hold`."""
        self._arena = arena
        self._slot = slot
        self._view = view
        self._request = request

    @property
    def is_held(self) -> bool:
        """Whether anything is held by this process."""
        return self._arena is not None and not self._arena.inherited

    @property
    def life(self) -> LifeId:
        """The sidecar's life in which it holds; NO_LIFE where nothing is."""
        return NO_LIFE if self._arena is None else self._arena.life

    @property
    def view(self) -> int:
        """The view that is held; 0 where nothing is."""
        return self._view

    def advance(self, view: int) -> None:
        """Hold this view of `life` from now on: what was hidden up to it is used no more. A lower one changes nothing.

        Raises InvalidArgumentError for what is no view, or not published in that life.
        """
        check_word(view, "view")
        if self._arena is None or self._arena.inherited or view <= self._view:
            return
        if not self._arena.advance_hold(self._slot, view):
            raise InvalidArgumentError(f"view {view} is not published in the life of this hold")
        self._view = view

    def end(self) -> None:
        """Hold nothing any more; again does nothing."""
        arena, self._arena = self._arena, None
        if arena is not None:
            self._view = 0
            if not arena.inherited:
                arena.end_hold(self._slot, self._request)

    def __del__(self) -> None:
        # One that was forgotten would hold back `drained` for as long as this process lives.
        self.end()

    def __enter__(self) -> ViewHold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
