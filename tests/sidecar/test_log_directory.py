"""What goes on beside following: the fleet's directory, where namespaces are entered, and the log's sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from invalidation.log import LogUnavailableError
from kv_types.errors import LogUnreachableError
from kv_types.events import Selected
from kv_types.ids import LogIncarnation
from kv_types.limits import LISTING_S_MAX, LOG_BACKOFF_S_MAX, LOG_KNOW_AGAIN_S, NAMESPACES_MAX
from kv_types.selectors import Selector
from tests.support.following import FollowingSite
from tests.support.manual_time import SECOND_NS, settle
from tests.support.pages import chain, namespace_of
from tests.support.stores import add

pytestmark = pytest.mark.asyncio


@pytest.fixture
def site() -> Iterator[FollowingSite]:
    made = FollowingSite()
    yield made
    made.close()


def verbs(site: FollowingSite, *names: str) -> list[str]:
    return [entry[1] for entry in site.trace if entry[0] == "called" and entry[1] in names]


def hold_records(site: FollowingSite) -> asyncio.Event:
    """Keep the sidecar from following until the event is set."""
    held = asyncio.Event()

    async def wait() -> None:
        await held.wait()

    site.log.before_renewal = site.log.before_news = wait
    return held


# --- what is registered is entered ---


async def test_namespaces_that_took_the_number_of_others_are_entered_too(site: FollowingSite) -> None:
    async with site.running():
        for number in range(NAMESPACES_MAX):
            add(site.store, namespace_of(f"m{number}"))
        await site.time.run(1.0)
        assert 0 < len(site.log.known) < NAMESPACES_MAX, "in the midst of entering them"
        late = [add(site.store, namespace_of(f"late-{number}")) for number in range(20)]
        await site.time.run(10.0)
        assert set(site.log.known) >= {record.namespace.canonical for record in site.store.namespaces()}
        assert site.log.known[-20:] == [record.namespace.canonical for record in late]
        assert len(site.log.known) == len(set(site.log.known)), "once each"
        assert len(site.listings) <= NAMESPACES_MAX, "what was given up is forgotten here too"


async def test_all_of_them_are_entered_anew_now_and_then(site: FollowingSite) -> None:
    spaces = [add(site.store, namespace_of(f"m{number}")).namespace.canonical for number in range(3)]
    async with site.running():
        await site.time.run(LOG_KNOW_AGAIN_S / 2)
        assert sorted(site.log.known) == sorted(spaces)
        await site.time.run(LOG_KNOW_AGAIN_S)
        assert sorted(site.log.known) == sorted(2 * spaces)


async def test_an_incarnation_has_them_before_it_is_joined(site: FollowingSite) -> None:
    """Else a page could have a stamp of it that is older than the entry, and a purge by prefix pass it by."""
    record = add(site.store, namespace_of())
    async with site.running() as shell:
        assert verbs(site, "know", "boot") == ["know", "boot"]
        assert site.directory.is_listed(record.id)
        position = shell.position
        assert position is not None
        site.trace.clear()
        await site.log.fork(position.incarnation, deadline_ns=1 << 62)
        await site.time.run(2.0)
        assert shell.position is not None
        assert shell.position.incarnation != position.incarnation
        assert verbs(site, "know", "boot")[:2] == ["know", "boot"]
        assert site.directory.is_listed(record.id)


async def test_a_log_that_begins_anew_while_it_is_joined_is_joined_again(
    site: FollowingSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = add(site.store, namespace_of())
    boot = site.log.boot
    forked: list[LogIncarnation] = []

    async def begun_anew(**deadline: Any) -> Any:
        if not forked:
            forked.append((await boot(**deadline)).tip.incarnation)
            await site.log.fork(forked[0], deadline_ns=1 << 62)
        return await boot(**deadline)

    monkeypatch.setattr(site.log, "boot", begun_anew)
    async with site.running(joined=False) as shell:
        await settle()
        assert not shell.confirmed.is_set(), "the first incarnation's directory says nothing of the second"
        await site.time.run(1.0)
        position = shell.position
        assert position is not None
        assert position.incarnation != forked[0]
        assert site.directory.is_listed(record.id)


# --- waiting for it ---


async def test_a_new_namespace_is_listed_by_one_call_of_the_log(site: FollowingSite) -> None:
    async with site.running():
        record = add(site.store, namespace_of())
        assert not site.directory.is_listed(record.id)
        site.trace.clear()
        await site.directory.list_namespace(record)
        assert site.directory.is_listed(record.id)
        await site.directory.list_namespace(record)
        assert verbs(site, "know") == ["know"]


async def test_it_is_listed_only_once_the_sidecar_has_followed_the_log_to_there(site: FollowingSite) -> None:
    async with site.running() as shell:
        held = hold_records(site)
        last = await site.append(Selected(Selector(tenant="somebody")))
        record = add(site.store, namespace_of())
        waiting = asyncio.create_task(site.directory.list_namespace(record))
        await settle()
        assert site.log.known, "it is entered"
        assert not site.directory.is_listed(record.id), (
            "what begins now would have an older stamp than the entry"
        )
        assert not waiting.done()
        held.set()
        site.log.before_renewal = None
        await site.time.run(0.1)
        await waiting
        assert shell.position is not None
        assert shell.position.revision == last
        assert site.directory.is_listed(record.id)


async def test_who_waits_for_a_record_that_does_not_come_is_told_in_time(site: FollowingSite) -> None:
    async with site.running():
        held = hold_records(site)
        await site.append(Selected(Selector(tenant="somebody")))
        record = add(site.store, namespace_of())
        waiting = asyncio.create_task(site.directory.list_namespace(record))
        began_ns = site.time.now_ns()
        await site.time.run(2 * LISTING_S_MAX)
        with pytest.raises(LogUnreachableError, match=r"takes too long.*stratakv status"):
            await waiting
        assert site.time.now_ns() - began_ns <= 2 * LISTING_S_MAX * SECOND_NS
        held.set()


async def test_a_log_that_fails_costs_one_attempt_and_then_no_time(site: FollowingSite) -> None:
    async with site.running():
        record = add(site.store, namespace_of())
        site.log.trouble = LogUnavailableError("timeout", "nobody answers")
        site.trace.clear()
        with pytest.raises(LogUnreachableError, match="nobody answers"):
            await site.directory.list_namespace(record)
        with pytest.raises(LogUnreachableError, match="failed to just now"):
            await site.directory.list_namespace(record)
        assert [entry for entry in site.trace if entry[0] == "failed"] == [("failed", "know")]
        site.log.trouble = None
        await site.time.run(2 * LOG_BACKOFF_S_MAX)
        await site.directory.list_namespace(record)
        assert site.directory.is_listed(record.id)


async def test_nobody_waits_for_a_log_that_is_known_not_to_answer(site: FollowingSite) -> None:
    site.log.trouble = LogUnavailableError("timeout", "nobody answers")
    async with site.running(joined=False):
        await site.time.run(1.0)
        record = add(site.store, namespace_of())
        site.trace.clear()
        with pytest.raises(LogUnreachableError, match="does not answer"):
            await site.directory.list_namespace(record)
        assert not site.trace


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
