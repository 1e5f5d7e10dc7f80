"""What memory the arena has turned out to lie in: looked at once all of it is mapped in, told by log and status."""

from __future__ import annotations

import asyncio

from cache_l2.huge_pages import HugePages, mapped_bytes
from cache_l2.store import ArenaStore
from kv_wire.gen import cache_pb2
from sidecar.logs import logger

_LOOK_AGAIN_S = 0.25

_log = logger("arena")


class MemoryPicture:
    """Looks at one store's memory on a thread of its own, since that takes some ms a GiB."""

    def __init__(self, store: ArenaStore) -> None:
        self._store = store
        self._huge_bytes = 0
        self._mapped_bytes = 0

    async def watch(self) -> None:
        """Wait until the arena is mapped in, then look, once."""
        while not self._store.reader.prefault_ended:
            await asyncio.sleep(_LOOK_AGAIN_S)
        self._huge_bytes, self._mapped_bytes = await asyncio.to_thread(mapped_bytes)
        _log.info(
            "arena mapped in",
            mapped_bytes=self._mapped_bytes, huge_page_bytes=self._huge_bytes, huge_pages=self._got(),
        )  # fmt: skip

    def message(self) -> cache_pb2.MemoryStatus:
        """What is known up to now."""
        memory = self._store.memory
        return cache_pb2.MemoryStatus(
            huge_pages_asked=memory.asked,
            huge_pages=self._got(),
            huge_page_bytes=self._huge_bytes,
            mapped_bytes=self._mapped_bytes,
            huge_pages_note=memory.note or self._why_not_all(),
            placement=memory.placement,
            placement_note=memory.placement_note,
        )

    def _why_not_all(self) -> str:
        if self._store.memory.asked is HugePages.OFF or self._huge_bytes >= self._mapped_bytes:
            return ""
        return (
            "not all of the arena lies in huge pages, though this machine offers them: the kernel found no more of its memory in "
            "one piece; start the sidecar earlier, or as root: echo 1 > /proc/sys/vm/compact_memory, then restart it"
        )

    def _got(self) -> str:
        if self._store.memory.in_huge_pages:
            return "explicit"
        if not self._mapped_bytes:
            return ""
        return "transparent" if self._huge_bytes else "none"
