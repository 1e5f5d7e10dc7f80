"""A cache with a header, clock and memory that tests drive by hand, and short ways to say what they do."""

from __future__ import annotations

from cache_l1.cache import L1Cache
from cache_l1.policies import POLICY_DEFAULT
from cache_l1.residents import InL2
from kv_types.clock import ManualClock
from kv_types.ids import PageKey
from kv_types.namespace import Namespace
from kv_types.page_keys import page_keys, unpack_keys
from kv_types.validity import NO_INSTANCES, Instances, ObservedView
from tests.cache_l1.fakes import ByteMemory, FakeHeader
from tests.conformance.harness import payload
from tests.kv_types.samples import namespace as some_namespace

SPACE = some_namespace()
SIZE = 64


class Bench:
    """A cache, its header, clock and memory, and short ways to say what tests do."""

    def __init__(
        self,
        capacity: int = 8,
        *,
        ttl_ns: int | None = None,
        namespace: Namespace | None = None,
        policy: str = POLICY_DEFAULT,
        in_l2: InL2 | None = None,
    ) -> None:
        self.header = FakeHeader()
        self.clock = ManualClock()
        self.memory = ByteMemory(capacity, SIZE)
        self.cache = L1Cache(
            capacity_pages=capacity, page_bytes=SIZE, memory=self.memory, clock=self.clock,
            ttl_ns=ttl_ns, namespace=namespace, policy=policy, in_l2=in_l2,
        )  # fmt: skip
        self.cache.synchronise(self.header)

    def view(self) -> ObservedView:
        observed = self.cache.observe()
        assert observed is not None
        return observed

    def insert(
        self,
        keys: list[PageKey],
        start: int = 0,
        *,
        view: ObservedView | None = None,
        instances: Instances = NO_INSTANCES,
    ) -> int:
        self.clock.advance(1)
        sources = [payload(key, SIZE) for key in keys[start:]]
        view = self.view() if view is None else view
        return self.cache.insert(keys, start, sources, view=view, instances=instances)

    def instances(self, keys: list[PageKey]) -> tuple[int, ...]:
        """What the cache knows of the pages that it serves."""
        pages = self.cache.match(keys)
        known = self.cache.instances(pages)
        self.cache.release(pages)
        return known.numbers

    def found(self, keys: list[PageKey]) -> int:
        """Pages served, their bytes checked."""
        self.clock.advance(1)
        pages = self.cache.match(keys)
        into = [bytearray(SIZE) for _ in pages]
        self.cache.read(pages, into)
        assert [bytes(one) for one in into] == [payload(key, SIZE) for key in keys[: len(pages)]]
        self.cache.release(pages)
        return len(pages)

    def check(self) -> None:
        """Nothing is pinned, lost or counted twice."""
        counts = self.cache.statistics()
        assert counts["pinned_pages"] == 0
        assert counts["free_pages"] + counts["resident_pages"] == counts["capacity_pages"]
        assert counts["shared_pages"] == 0
        assert counts["scattered_pages"] <= counts["resident_pages"]
        missed = sum(pages for name, pages in counts.items() if name.startswith("missed_pages_"))
        assert counts["requested_pages"] == counts["hit_pages"] + missed


def chain(length: int, *, root: int = 0, branch: tuple[int, ...] = ()) -> list[PageKey]:
    tokens = [root, *(branch[page - 1] if page - 1 < len(branch) else 0 for page in range(1, length))]
    return unpack_keys(page_keys(SPACE.id, tokens, page_tokens=1))
