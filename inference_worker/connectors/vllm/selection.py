"""What a run of ring events selects of the engine's pages, as far as that can be told from names alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kv_types.errors import ProtocolError
from kv_types.events import LogStarted, Selected, decode_event
from kv_types.ids import KEY_BYTES
from kv_types.namespace import Namespace
from kv_types.selectors import Selector

_FIND_KEYS_MAX_PAGES = (
    KEY_BYTES  # of so few keys each is searched for by itself: it costs less than cutting a chain up
)


@dataclass(slots=True)
class Selection:
    """Selectors with a key, by that key, and those without. What a page's origin would decide counts as met (I6)."""

    by_key: dict[bytes, list[Selector]] = field(default_factory=dict)
    wide: list[Selector] = field(default_factory=list)
    is_everything: bool = False

    def add(self, selector: Selector) -> None:
        """Select what this selector does, besides."""
        if selector.key is not None:
            self.by_key.setdefault(selector.key, []).append(selector)
        elif selector.names_namespace:
            self.wide.append(selector)
        else:
            self.is_everything = True

    def __bool__(self) -> bool:
        return self.is_everything or bool(self.by_key) or bool(self.wide)

    def takes_all_of(self, namespaces: Sequence[Namespace]) -> bool:
        """Whether every page of a computation, whose namespaces are given (one a rank), is selected."""
        return (
            self.is_everything
            or not namespaces
            or any(_matches(selector, namespaces) for selector in self.wide)
        )

    def takes_key(self, key: bytes, namespaces: Sequence[Namespace]) -> bool:
        """Whether a page of this key is selected by name."""
        return any(_matches(selector, namespaces) for selector in self.by_key.get(key, ()))

    def keys_of(self, namespaces: Sequence[Namespace]) -> Iterator[bytes]:
        """Keys of pages that may be of this computation and are selected by name."""
        return (key for key in self.by_key if self.takes_key(key, namespaces))

    def first_page(self, namespaces: Sequence[Namespace], chains: Sequence[bytes]) -> int | None:
        """Index of the first selected page in a chain (packed keys, one chain a rank); None: none is."""
        if self.takes_all_of(namespaces):
            return 0
        found = [
            at
            for chain in chains
            for at in (
                self._places(chain) if len(self.by_key) <= _FIND_KEYS_MAX_PAGES else self._members(chain)
            )
            if self.takes_key(chain[at : at + KEY_BYTES], namespaces)
        ]
        return min(found) // KEY_BYTES if found else None

    def _places(self, chain: bytes) -> Iterator[int]:
        for key in self.by_key:
            at = chain.find(key)
            while at > 0 and at % KEY_BYTES:  # bytes of two neighbours that look like the key
                at = chain.find(key, at + 1)
            if at >= 0:
                yield at

    def _members(self, chain: bytes) -> Iterator[int]:
        return (at for at in range(0, len(chain), KEY_BYTES) if chain[at : at + KEY_BYTES] in self.by_key)


EVERYTHING_SELECTED = Selection(is_everything=True)


def selection_of(
    events: Sequence[tuple[int, bytes, int, int, bytes]] | None, *, after: int, until: int
) -> Selection:
    """What the events after view `after` up to view `until` select; everything where that can't be told."""
    relevant = [event for event in events or () if after < event[0] <= until]
    if [event[0] for event in relevant] != list(range(after + 1, until + 1)):
        return EVERYTHING_SELECTED
    selection = Selection()
    for _, _, _, kind, payload in relevant:
        try:
            event = decode_event(kind, payload)
        except ProtocolError:
            return EVERYTHING_SELECTED
        if isinstance(event, LogStarted):
            return EVERYTHING_SELECTED
        if isinstance(event, Selected):
            selection.add(event.selector)
    return selection


def _matches(selector: Selector, namespaces: Sequence[Namespace]) -> bool:
    """A selector may name the namespace of any rank; one of no known namespace may be that of an unnamed computation."""
    return not namespaces or any(selector.matches_namespace(namespace) for namespace in namespaces)
