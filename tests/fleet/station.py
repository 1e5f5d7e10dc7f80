"""A client of one of a fleet's sidecars with an L1 of its own: stores chains in both, and says what each tier still serves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from cache_l1.cache import L1Cache
from inference_worker.client import Client, ClientSettings, Request
from kv_types.namespace import Namespace
from kv_types.outcomes import Hit, Miss, MissReason, PutOutcome
from kv_types.page_keys import page_keys
from tests.cache_l1.fakes import ByteMemory
from tests.support.pages import page_bytes_of, page_of

_L1_PAGES = 64


class Station:
    """One worker's process as a test plays it. A context manager."""

    def __init__(self, runtime: Path, space: Namespace, *, name: str = "station") -> None:
        self.space = space
        self.page_bytes = page_bytes_of(space)
        self.client = Client.connect(runtime, settings=ClientSettings(name=name, deadline_s=2.0))
        assert self.client.wait_ready(deadline_s=10.0)
        self.namespace = self.client.register(space)
        self.l1 = L1Cache(
            capacity_pages=_L1_PAGES, page_bytes=self.page_bytes, namespace=space,
            memory=ByteMemory(_L1_PAGES, self.page_bytes),
        )  # fmt: skip
        self.l1.synchronise(self.client.validity)

    def __enter__(self) -> Station:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()

    def chain(self, tokens: Sequence[int]) -> bytes:
        """Packed keys of a prompt."""
        return page_keys(self.space.id, list(tokens), page_tokens=self.space.page_tokens)

    def begin(self) -> Computation:
        """Begin to compute: whatever is invalidated from now on must not let its result through."""
        return Computation(self)

    def compute(self, keys: bytes, *, tags: Sequence[bytes] = ()) -> list[PutOutcome]:
        """Compute a whole chain and store it in both tiers."""
        with self.begin().request as request:
            sources = self.pages(keys)
            view = self.l1.observe()
            outcomes = request.put(keys, sources, tags=tags)
            self.l1.insert(keys, 0, sources, view=view, instances=request.instances(keys))
            return outcomes

    def pages(self, keys: bytes) -> list[bytes]:
        """The bytes that belong under keys."""
        return [page_of(keys[at : at + 32], self.page_bytes) for at in range(0, len(keys), 32)]

    def from_l1(self, keys: bytes) -> int:
        """Pages that L1 serves."""
        pages = self.l1.match(keys)
        self.l1.release(pages)
        return len(pages)

    def from_l2(self, keys: bytes) -> tuple[int, MissReason]:
        """Pages that L2 serves, and why no more; their bytes are right."""
        sources = self.pages(keys)
        room = [bytearray(self.page_bytes) for _ in sources]
        match self.client.get(self.namespace, keys, room):
            case Hit(pages=count, ended_by=reason):
                assert [bytes(page) for page in room[:count]] == sources[:count]
                return count, reason
            case Miss(reason=reason):
                return 0, reason
        raise AssertionError("nothing is pending here")

    def served(self, keys: bytes) -> tuple[int, int]:
        """Pages that each tier serves: (L1, L2)."""
        return self.from_l1(keys), self.from_l2(keys)[0]


class Computation:
    """A request that is under way, and what its L1 had seen when it began."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._view = station.l1.observe()
        self.request: Request = station.client.begin(station.namespace)

    def store(self, keys: bytes) -> tuple[list[PutOutcome], int]:
        """Store the result: what L2 says to each page, and how many pages L1 took. Ends the request."""
        with self.request:
            sources = self._station.pages(keys)
            outcomes = self.request.put(keys, sources)
            instances = self.request.instances(keys)
            return outcomes, self._station.l1.insert(keys, 0, sources, view=self._view, instances=instances)
