"""An attach site whose sidecar has an L3: the real loader, over records in memory that tests hold, fail and damage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cache_l3.record_store import RecordName
from kv_types.clock import BoottimeClock
from kv_types.ids import KEY_BYTES, PageKey
from kv_types.namespace import Namespace
from kv_types.outcomes import STORED
from kv_types.record import PageDescription
from sidecar.l3.loader import Loader
from tests.support.attach_site import AttachSite
from tests.support.followed_store import FollowedStore
from tests.support.l3_node import SMALL
from tests.support.memory_records import Held, MemoryRecords, MemoryShelf, Verb, other_birth

_TTL_S = 600


class L3Site(AttachSite):
    """Everything that is called on `records` happens on the site's loop."""

    def __init__(self, folder: Path, *, absent_ns: int = 0, **options: Any) -> None:
        self.shelf = MemoryShelf(clock=BoottimeClock())
        self.records: MemoryRecords
        self.loader: Loader
        self._absent_ns = absent_ns
        super().__init__(folder, loads=self._made, **options)

    def _made(self, store: FollowedStore) -> Loader:
        clock = BoottimeClock()
        self.records = MemoryRecords(self.shelf, clock=clock)
        bounds = replace(SMALL, absent_ns=self._absent_ns)
        self.loader = Loader(store, self.records, clock=clock, bounds=bounds)
        return self.loader

    async def _loads_end(self) -> None:
        await self.loader.close()
        await self.records.close()

    def shelve(
        self, space: Namespace, keys: bytes, pages: Sequence[bytes], *, start: int = 0, **changes: Any
    ) -> None:
        """Put records of keys[start:] into L3, as another node would have stored them; `pages` are those of all keys."""

        def put(store: FollowedStore) -> None:
            names = [PageKey(keys[at : at + KEY_BYTES]) for at in range(0, len(keys), KEY_BYTES)]
            for index in range(start, len(names)):
                fields: dict[str, Any] = {
                    "namespace": space.id, "key": names[index], "parent": names[index - 1] if index else None,
                    "stamp": store.stamp(), "payload_bytes": len(pages[index]), "birth": other_birth(), **changes,
                }  # fmt: skip
                outcome = self.records.write(
                    PageDescription(**fields), memoryview(pages[index]), ttl_s=_TTL_S
                )
                assert outcome == STORED

        self.call(put)

    def hold(self, verb: Verb) -> Held:
        """Make the next call of this kind wait."""
        return self.call(lambda _: self.records.hold(verb))

    def release(self, held: Held) -> None:
        """Let it go on."""
        self.call(lambda _: held.release())

    def damage(self, space: Namespace, key: bytes, change: Callable[[bytes], bytes]) -> None:
        """Put other bytes in a record's place."""
        self.call(lambda _: self.shelf.corrupt(RecordName(space.id, PageKey(key)), change))

    def asked(self, verb: Verb) -> int:
        """Records that calls of this kind were about."""
        return self.call(lambda _: self.records.calls[verb])
