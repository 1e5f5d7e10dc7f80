"""Namespaces of variants, registered with a client: made when first asked for, forgotten when others need their places."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from inference_worker.client import Client
from inference_worker.connectors.vllm.asking import Asker
from inference_worker.connectors.vllm.identity import namespace_of
from inference_worker.connectors.vllm.plan import Variant
from inference_worker.namespaces import RegisteredNamespace
from kv_types.errors import DeadlineExceededError, LimitExceededError, StrataError
from kv_types.limits import NAMESPACES_PER_CLIENT_MAX
from kv_types.namespace import Namespace


@dataclass(frozen=True, slots=True)
class ShardNamespace:
    """One shard's namespace as a client has it registered."""

    namespace: Namespace
    registered: RegisteredNamespace


class VariantNamespaces:
    """By variant, one namespace a shard of `bases`. Not thread-safe.

    Holds as many variants as a client may have namespaces; the one that was used longest ago, and is not `held`, makes
    room for the next. Shards that keep the same (the latent of MLA) share one.
    """

    def __init__(
        self, client: Client, bases: Sequence[Namespace], *, page_bytes: int, asker: Asker | None = None
    ) -> None:
        self._client = client
        self._asker = Asker(client) if asker is None else asker
        self._bases = tuple(bases)
        self._page_bytes = page_bytes
        self._known: OrderedDict[Variant, tuple[ShardNamespace, ...]] = OrderedDict()
        self._held: dict[Variant, int] = {}
        self._capacity = NAMESPACES_PER_CLIENT_MAX // len(set(self._bases))

    def get(self, variant: Variant) -> tuple[ShardNamespace, ...] | None:
        """One namespace a shard, in the order of the bases; None: there is no place for this variant now."""
        known = self._known.get(variant)
        if known is None:
            known = self._register(variant)
            if known is None:
                return None
            self._known[variant] = known
        self._known.move_to_end(variant)
        return known

    def hold(self, variant: Variant) -> None:
        """Keep a variant's namespaces until `release`: something of it is under way."""
        self._held[variant] = self._held.get(variant, 0) + 1

    def release(self, variant: Variant) -> None:
        """Undo one `hold`."""
        left = self._held.get(variant, 0) - 1
        if left > 0:
            self._held[variant] = left
        else:
            self._held.pop(variant, None)

    def _register(self, variant: Variant) -> tuple[ShardNamespace, ...] | None:
        if len(self._known) >= self._capacity and not self._make_room():
            return None
        try:
            names = [namespace_of(base, variant) for base in self._bases]
            return tuple(
                ShardNamespace(name, self._client.register(name, page_bytes=self._page_bytes))
                for name in names
            )
        except LimitExceededError:
            return None

    def _make_room(self) -> bool:
        oldest = next((variant for variant in self._known if variant not in self._held), None)
        if oldest is None or self._asker.is_waiting:
            return False
        for shard in {id(shard.registered): shard for shard in self._known.pop(oldest)}.values():
            try:
                self._client.forget(shard.registered)
            except DeadlineExceededError:
                self._asker.hung()
                return False  # the sidecar hangs: its place stays taken until the client tells it
            except StrataError:
                continue  # a closed client, or a namespace that is gone already
        return True
