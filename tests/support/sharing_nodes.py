"""Real sidecars that share an L3, and a caller over gRPC of each that checks every byte."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kv_types.ids import PageKey
from kv_types.namespace import Namespace
from kv_types.outcomes import STORED, Hit, LookUpOutcome
from kv_wire.channel import open_channel
from kv_wire.gen import cache_pb2
from tests.support.daemon import Daemon
from tests.support.polling import wait_until
from tests.support.redis_servers import RedisServer
from tests.support.remote_store import RemoteStore
from tests.support.spaces import page_of, space_of

PAGE_BYTES = 4096
PATIENT = ("--l3-deadline", "10s")
"""A busy machine is no reason for a miss."""
LOAD_S = 0.4
IMPATIENT = ("--l3-deadline", f"{LOAD_S}s")
QUICK = ("--no-prefault", "--copy-kernel", "memcpy")


@dataclass
class SharingNode:
    """A sidecar, and one caller of it."""

    daemon: Daemon
    store: RemoteStore
    space: Namespace

    def put(self, keys: Sequence[PageKey], *, start: int = 0) -> None:
        size = PAGE_SIZES[self.store.register(self.space)]
        for begin in range(start, len(keys), 64):
            end = min(begin + 64, len(keys))
            sources = [page_of(key, size) for key in keys[begin:end]]
            outcomes = self.store.put(
                self.space.id, keys[:end], sources, stamp=self.store.stamp(), start=begin
            )
            assert outcomes == [STORED] * (end - begin)

    def get(self, keys: Sequence[PageKey], *, start: int = 0) -> LookUpOutcome:
        """Whatever is served has the right bytes."""
        size = PAGE_SIZES[self.store.register(self.space)]
        into = [memoryview(bytearray(size)) for _ in keys[start:]]
        outcome = self.store.get(self.space.id, keys, into, start=start)
        pages = outcome.pages if isinstance(outcome, Hit) else 0
        for key, view in zip(keys[start : start + pages], into, strict=False):
            assert view == page_of(key, size)
        return outcome

    def l3(self) -> cache_pb2.L3Status:
        return self.store.status().l3

    def wait_stored(self, pages: int) -> None:
        """Wait until so many were stored in its life, or were known."""

        def stored() -> bool:
            figures = self.l3().stores
            return figures.get("stored", 0) + figures.get("known", 0) >= pages and not figures["in_flight"]

        wait_until(stored, what=f"{pages} pages in L3")

    def wait_idle(self) -> None:
        """Wait until nothing is left to be stored."""

        def is_idle() -> bool:
            figures = self.l3().stores
            return not figures["queued_pages"] and not figures["in_flight"]

        wait_until(is_idle, what="the end of write-behind")


PAGE_SIZES: dict[bytes, int] = {}
"""By namespace."""


@contextmanager
def sharing_nodes(
    count: int,
    l3: str,
    log: RedisServer | None,
    *flags: str,
    patience: Sequence[str] = PATIENT,
    page_bytes: int = PAGE_BYTES,
    arenas: Mapping[int, str] | None = None,
) -> Iterator[list[SharingNode]]:
    """`log` None: it is where the pages are."""
    named = () if log is None else ("--log-url", log.url)
    space = space_of(page_bytes, model="shared")
    PAGE_SIZES[space.id] = page_bytes
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skv-")))
        daemons = [
            stack.enter_context(
                Daemon(
                    scratch / f"n{number}", "--l3-url", l3, *named, *QUICK, *patience, *flags,
                    arena=(arenas or {}).get(number, "16MiB"),
                )
            )
            for number in range(count)
        ]  # fmt: skip
        nodes = []
        for daemon in daemons:
            channel = stack.enter_context(open_channel(daemon.wait_ready().grpc_address))
            nodes.append(SharingNode(daemon, RemoteStore(channel), space))
        yield nodes
