"""Pages that lie in several runs of memory are stored as they would be end to end, over either transport."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

from cache_l2._native import ScatteredPage, gather_pages, scatter_pages, scattered_pages
from inference_worker.client import Client
from kv_types.errors import BufferMismatchError, InvalidArgumentError
from kv_types.ids import KEY_BYTES
from kv_types.outcomes import KNOWN
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import all_stored, chain, namespace, pages_under, room_for
from tests.support.polling import wait_until
from tests.support.puts import put_fresh
from tests.support.sidecar_process import SidecarProcess


def in_pieces(pages: list[bytes], sizes: list[int]) -> list[ScatteredPage]:
    """Each page in runs that lie apart, in reverse order."""
    pieces = []
    for page in pages:
        ends = np.cumsum([0, *sizes])
        pieces.append([np.frombuffer(page[a:b], np.uint8) for a, b in itertools.pairwise(ends)])
    addresses = np.array([[piece.ctypes.data for piece in page] for page in pieces], np.uint64)
    return scattered_pages(addresses, np.array(sizes, np.uint64), owner=pieces)


@pytest.mark.parametrize("pages", [1, 3, 70])
def test_scattered_pages_are_stored(client: Client, model: str, pages: int) -> None:
    space = client.register(namespace(f"{model}{pages}"))
    keys = chain(space.identified, pages)
    whole = pages_under(keys, space.page_bytes)
    known = pages // 3
    if known:
        put_fresh(client, space, keys[: known * KEY_BYTES], whole[:known])
    outcomes = put_fresh(client, space, keys, in_pieces(whole, [1, space.page_bytes - 101, 100]))
    assert outcomes[:known] == [KNOWN] * known
    assert all_stored(outcomes[known:])
    got = room_for(keys, space.page_bytes)
    assert client.get(space, keys, got).pages == pages  # type: ignore[union-attr]
    assert got == whole


def test_a_mix_of_both_is_stored(client: Client, model: str) -> None:
    space = client.register(namespace(model))
    keys = chain(space.identified, 2)
    first, second = pages_under(keys, space.page_bytes)
    assert all_stored(
        put_fresh(client, space, keys, [first, *in_pieces([second], [24, space.page_bytes - 24])])
    )
    got = room_for(keys, space.page_bytes)
    client.get(space, keys, got)
    assert got == [first, second]


def test_a_scattered_page_of_another_size_is_refused(client: Client, model: str) -> None:
    space = client.register(namespace(model))
    keys = chain(space.identified, 1)
    for size in (space.page_bytes - 1, space.page_bytes + 1):
        with pytest.raises(BufferMismatchError, match="source 0 holds"):
            put_fresh(client, space, keys, in_pieces([b"x" * size], [8, size - 8]))
    with pytest.raises(BufferMismatchError, match="got 2"):
        put_fresh(client, space, keys, in_pieces([b"x" * 64] * 2, [64]))


def test_without_a_sidecar_they_are_checked_too(
    sidecar: SidecarProcess, connect: MakeClient, model: str
) -> None:
    client = connect(sidecar.runtime)
    space = client.register(namespace(model))
    keys = chain(space.identified, 1)
    with pytest.raises(BufferMismatchError, match="holds"):
        client.put(space, keys, in_pieces([b"x" * 64], [64]), stamp=None)


def test_neighbouring_runs_are_one() -> None:
    memory = np.arange(64, dtype=np.uint8)
    at = memory.ctypes.data
    (page,) = scattered_pages(
        np.array([at, at + 16, at + 40], np.uint64), np.array([16, 8, 8], np.uint64), owner=memory
    )
    assert (page.runs, page.nbytes) == (2, 32)
    with pytest.raises(ValueError, match="one word a page and run"):
        scattered_pages(np.array([at], np.uint64), np.array([16, 8], np.uint64), owner=memory)
    with pytest.raises(ValueError, match="at least one byte"):
        scattered_pages(np.array([at], np.uint64), np.array([0], np.uint64), owner=memory)


def test_a_page_with_gaps_is_written_around_them_and_never_read() -> None:
    memory = np.zeros(64, dtype=np.uint8)
    at = memory.ctypes.data
    (page,) = scattered_pages(
        np.array([at, 0, at + 8], np.uint64), np.array([4, 8, 4], np.uint64), owner=memory
    )
    scatter_pages([page], [bytes(range(1, 17))], begin=0, end=16)
    assert bytes(memory[:12]) == bytes([1, 2, 3, 4, 0, 0, 0, 0, 13, 14, 15, 16])
    with pytest.raises(ValueError, match="can only be scattered"):
        gather_pages([page], [bytearray(16)], begin=0, end=16)


def test_a_revoked_page_is_not_read_and_tells_who_reads_it_still(client: Client, model: str) -> None:
    memory = np.zeros(128 << 20, dtype=np.uint8)
    addresses = np.array([memory.ctypes.data], np.uint64)
    (page,) = scattered_pages(addresses, np.array([memory.nbytes], np.uint64), owner=memory)
    copy = bytearray(memory.nbytes)
    reader = threading.Thread(target=lambda: gather_pages([page], [copy], begin=0, end=page.nbytes))
    assert not page.is_read
    reader.start()
    wait_until(lambda: page.is_read or not reader.is_alive(), what="the reader")
    page.revoke()
    reader.join()
    assert not page.is_read
    with pytest.raises(ValueError, match="revoked"):
        gather_pages([page], [copy], begin=0, end=page.nbytes)
    space = client.register(namespace(model))
    keys = chain(space.identified, 1)
    sources = in_pieces(pages_under(keys, space.page_bytes), [space.page_bytes])
    sources[0].revoke()
    with pytest.raises(InvalidArgumentError, match="revoked"):
        put_fresh(client, space, keys, sources)
    assert all_stored(put_fresh(client, space, keys, pages_under(keys, space.page_bytes)))
