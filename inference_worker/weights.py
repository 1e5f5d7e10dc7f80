"""Announced weights versions: what a sidecar's ring says of them, and the version that a worker that follows goes by.

An announcement is a record of the log. It reaches a worker through the ring in shared memory; what the ring can't tell
(a first look, another life, a ring that was overrun, a log that began anew) is asked for in the background.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from inference_worker.deadlines import Deadline
from kv_types.errors import InvalidArgumentError, ProtocolError
from kv_types.events import LogStarted, WeightsAnnounced, decode_event
from kv_types.ids import NO_LIFE, LifeId
from kv_types.limits import LOG_WEIGHTS_MAX
from kv_types.validity import ObservedView, ValiditySource


@dataclass(frozen=True, slots=True)
class Announced:
    """What was announced last for one model; `version` None: nothing.

    `count` grows with each announcement that was seen, `reads` each time the ring could not tell and all versions were
    read anew. Two that are equal: nothing was announced between them.
    """

    version: str | None
    count: int
    reads: int


class Versions(NamedTuple):
    """All versions announced last, by model, as a sidecar of this life told them at this view."""

    life: LifeId
    view: int
    by_model: Mapping[str, str]


Fetch = Callable[[], Versions | None]
"""Asks the sidecar; None when it did not answer in time. May take as long as a call's deadline."""


class WeightsWatch:
    """Follows a ring for announcements, once somebody has asked. Thread-safe; `look` waits for nothing."""

    def __init__(self, source: ValiditySource, fetch: Fetch, *, wake: Callable[[], None]) -> None:
        """`wake` makes whoever calls `refresh` do so soon."""
        self._source = source
        self._fetch = fetch
        self._wake = wake
        self._changed = threading.Condition(threading.Lock())
        self._is_wanted = False
        self._followed: ObservedView | None = None
        self._versions: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._reads = 0

    def look(self, model: str) -> Announced | None:
        """What is announced for a model at the present view; None: it can't be told now.

        Load a request's view before, so that no announcement at or before that view is overlooked.
        """
        with self._changed:
            self._is_wanted = True
            self._follow()
            known = self._told(model)
            can_be_asked = known is None and self._present() is not None
        if can_be_asked:
            self._wake()
        return known

    def wait(self, model: str, deadline: Deadline) -> Announced | None:
        """Look, and if that can't be told yet, wait for it, unless no sidecar is there to tell it."""
        known = self.look(model)
        with self._changed:
            if known is None and self._present() is not None:
                self._changed.wait_for(lambda: self._followed is not None, deadline.remaining_s())
                self._follow()
            return self._told(model)

    def refresh(self) -> None:
        """Ask for all versions if they are wanted and not known; for a background thread."""
        with self._changed:
            self._follow()
            before = self._present()
            if not self._is_wanted or self._followed is not None or before is None:
                return
        told = self._fetch()
        # What was announced up to the view that was loaded before is among what the sidecar told; later ones are in the ring.
        if told is None or told.life != before.life or told.view < before.view:
            return
        with self._changed:
            self._followed = before
            self._versions = dict(told.by_model)
            self._counts = {model: count for model, count in self._counts.items() if model in told.by_model}
            self._reads += 1
            self._follow()
            self._changed.notify_all()

    def _told(self, model: str) -> Announced | None:
        if self._followed is None:
            return None
        return Announced(self._versions.get(model), self._counts.get(model, 0), self._reads)

    def _present(self) -> ObservedView | None:
        life = self._source.life
        view = self._source.view
        return None if life == NO_LIFE or self._source.life != life else ObservedView(life, view)

    def _follow(self) -> None:
        """Read what was published since the last look; whatever can't be told makes all versions unknown."""
        before, now = self._followed, self._present()
        if before is None or before == now:
            return
        self._followed = None
        if now is None or now.life != before.life or now.view < before.view:
            return
        events = self._source.events_since(before.view)
        if events is None or self._source.life != now.life:
            return
        relevant = [event for event in events if before.view < event[0] <= now.view]
        if [event[0] for event in relevant] == list(range(before.view + 1, now.view + 1)) and self._take(
            relevant
        ):
            self._followed = now

    def _take(self, events: Sequence[tuple[int, bytes, int, int, bytes]]) -> bool:
        """Take note of announcements; False when all versions have to be read anew."""
        for _, _, _, kind, payload in events:
            try:
                event = decode_event(kind, payload)
            except ProtocolError:
                return False
            if isinstance(event, LogStarted):
                return False
            if isinstance(event, WeightsAnnounced):
                self._versions[event.model] = event.version
                self._counts[event.model] = self._counts.get(event.model, 0) + 1
        return len(self._versions) <= LOG_WEIGHTS_MAX


class FollowedVersion:
    """The version of one worker's weights: as its owner declares it, then as it is announced. Pure; not thread-safe.

    What was announced stays announced, also where no sidecar knows of it any more.
    What was announced before its owner spoke does not rename weights that were loaded since. A worker that can't tell
    whether its weights are those that were announced reuses and stores nothing, until it can (rule R5).
    """

    def __init__(self, version: str | None) -> None:
        """Raises InvalidArgumentError when the weights are named by no version."""
        if version is None:
            raise InvalidArgumentError(
                "who follows announcements of weights names its own by a version: give weights=Weights(version=…)"
            )
        self.version = version
        self._seen: Announced | None = None
        self._is_settled = False

    def declare(self, version: str) -> None:
        """The owner has changed the weights: from now on they have this version, whatever was announced before."""
        self.version = version
        self._is_settled = self._seen is not None

    def observe(self, announced: Announced | None) -> str:
        """Take what is announced now; returns why nothing may be reused or stored, empty when it may."""
        if announced is None:
            return "it can't be told at the moment which version of the weights is announced"
        seen = self._seen
        if announced.version is None and seen is not None and seen.version is not None:
            # The log was lost, and with it what it said: that is no announcement, and settles nothing.
            announced = replace(announced, version=seen.version)
            seen = announced
        self._seen = announced
        is_later = seen is not None and (announced.count, announced.version) != (seen.count, seen.version)
        if is_later and announced.version is not None:  # it never goes back to none
            self.version = announced.version
        self._is_settled = self._is_settled or is_later or announced.version in (None, self.version)
        if self._is_settled:
            return ""
        return (
            f"version {announced.version} of the weights is announced, and this worker was started with version "
            f"{self.version}: load those, or say set_weights_version"
        )
