"""Puts of pages that a test computes at the call, from nothing."""

from __future__ import annotations

from collections.abc import Sequence

from inference_worker.buffers import Buffers
from inference_worker.client import Client, RegisteredNamespace
from kv_types.outcomes import PutOutcome
from kv_types.page_keys import Keys


def put_fresh(
    client: Client,
    namespace: RegisteredNamespace,
    keys: Keys,
    sources: Buffers,
    *,
    start: int = 0,
    ttl_s: int | None = None,
    tags: Sequence[bytes] = (),
    deadline_s: float | None = None,
) -> list[PutOutcome]:
    """Put by a request that begins now and has reused nothing."""
    with client.begin(namespace, deadline_s=deadline_s) as request:
        return request.put(keys, sources, start=start, ttl_s=ttl_s, tags=tags, deadline_s=deadline_s)
