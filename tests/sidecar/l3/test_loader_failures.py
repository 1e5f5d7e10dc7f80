"""What fails inside the loader ends the load that it belongs to, with a reason; all other actions of the step are carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from kv_types.outcomes import MissReason
from sidecar.l3.loads import RowLoaded
from sidecar.l3.residency import answers
from tests.support.l3_node import Node, fresh, nodes

pytestmark = pytest.mark.asyncio

FAILED = MissReason.L3_UNAVAILABLE


class Broken(Exception):
    """What nobody expects."""


@pytest.fixture
def logs() -> Iterator[list[EventDict]]:
    with capture_logs() as lines:
        yield lines
    failures = [line for line in lines if line["log_level"] == "error"]
    assert failures
    assert all(line["exc_info"] for line in failures)


def fail_at(call: Callable[..., Any], number: int, *, after: bool = False) -> Callable[..., Any]:
    """The call, which raises the `number`th time, instead of what it does or after it."""
    calls = 0

    def failing(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and not after:
            raise Broken
        result = call(*args, **options)
        if calls == number:
            raise Broken
        return result

    return failing


@pytest.mark.parametrize(
    ("what", "number", "pages"),
    [("reserve_for_load", 1, 0), ("load", 1, 0), ("load", 3, 2), ("publish_loaded", 1, 0), ("publish_loaded", 3, 2)],
)  # fmt: skip
async def test_a_page_that_can_not_be_brought_ends_its_row(
    logs: list[EventDict], monkeypatch: pytest.MonkeyPatch, what: str, number: int, pages: int
) -> None:
    async with nodes() as (node,):
        one, other = fresh(4), fresh(4)
        node.shelve(one)
        node.shelve(other)
        owner = node.records if what == "load" else node.store
        monkeypatch.setattr(owner, what, fail_at(getattr(owner, what), number))
        assert await node.load(one, other) == [
            RowLoaded(pages, 0, FAILED),
            RowLoaded(4, 0, MissReason.NONE),
        ]
        node.check_bytes(other)
        assert node.reserved == 0
        assert await node.load(one) == [RowLoaded(4, pages, MissReason.NONE)], "it can be asked for again"


async def test_a_place_that_can_not_be_given_back_keeps_nobody_waiting(
    logs: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes() as (node,):
        keys = fresh(2)
        node.shelve(keys)
        node.records.fail("load", MissReason.CORRUPT)
        monkeypatch.setattr(node.store, "abort", fail_at(node.store.abort, 1, after=True))
        assert await node.load(keys) == [RowLoaded(0, 0, MissReason.CORRUPT)]


async def test_a_question_that_raises_ends_the_load(
    logs: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes() as (node,):
        keys = fresh(2)
        node.shelve(keys)
        monkeypatch.setattr(node.records, "probe", fail_at(node.records.probe, 1))
        assert await node.load(keys) == [RowLoaded(0, 0, FAILED)]
        assert await node.load(keys) == [RowLoaded(2, 0, MissReason.NONE)]


async def _two_waiters(node: Node) -> list[list[RowLoaded]]:
    """Both are answered in one step, since they wait for the same pages."""
    keys = fresh(2)
    node.shelve(keys)
    return [*await asyncio.gather(node.load(keys), node.load(keys))]


async def test_an_answer_that_fails_is_given_with_a_reason_and_the_others_as_they_are(
    logs: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes() as (node,):
        monkeypatch.setattr("sidecar.l3.loader.answers", fail_at(answers, 1))
        assert await _two_waiters(node) == [[RowLoaded(0, 0, FAILED)], [RowLoaded(2, 0, MissReason.NONE)]]


async def test_an_observer_that_fails_is_nothing_to_those_who_wait(
    logs: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes() as (node,):
        monkeypatch.setattr(node.loader, "_observe", fail_at(node.loader._observe, 1))
        assert await _two_waiters(node) == [[RowLoaded(2, 0, MissReason.NONE)]] * 2
