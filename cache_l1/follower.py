"""ViewFollower: turns what a sidecar publishes into what an L1 must forget and what it may still insert.

A state machine without locks or pages: it reads a ValiditySource and answers with verdicts that the cache carries out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kv_types.engine_limits import L1_TOMBSTONES_MAX
from kv_types.errors import ProtocolError
from kv_types.events import LogStarted, Selected, WeightsAnnounced, decode_event
from kv_types.ids import NO_LIFE, PageKey
from kv_types.namespace import Namespace
from kv_types.selectors import Selector
from kv_types.validity import ObservedView, ValiditySource


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to forget before any page is trusted at `observed`; None: no header can be read, trust nothing."""

    observed: ObservedView | None
    everything: bool = False
    pages: tuple[PageKey, ...] = ()
    """Keys to forget with all that stands on them."""


class ViewFollower:
    """Follows one source. `namespace` is that of all pages of the cache, None when it holds several or an unknown one.

    Whatever it cannot interpret, has missed, or belongs to another life means: forget everything (invariant I6).
    Selectors may name who computed a page, when, or under which tags; nobody knows that here, so such conditions count
    as met.
    """

    def __init__(self, source: ValiditySource, *, namespace: Namespace | None = None) -> None:
        self._source = source
        self._namespace = namespace
        self._followed: ObservedView | None = None
        self._confirmed: ObservedView | None = None
        self._floor_view = 0
        self._tombstones: dict[PageKey, int] = {}

    @property
    def source(self) -> ValiditySource:
        """What is followed."""
        return self._source

    @property
    def followed(self) -> ObservedView | None:
        """Life and view up to which events were read; None before the first call of `follow`."""
        return self._followed

    def look(self) -> ObservedView | None:
        """Life and view of one moment; None while no header can be read."""
        life = self._source.life
        view = self._source.view
        if life == NO_LIFE or self._source.life != life:
            return None
        return ObservedView(life, view)

    def follow(self) -> Verdict:
        """Read what was published since the last call. The caller forgets what the verdict says, then `confirm`s."""
        observed = self.look()
        before = self._followed
        if observed is None or observed == before:
            return Verdict(observed)
        if before is None or before.life != observed.life or before.view > observed.view:
            self._tombstones.clear()
            self._floor_view = observed.view
            self._followed = observed
            return Verdict(observed, everything=True)
        events = self._source.events_since(before.view)
        if self._source.life != observed.life:  # the events may be those of another life
            return Verdict(None)
        verdict = self._judge(events, before.view, observed)
        self._followed = observed
        return verdict

    def confirm(self, observed: ObservedView) -> None:
        """The caller has forgotten everything up to `observed`."""
        if observed != self._confirmed:
            self._source.set_applied_view(observed.view)
            self._confirmed = observed

    def admits(self, chain: Sequence[PageKey], view: ObservedView | None) -> bool:
        """Whether pages computed by a request that loaded `view` before any reuse may still be inserted.

        Call it after `follow`. The whole chain counts: what stands on a hidden page is hidden too (rule R3).
        """
        followed = self._followed
        if view is None or followed is None or view.life != followed.life:
            return False
        if not self._floor_view <= view.view <= followed.view:
            return False
        if not self._tombstones:
            return True
        return all(self._tombstones.get(key, 0) <= view.view for key in chain)

    def _judge(
        self,
        events: Sequence[tuple[int, bytes, int, int, bytes]] | None,
        before_view: int,
        observed: ObservedView,
    ) -> Verdict:
        relevant = [event for event in events or () if before_view < event[0] <= observed.view]
        if [event[0] for event in relevant] != list(range(before_view + 1, observed.view + 1)):
            return self._forget_everything(observed, observed.view)
        pages: list[PageKey] = []
        everything_view = 0
        for view, _, _, kind, payload in relevant:
            keys = self._selected(kind, payload)
            if keys is None:
                everything_view = view
                continue
            pages += keys
            self._tombstones.update(dict.fromkeys(keys, view))
        if everything_view:
            return self._forget_everything(observed, everything_view)
        self._bound_tombstones()
        return Verdict(observed, pages=tuple(pages))

    def _selected(self, kind: int, payload: bytes) -> tuple[PageKey, ...] | None:
        """Keys that an event selects, with all that stands on them; None: it may select anything."""
        try:
            event = decode_event(kind, payload)
        except ProtocolError:
            return None
        match event:
            case Selected(selector):
                return self._keys_of(selector)
            case WeightsAnnounced():
                return ()  # names what is computed from here on; the old version's pages go by a selector
            case LogStarted():
                return None

    def _keys_of(self, selector: Selector) -> tuple[PageKey, ...] | None:
        if self._namespace is not None and not selector.matches_namespace(self._namespace):
            return ()
        return None if selector.key is None else (selector.key,)

    def _forget_everything(self, observed: ObservedView, view: int) -> Verdict:
        self._floor_view = view
        self._tombstones = {key: at for key, at in self._tombstones.items() if at > view}
        self._bound_tombstones()
        return Verdict(observed, everything=True)

    def _bound_tombstones(self) -> None:
        """Tombstones beyond the limit become a floor: more inserts are refused, none is wrongly admitted."""
        if len(self._tombstones) > L1_TOMBSTONES_MAX:
            self._floor_view = max(self._tombstones.values())
            self._tombstones.clear()
