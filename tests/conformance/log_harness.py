"""What the log's conformance suite knows about a log under test, and how it makes entries, members and what is expected."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from invalidation.compaction import CompactionLimits, Kept, keep
from invalidation.log import Boot, InvalidationLog, LogLimits, Member
from invalidation.records import NO_DIGEST, LogEntry
from kv_types.clock import Clock
from kv_types.events import Selected, WeightsAnnounced
from kv_types.ids import NamespaceId, PageKey, Stamp
from kv_types.selectors import EVERYTHING, Selector

SMALL_LIMITS = LogLimits(
    records=20, batch=5, per_scope=8, tombstones=24, scopes=6, requests=10, weights=4, namespaces=5, members=4
)
"""So small that a test can reach each of them."""

Restore = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class LogHarness:
    """A log under test: empty, of SMALL_LIMITS, without replicas.

    What goes around its verbs, None where it can't be had: `append_raw` appends a payload as somebody of another version
    would, who selects he knows what; `lose` makes it forget everything; `copy` takes a copy of its data, and what it
    returns puts the copy back in place of the data that came after it, as a restart from an old dump does.
    """

    log: InvalidationLog
    clock: Clock
    append_raw: Callable[[bytes], Awaitable[None]] | None = None
    lose: Callable[[], Awaitable[None]] | None = None
    copy: Callable[[], Awaitable[Restore]] | None = None

    @property
    def deadline_ns(self) -> int:
        """Time enough for any call."""
        return self.clock.now_ns() + 10_000_000_000

    @property
    def soon_ns(self) -> int:
        """The deadline of a call that waits for what does not come: time enough for the answer on a busy machine."""
        return self.clock.now_ns() + 800_000_000

    async def append(self, *events: Selected | WeightsAnnounced) -> Stamp:
        """Append entries of these events; returns where the last one stands."""
        for event in events:
            appended = await self.log.append(
                LogEntry(event=event), request_id=some_id(), deadline_ns=self.deadline_ns
            )
        return appended.stamp

    async def boot(self) -> Boot:
        """What a follower would start from."""
        return await self.log.boot(deadline_ns=self.deadline_ns)

    async def member(self) -> Member:
        """Somebody new who stands at the tip."""
        boot = await self.boot()
        return Member(
            id=some_id(), applied=boot.tip, digest=boot.digest, acknowledged=boot.tip.revision, drained=0
        )


_draw = random.Random(20_260_101)


def some_id() -> bytes:
    """Sixteen bytes that no other call returned."""
    return _draw.randbytes(16)


def selected(number: int) -> Selected:
    """One page selected; another one for another number."""
    return Selected(Selector(key=PageKey(hashlib.sha256(b"%d" % number).digest())))


def some_selector(draw: random.Random) -> Selector:
    """Any kind of selector, from so few values that they repeat, of more scopes than SMALL_LIMITS allow."""
    space = NamespaceId(bytes([draw.randrange(9)]) * 32)
    key = PageKey(bytes([draw.randrange(30)]) * 32)
    number = b"%d" % draw.randrange(12)
    return draw.choice(
        [
            Selector(namespace=space, key=key),
            Selector(namespace=space, key=key),
            Selector(namespace=space, tag=number),
            Selector(namespace=space),
            Selector(key=key),
            Selector(tenant=number.decode()),
            Selector(model="m", weights_version=number.decode()),
            Selector(producer=number, since_ms=draw.randrange(3)),
            EVERYTHING if draw.random() < 0.2 else Selector(namespace=space, key=key),
        ]
    )


def kept_of(selectors: Sequence[Selector], limits: LogLimits = SMALL_LIMITS) -> Kept:
    """What compaction's rule keeps of these records, revisions from 1."""
    bounds = CompactionLimits(
        tombstones_per_scope=limits.per_scope, tombstones=limits.tombstones, scopes=limits.scopes
    )
    kept = Kept(limits=bounds)
    for revision, selector in enumerate(selectors, start=1):
        keep(kept, selector, revision)
    return kept


def covers(boot: Boot, selector: Selector, revision: int) -> bool:
    """Whether a page that a record selects stays invalid for who starts from `boot` (rule R4)."""
    return revision <= max(
        boot.floors.get(None, 0),
        0 if selector.namespace is None else boot.floors.get(selector.namespace, 0),
        boot.tombstones.get(selector, 0),
        boot.tombstones.get(EVERYTHING, 0),
    )


def chained(payloads: Sequence[bytes]) -> bytes:
    """Digest of a log that holds these payloads, computed here and not by the product."""
    digest = NO_DIGEST.hex()
    for payload in payloads:
        digest = hashlib.sha1(digest.encode() + payload, usedforsecurity=False).hexdigest()
    return bytes.fromhex(digest)


def at(member: Member, stamp: Stamp, digest: bytes) -> Member:
    """The member, come as far as `stamp`."""
    return replace(member, applied=stamp, digest=digest, acknowledged=stamp.revision)
