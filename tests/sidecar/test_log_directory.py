"""What goes on beside following: the fleet's directory of namespaces, and the log's sizes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from invalidation.log import LogUnavailableError
from kv_types.events import Selected
from kv_types.limits import NAMESPACES_MAX
from kv_types.selectors import Selector
from tests.support.following import FollowingSite
from tests.support.pages import chain, namespace_of
from tests.support.stores import add

pytestmark = pytest.mark.asyncio


@pytest.fixture
def site() -> Iterator[FollowingSite]:
    made = FollowingSite()
    yield made
    made.close()


async def test_namespaces_are_entered_into_the_fleets_directory(site: FollowingSite) -> None:
    records = [add(site.store, namespace_of(f"m{number}")) for number in range(3)]
    async with site.running():
        await site.time.run(1.0)
        assert site.log.known == [record.namespace.canonical for record in records]
        late = add(site.store, namespace_of("late"))
        site.log.trouble = LogUnavailableError("timeout")
        await site.time.run(1.0)
        site.log.trouble = None
        await site.time.run(4.0)
        assert site.log.known[-1] == late.namespace.canonical
        assert len(site.log.known) == 4, "once each"


async def test_the_logs_sizes_are_asked_for_now_and_then(site: FollowingSite) -> None:
    async with site.running() as shell:
        await site.append(*(Selected(Selector(key=key)) for key in chain(3)))
        await site.time.run(25.0)
        sizes = shell.state().sizes
        assert (sizes["log_records"], sizes["log_tombstones"], sizes["tombstones"]) == (3, 3, 3)
        asked = sum(entry[:2] == ("called", "statistics") for entry in site.trace)
        assert 2 <= asked <= 4
        assert site.durations, "applying is timed"


async def test_namespaces_that_took_the_number_of_others_are_entered_too(site: FollowingSite) -> None:
    for number in range(NAMESPACES_MAX):
        add(site.store, namespace_of(f"m{number}"))
    async with site.running():
        await site.time.run(1.0)
        before = len(site.log.known)
        assert before < NAMESPACES_MAX, "in the midst of entering them"
        late = [add(site.store, namespace_of(f"late-{number}")) for number in range(20)]
        await site.time.run(10.0)
        assert set(site.log.known) >= {record.namespace.canonical for record in site.store.namespaces()}
        assert site.log.known[-20:] == [record.namespace.canonical for record in late]
        assert len(site.log.known) == len(set(site.log.known)), "once each"
