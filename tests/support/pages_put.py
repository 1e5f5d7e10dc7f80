"""Pages of real token chains put over gRPC with an origin of the test's choice, and what of them still hits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from kv_types.ids import PageKey, Stamp
from kv_types.namespace import Namespace
from kv_types.outcomes import Hit, PutOutcome
from kv_types.page_keys import page_keys, unpack_keys
from kv_types.page_layout import PageLayout
from kv_wire.conversions import put_from_wire, stamp_to_wire
from kv_wire.gen import cache_pb2
from kv_wire.page_batches import put_messages
from tests.support.remote_store import DEADLINE_S, RemoteStore
from tests.support.spaces import page_of


@dataclass(frozen=True, slots=True)
class Chain:
    """The pages of one prompt in one namespace."""

    space: Namespace
    tokens: Sequence[int]

    @property
    def keys(self) -> list[PageKey]:
        return unpack_keys(page_keys(self.space.id, self.tokens, page_tokens=self.space.page_tokens))

    def resident(self, store: RemoteStore) -> int:
        """Pages that a look-up gets now."""
        outcome = store.look_up(self.space.id, self.keys)
        return outcome.pages if isinstance(outcome, Hit) else 0

    def put(
        self,
        store: RemoteStore,
        *,
        producer: bytes = b"",
        tags: Sequence[bytes] = (),
        computed_ms_ago: int = 0,
        stamp: Stamp | None = None,
    ) -> list[PutOutcome]:
        """Put all pages as computed from nothing, so that their lineage is known."""
        store.register(self.space)
        size = PageLayout.of(self.space).page_bytes
        at_ms = time.time_ns() // 1_000_000 - computed_ms_ago
        header = cache_pb2.PutHeader(
            namespace_id=self.space.id, chain=cache_pb2.Chain(keys=b"".join(self.keys)),
            stamp=stamp_to_wire(stamp or store.stamp()), producer=producer, tags=tags, computed_from_ms=at_ms,
            computed_until_ms=at_ms, rests_on=0,
        )  # fmt: skip
        pages = [page_of(key, size) for key in self.keys]
        answer = store.calls.put_raw(put_messages(header, pages, page_bytes=size), timeout=DEADLINE_S)
        return [put_from_wire(page) for page in answer.pages]
