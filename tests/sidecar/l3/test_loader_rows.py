"""Rows that a loader is asked for: which are refused, and keys that are no chain, or another namespace's."""

from __future__ import annotations

import asyncio

import pytest

from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.ids import PageKey
from kv_types.limits import LOOK_UP_ROWS_MAX
from kv_types.outcomes import MissReason
from sidecar.l3.loads import LoadRow, RowLoaded
from tests.support.l3_node import fresh, nodes
from tests.support.manual_time import settle
from tests.support.pages import namespace_of, packed
from tests.support.stores import add

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([], InvalidArgumentError),
        ([b""], InvalidArgumentError),
        ([b"x" * 33], InvalidArgumentError),
        ([b"x" * 32] * (LOOK_UP_ROWS_MAX + 1), LimitExceededError),
        ([b"x" * 32 * 40_000] * 2, LimitExceededError),
    ],
)
async def test_rows_that_nobody_may_ask_for(rows: list[bytes], error: type[Exception]) -> None:
    async with nodes() as (node,):
        made = [LoadRow(node.record.id, None, keys) for keys in rows]
        with pytest.raises(error):
            node.loader.begin(made, deadline_ns=node.within(1))


async def test_keys_that_are_no_chain_confuse_nobody() -> None:
    async with nodes() as (node,):
        keys = fresh(4)
        node.shelve(keys)
        mixed: list[PageKey] = [keys[0], keys[2], keys[1], keys[3]]
        held = node.records.hold("probe")
        honest = asyncio.create_task(node.load(keys))
        await held.reached.wait()
        hostile = asyncio.create_task(node.load(mixed))
        twice = asyncio.create_task(node.load([keys[0], keys[0]]))
        await settle()
        held.release()
        assert await honest == [RowLoaded(4, 0, MissReason.NONE)]
        assert (await hostile)[0].pages <= 1
        assert (await twice)[0].pages <= 1


async def test_rows_that_name_each_other_as_parents_hang_nobody() -> None:
    async with nodes() as (node,):
        (one,), (other,) = fresh(1), fresh(1)
        node.put([one])
        node.put([other])
        held = node.records.hold("probe")
        rows = [LoadRow(node.record.id, one, other), LoadRow(node.record.id, other, one)]
        wait = asyncio.create_task(node.loader.begin(rows, deadline_ns=node.within(1)).wait())
        await held.reached.wait()
        node.loader.became_resident([one])
        node.loader.became_resident([other])
        held.release()
        assert [row.pages for row in await wait] == [0, 0], "neither stands on the other"


async def test_keys_asked_under_another_namespace_hide_nothing_from_their_own() -> None:
    async with nodes() as (node,):
        keys = fresh(3)
        node.shelve(keys)
        other = add(node.store, namespace_of("another"))
        wrong = LoadRow(other.id, None, packed(keys))
        (told,) = await node.loader.begin([wrong], deadline_ns=node.within(1.0)).wait()
        assert (told.pages, told.reason) == (0, MissReason.ABSENT)
        assert await node.load(keys) == [RowLoaded(3, 0, MissReason.NONE)]


async def test_what_another_namespace_has_here_is_neither_told_nor_loaded_over() -> None:
    async with nodes() as (node,):
        keys = fresh(3)
        node.put(keys)
        other = add(node.store, namespace_of("another"))
        node.shelve(keys, namespace=other.id)
        rows = [LoadRow(other.id, None, packed(keys)), LoadRow(other.id, keys[0], packed(keys[1:]))]
        told = await node.loader.begin(rows, deadline_ns=node.within(1.0)).wait()
        assert told == [RowLoaded(0, 0, MissReason.ABSENT)] * 2
        node.check_bytes(keys)
