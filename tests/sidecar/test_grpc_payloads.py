"""C21: payloads around the limits of a message and of a page, both ways."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kv_types import limits
from kv_types.outcomes import STORED, Hit, Tier
from kv_wire.channel import open_channel
from tests.support.daemon import Daemon
from tests.support.remote_store import RemoteStore
from tests.support.spaces import fresh_chain, page_of, space_of

MIB = 2**20


@pytest.fixture(scope="module")
def large_store() -> Iterator[RemoteStore]:
    """A daemon whose segments hold the largest page that there may be."""
    with tempfile.TemporaryDirectory(prefix="skv-") as scratch:
        daemon = Daemon(Path(scratch) / "run", "--segment-size", "64MiB", arena="384MiB")
        with daemon, open_channel(daemon.wait_ready().grpc_address) as channel:
            yield RemoteStore(channel)


@pytest.mark.parametrize("page_bytes", [4 * MIB - 1, 4 * MIB, 4 * MIB + 1, limits.PAGE_BYTES_MAX])
def test_c21_payloads_around_the_message_limit_both_ways(large_store: RemoteStore, page_bytes: int) -> None:
    namespace = large_store.register(space_of(page_bytes))
    keys = fresh_chain(1)
    page = page_of(keys[0], page_bytes)
    assert large_store.put(namespace, keys, [page], stamp=large_store.stamp()) == [STORED]
    into = memoryview(bytearray(page_bytes))
    assert large_store.get(namespace, keys, [into]) == Hit(1, Tier.L2)
    assert into == page
