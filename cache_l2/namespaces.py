"""Namespaces that one sidecar knows: canonical bytes to a number that the arena uses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from kv_types.errors import (
    InvalidArgumentError,
    LayoutConflictError,
    LimitExceededError,
    UnknownNamespaceError,
)
from kv_types.ids import NamespaceId
from kv_types.limits import METRIC_NAMESPACES_MAX, NAMESPACES_MAX
from kv_types.namespace import Namespace
from kv_types.page_layout import check_page_bytes
from kv_types.scale_groups import check_stored_as


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """A registered namespace; `page_bytes` is one page's payload.

    `number` stands for it while it is registered, and for another one later in this life. `serial` counts registrations
    and stands for this one alone.
    """

    namespace: Namespace
    id: NamespaceId
    number: int
    page_bytes: int
    serial: int = 0


GiveUp = Callable[[Iterable[NamespaceRecord]], NamespaceRecord | None]
"""Makes nothing go any more by the number of one of these, idle for longest first, and returns it; None: can't be done."""


def _give_up_none(idle: Iterable[NamespaceRecord]) -> None:
    del idle


class NamespaceRegistry:
    """Knows up to NAMESPACES_MAX namespaces at a time. Past that a new one gets the number of one that is given up."""

    def __init__(self, *, give_up: GiveUp = _give_up_none) -> None:
        self._give_up = give_up
        self._by_id: dict[NamespaceId, NamespaceRecord] = {}
        """In the order of registration."""
        self._by_number: list[NamespaceRecord] = []
        self._idle: OrderedDict[NamespaceId, None] = OrderedDict()
        """Those not used for longest first."""
        self._first: dict[NamespaceId, Namespace] = {}
        self.registrations = 0
        """How many there were; the serial of the next one."""

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[NamespaceRecord]:
        return iter(self._by_id.values())

    @property
    def first(self) -> Mapping[NamespaceId, Namespace]:
        """The first METRIC_NAMESPACES_MAX of this life, registered still or not: what is told of them stays apart."""
        return self._first

    @property
    def recycled(self) -> int:
        """How often a number was given to another namespace."""
        return self.registrations - len(self._by_number)

    def register(self, canonical: bytes, page_bytes: int) -> NamespaceRecord:
        """Return the record of a namespace, the same one each time while it is registered.

        Raises ProtocolError (not a canonical encoding), LayoutConflictError (a page size that contradicts the
        geometry or an earlier registration), LimitExceededError.
        """
        namespace = Namespace.from_canonical(canonical)
        known = self._by_id.get(namespace.id)
        if known is not None:
            if known.page_bytes != page_bytes:
                raise LayoutConflictError(
                    f"namespace {namespace.id.hex()[:16]} of model {namespace.model!r} is registered with pages of "
                    f"{known.page_bytes} bytes, not {page_bytes}: both sides must use one layout"
                )
            self.used(known.id)
            return known
        _check_size(namespace, page_bytes)
        record = NamespaceRecord(namespace, namespace.id, self._free_number(), page_bytes, self.registrations)
        self._by_id[record.id] = record
        self._by_number[record.number : record.number + 1] = [record]
        self._idle[record.id] = None
        self.registrations += 1
        if len(self._first) < METRIC_NAMESPACES_MAX:
            self._first[record.id] = namespace
        return record

    def used(self, namespace: NamespaceId) -> None:
        """It is not idle; does nothing when it is not registered."""
        if namespace in self._idle:
            self._idle.move_to_end(namespace)

    def _free_number(self) -> int:
        if len(self._by_number) < NAMESPACES_MAX:
            return len(self._by_number)
        given_up = self._give_up(self._by_id[namespace] for namespace in self._idle)
        if given_up is None:
            raise LimitExceededError(
                f"all {NAMESPACES_MAX} namespaces that a sidecar knows at a time are in use by its clients: let clients "
                "forget those that they need no more, or end them"
            )
        del self._by_id[given_up.id], self._idle[given_up.id]
        return given_up.number

    def of_id(self, namespace: NamespaceId) -> NamespaceRecord:
        """Look up a namespace that is about to be used; raises UnknownNamespaceError."""
        record = self._by_id.get(namespace)
        if record is None:
            raise UnknownNamespaceError(
                f"namespace {bytes(namespace).hex()[:16]} is not registered with this sidecar, or was idle and has been "
                "forgotten: register it first"
            )
        self.used(namespace)
        return record

    def of_number(self, number: int) -> NamespaceRecord:
        """Look a namespace up by its number; raises UnknownNamespaceError."""
        if not 0 <= number < len(self._by_number):
            raise UnknownNamespaceError(f"namespace number {number} means nothing to this sidecar")
        return self._by_number[number]

    def find_number(self, number: int) -> NamespaceRecord | None:
        """Look a namespace up by its number; None where it means nothing."""
        return self._by_number[number] if 0 <= number < len(self._by_number) else None

    def find(self, namespace: NamespaceId) -> NamespaceRecord | None:
        """Look a namespace up that may not be registered."""
        return self._by_id.get(namespace)


def _check_size(namespace: Namespace, page_bytes: int) -> None:
    try:
        check_page_bytes(namespace, page_bytes)
        check_stored_as(namespace, page_bytes)
    except LimitExceededError:
        raise
    except InvalidArgumentError as error:
        raise LayoutConflictError(f"{error}: register the size of its layout") from error
