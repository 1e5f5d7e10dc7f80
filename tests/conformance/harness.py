"""What the conformance suite knows about a store, and how it makes namespaces, chains and payloads without one."""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kv_types.ids import NamespaceId, PageKey
from kv_types.namespace import AttentionKind, Geometry, KvDtype, Namespace, Rope, Weights
from kv_types.page_store import PageStore

PAGE_TOKENS = 4
SMALL_PAGE_BYTES = 2 * 2 * PAGE_TOKENS * 8 * 2
"""layers × (key, value) × tokens × dim × bytes of fp16"""
LARGE_PAGE_BYTES = 2 * 2 * PAGE_TOKENS * 260 * 4


@dataclass(frozen=True, slots=True)
class PageTotals:
    """Pages of all finished look-ups that a store accounts for."""

    requested: int
    hits: int
    misses: int


@dataclass(slots=True)
class StoreHarness:
    """A store under test, empty, with room for at least 3,000 small pages.

    `register` makes a namespace known to it. `hide` makes a page and whatever stands on it vanish behind the store's
    interface (an invalidation, an eviction); None where nobody but the store can do that. `page_totals` None: read
    from `statistics()` as requested_pages, l1_pages, l2_pages, l3_pages and missed_pages_<reason>.
    """

    store: PageStore
    register: Callable[[Namespace], NamespaceId]
    hide: Callable[[NamespaceId, PageKey], None] | None = None
    page_totals: Callable[[], PageTotals] | None = None

    def totals(self) -> PageTotals:
        """The store's accounts now."""
        if self.page_totals is not None:
            return self.page_totals()
        counts = self.store.statistics()
        return PageTotals(
            requested=counts["requested_pages"],
            hits=sum(counts.get(f"{tier}_pages", 0) for tier in ("l1", "l2", "l3")),
            misses=sum(pages for name, pages in counts.items() if name.startswith("missed_pages_")),
        )


def namespace(*, model: str = "conformance", tenant: str = "", large: bool = False) -> Namespace:
    """A namespace with pages of SMALL_PAGE_BYTES, or of LARGE_PAGE_BYTES."""
    return Namespace(
        model=model,
        weights=Weights(version="1"),
        kv_dtype=KvDtype.FP32 if large else KvDtype.FP16,
        geometry=Geometry(
            attention=AttentionKind.GQA, layers_total=2, layer_begin=0, layer_end=2,
            kv_heads_total=1, head_begin=0, head_end=1, head_dim=260 if large else 8,
        ),
        page_tokens=PAGE_TOKENS,
        rope=Rope("default", 10_000.0),
        tenant=tenant,
    )  # fmt: skip


_salts = itertools.count(1)


def fresh_salt() -> int:
    """A number no other chain of this process started with, so that chains of two tests never meet."""
    return next(_salts)


def chain(namespace_id: NamespaceId, pages: int, *, salt: int, branch: Sequence[int] = ()) -> list[PageKey]:
    """Keys of a chain of `pages` pages, hashed here and not by the product.

    Chains of one salt share a prefix as long as their `branch` numbers (page by page, then 0) are equal.
    """
    keys: list[PageKey] = []
    parent: bytes = namespace_id
    for page in range(pages):
        turn = branch[page] if page < len(branch) else 0
        tokens = struct.pack("<4I", salt & 0xFFFFFFFF, page, turn, 7)
        parent = hashlib.blake2b(parent + tokens, digest_size=32).digest()
        keys.append(PageKey(parent))
    return keys


def payload(key: PageKey, page_bytes: int = SMALL_PAGE_BYTES, *, version: int = 0) -> bytes:
    """The bytes that belong under a key: no two keys share any stretch of them."""
    return hashlib.shake_128(key + bytes([version])).digest(page_bytes)


def sources(keys: Sequence[PageKey], page_bytes: int = SMALL_PAGE_BYTES) -> list[memoryview]:
    """Read-only payloads of the keys."""
    return [memoryview(payload(key, page_bytes)) for key in keys]


def destinations(count: int, page_bytes: int = SMALL_PAGE_BYTES) -> list[memoryview]:
    """Writable buffers, filled with a byte that tells that nobody wrote them."""
    return [memoryview(bytearray(b"\xa5" * page_bytes)) for _ in range(count)]
