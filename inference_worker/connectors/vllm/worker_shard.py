"""What a worker's loads and saves share: its rank's namespaces, the layout of its blocks, holds on views."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from inference_worker.client import Client
from inference_worker.connectors.vllm.block_layout import BlockLayout
from inference_worker.connectors.vllm.page_origins import PageOrigins
from inference_worker.connectors.vllm.plan import Variant
from inference_worker.connectors.vllm.variants import VariantNamespaces
from inference_worker.namespaces import RegisteredNamespace
from inference_worker.view_hold import ViewHold
from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.ids import NO_LIFE, LifeId
from kv_types.namespace import Namespace


class HoldsViews(Protocol):
    """What holds are taken of: Client.validity."""

    def hold(self, view: int | None = None, *, life: LifeId | None = None) -> ViewHold:
        """Hold a view."""
        ...


@dataclass(slots=True, eq=False)
class HeldView:
    """One hold that several steps' work may share; `users` give it back by ViewHolds.release."""

    life: LifeId
    view: int
    hold: ViewHold
    users: int = 0


class ViewHolds:
    """One hold a view, for as long as a load, a pass or a save of a step with that view is under way (R19). Thread-safe."""

    def __init__(self, validity: HoldsViews) -> None:
        self._validity = validity
        self._lock = threading.Lock()
        self._held: dict[tuple[LifeId, int], HeldView] = {}

    def take(self, life: LifeId, view: int) -> HeldView | None:
        """Hold a view, or an older one that is held here; None: no fence would wait for what rests on it."""
        if life == NO_LIFE:
            return None
        with self._lock:
            held = self._held.get((life, view)) or self._new(life, view)
            if held is not None:
                held.users += 1
            return held

    def share(self, held: HeldView) -> HeldView:
        """One more user of what is held."""
        with self._lock:
            held.users += 1
            return held

    def release(self, held: HeldView | None) -> None:
        """One user less; the last one ends the hold."""
        if held is None:
            return
        with self._lock:
            held.users -= 1
            if held.users == 0:
                self._held.pop((held.life, held.view), None)
                held.hold.end()

    def _new(self, life: LifeId, view: int) -> HeldView | None:
        try:
            hold = self._validity.hold(view or None, life=life)
        except InvalidArgumentError:  # no view of that life
            return None
        if hold.is_held:
            held = HeldView(life, view, hold)
            self._held[life, view] = held
            return held
        older = [one for one in self._held.values() if one.life == life and one.view <= view]
        return max(older, key=lambda one: one.view, default=None)


class ShardSpaces:
    """This rank's namespaces by variant, registered while they are used. Thread-safe."""

    def __init__(self, client: Client, base: Namespace, *, page_bytes: int) -> None:
        self._lock = threading.Lock()
        self._variants = VariantNamespaces(client, [base], page_bytes=page_bytes)

    @contextmanager
    def using(self, variant: Variant) -> Iterator[RegisteredNamespace]:
        """The namespace of a variant, kept until the block is left. Raises StrataError."""
        with self._lock:
            shards = self._variants.get(variant)
            if shards is None:
                raise LimitExceededError("more variants are in use than a client may have namespaces")
            self._variants.hold(variant)
        try:
            yield shards[0].registered
        finally:
            with self._lock:
                self._variants.release(variant)


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of the model."""

    client: Client
    rank: int
    layout: BlockLayout
    blocks_per_page: int
    spaces: ShardSpaces
    origins: PageOrigins
    holds: ViewHolds

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return self.layout.page_bytes(self.blocks_per_page)
