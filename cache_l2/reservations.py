"""Which pages the reservations in flight are for, so that a commit can be judged by the whole chain."""

from __future__ import annotations

from typing import NamedTuple

from kv_types.ids import KEY_BYTES, NamespaceId


class PendingPage(NamedTuple):
    """A page between reserve and commit; `parent` None: a root page."""

    namespace: NamespaceId
    key: bytes
    parent: bytes | None


class ReservationBook:
    """Pending pages by row and reservation id.

    Bounded by the arena, which counts reservations of a client, run out or not, against RESERVATIONS_PER_CLIENT_MAX
    until they are committed, given back, or the client has ended.
    """

    def __init__(self) -> None:
        self._rows: dict[int, dict[int, PendingPage]] = {}

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

    def take(self, row: int, reservation: int) -> PendingPage | None:
        """Remove and return a row's reservation; None when it is not this row's, or ended already."""
        return self._rows.get(row, {}).pop(reservation, None)

    def end_row(self, row: int) -> None:
        """Forget all of a row's."""
        self._rows.pop(row, None)

    def pages(self, row: int) -> int:
        """Reservations noted for a row."""
        return len(self._rows.get(row, {}))
