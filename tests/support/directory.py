"""A fleet's directory for sites without a log: whatever is registered is listed, at once or when a test says so."""

from __future__ import annotations

import asyncio

from cache_l2.namespaces import NamespaceRecord
from kv_types.errors import LogUnreachableError
from kv_types.ids import NamespaceId


class EverythingListed:
    def is_listed(self, namespace: NamespaceId) -> bool:
        return True

    async def list_namespace(self, record: NamespaceRecord) -> None:
        return


class SlowDirectory:
    """Lists nothing until `answers` is set, on the site's loop; then everything, or fails if `fails`."""

    def __init__(self) -> None:
        self.listed: set[NamespaceId] = set()
        self.asked = 0
        self.fails = False
        self.answers = asyncio.Event()

    def is_listed(self, namespace: NamespaceId) -> bool:
        return namespace in self.listed

    async def list_namespace(self, record: NamespaceRecord) -> None:
        self.asked += 1
        await self.answers.wait()
        if self.fails:
            raise LogUnreachableError("the log does not answer")
        self.listed.add(record.id)
