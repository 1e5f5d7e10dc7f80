"""Namespaces of one sidecar's life: canonical bytes to a number that the arena, its rows and its metrics use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kv_types.errors import (
    InvalidArgumentError,
    LayoutConflictError,
    LimitExceededError,
    UnknownNamespaceError,
)
from kv_types.ids import NamespaceId
from kv_types.limits import NAMESPACES_MAX
from kv_types.namespace import Namespace
from kv_types.page_layout import check_page_bytes


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """A registered namespace; `number` means something only within this life, `page_bytes` is one page's payload."""

    namespace: Namespace
    id: NamespaceId
    number: int
    page_bytes: int


class NamespaceRegistry:
    """Grows up to NAMESPACES_MAX and never forgets: a number means one namespace for a whole life."""

    def __init__(self) -> None:
        self._by_id: dict[NamespaceId, NamespaceRecord] = {}
        self._by_number: list[NamespaceRecord] = []

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[NamespaceRecord]:
        return iter(self._by_number)

    def register(self, canonical: bytes, page_bytes: int) -> NamespaceRecord:
        """Return the record of a namespace, the same one each time.

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
            return known
        _check_size(namespace, page_bytes)
        if len(self._by_number) >= NAMESPACES_MAX:
            raise LimitExceededError(
                f"this sidecar knows {NAMESPACES_MAX} namespaces already: restart it to forget those not in use"
            )
        record = NamespaceRecord(namespace, namespace.id, len(self._by_number), page_bytes)
        self._by_id[record.id] = record
        self._by_number.append(record)
        return record

    def of_id(self, namespace: NamespaceId) -> NamespaceRecord:
        """Look a namespace up; raises UnknownNamespaceError."""
        record = self._by_id.get(namespace)
        if record is None:
            raise UnknownNamespaceError(
                f"namespace {bytes(namespace).hex()[:16]} is not registered in this sidecar's life: register it first"
            )
        return record

    def of_number(self, number: int) -> NamespaceRecord:
        """Look a namespace up by its number in this life; raises UnknownNamespaceError."""
        if not 0 <= number < len(self._by_number):
            raise UnknownNamespaceError(f"namespace number {number} means nothing in this sidecar's life")
        return self._by_number[number]

    def find(self, namespace: NamespaceId) -> NamespaceRecord | None:
        """Look a namespace up that may not be registered."""
        return self._by_id.get(namespace)


def _check_size(namespace: Namespace, page_bytes: int) -> None:
    try:
        check_page_bytes(namespace, page_bytes)
    except LimitExceededError:
        raise
    except InvalidArgumentError as error:
        raise LayoutConflictError(f"{error}: register the size of its layout") from error
