"""The fleet's directory of namespaces, from a sidecar whose numbers of namespaces are used again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kv_types.limits import NAMESPACES_MAX
from tests.support.following import FollowingSite
from tests.support.pages import namespace_of
from tests.support.stores import add

pytestmark = pytest.mark.asyncio


@pytest.fixture
def site() -> Iterator[FollowingSite]:
    made = FollowingSite()
    yield made
    made.close()


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
