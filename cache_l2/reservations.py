"""Which pages the reservations in flight are for, so that a commit can be judged by the whole chain."""

from __future__ import annotations

from typing import NamedTuple

from kv_types.ids import KEY_BYTES, NamespaceId
from kv_types.limits import RESERVATIONS_PER_CLIENT_MAX


class PendingPage(NamedTuple):
    """A page between reserve and commit; `parent` None: a root page."""

    namespace: NamespaceId
    key: bytes
    parent: bytes | None


class ReservationBook:
    """Pending pages by row and reservation id; bounded a row, the oldest are forgotten first.

    A forgotten reservation can't be committed any more, which is what its expiry means anyway.
    """

    def __init__(self, *, pages_per_row_max: int = 2 * RESERVATIONS_PER_CLIENT_MAX) -> None:
        self._rows: dict[int, dict[int, PendingPage]] = {}
        self._pages_per_row_max = pages_per_row_max
        self._forgetful: set[int] = set()

    def add_run(
        self,
        row: int,
        namespace: NamespaceId,
        parent: bytes | None,
        keys: bytes,
        reservations: list[int | None],
    ) -> None:
        """Note a run of one chain: reservations[i] is that of keys[i], None where there is none."""
        pending = self._rows.setdefault(row, {})
        for index, reservation in enumerate(reservations):
            key = keys[index * KEY_BYTES : (index + 1) * KEY_BYTES]
            if reservation is not None:
                pending[reservation] = PendingPage(namespace, key, parent)
            parent = key
        while len(pending) > self._pages_per_row_max:
            del pending[next(iter(pending))]
            self._forgetful.add(row)

    def take(self, row: int, reservation: int) -> PendingPage | None:
        """Remove and return a row's reservation; None when it is not this row's, or ended already."""
        return self._rows.get(row, {}).pop(reservation, None)

    def end_row(self, row: int) -> None:
        """Forget all of a row's."""
        self._rows.pop(row, None)
        self._forgetful.discard(row)

    def may_be_written(self, row: int) -> bool:
        """Whether a row has reservations, run out or not, that its process neither committed nor gave back."""
        return row in self._forgetful or bool(self._rows.get(row))

    def pages(self, row: int) -> int:
        """Reservations noted for a row."""
        return len(self._rows.get(row, {}))
