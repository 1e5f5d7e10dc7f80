"""New weights over a real log in memory: what is announced and invalidated, in which order, by calls that run at once."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import replace
from typing import Any

import pytest

from invalidation.validity import Validity
from kv_types.errors import InvalidArgumentError
from kv_types.events import Selected, WeightsAnnounced
from kv_types.namespace import Weights
from kv_types.outcomes import RefuseReason
from kv_types.selectors import Origin, Selector
from tests.kv_types.selector_samples import space
from tests.sidecar.test_administration import announce
from tests.support.fleet import ScriptedFleet, ScriptedMember
from tests.support.turns import finish

pytestmark = pytest.mark.asyncio
NOBODY = Origin(producer=None, tags=None, from_ms=0, until_ms=0, revision=0)


async def test_other_weights_are_another_announcement_whatever_the_request_id() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    request_id = os.urandom(16)
    await announce(fleet, "m", "2", old="1", request_id=request_id)
    await announce(fleet, "m", "2", old="1", request_id=request_id)
    await announce(fleet, "m", "3", old="1", request_id=request_id)
    old = Selected(Selector(model="m", weights_version="1"))
    events = [record.event for record in await fleet.records()]
    assert events == [WeightsAnnounced("m", "2"), old, WeightsAnnounced("m", "3"), old]


async def test_weights_are_announced_before_the_old_ones_are_invalidated() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    result = await announce(fleet, "m", "2", old="1")
    assert result.unconfirmed is None
    assert [record.event for record in await fleet.records()] == [
        WeightsAnnounced("m", "2"),
        Selected(Selector(model="m", weights_version="1")),
    ]


@pytest.mark.parametrize(
    ("model", "version", "old"),
    [
        ("", "2", None),
        ("m", "", None),
        ("m", "2", "2"),
        ("m", "ab" * 32, "AB" * 32),
        ("m\ud800", "2", None),
        ("m" * 430, "2", None),
        ("m", "2", ""),
    ],
)
async def test_what_no_reader_of_the_log_would_understand_is_never_appended(
    model: str, version: str, old: str | None
) -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    with pytest.raises(InvalidArgumentError):
        await announce(fleet, model, version, old=old)
    assert not await fleet.records()


@pytest.mark.parametrize("announced", [None, "1", "2"])
async def test_weights_replace_every_other_version_whatever_was_announced_before(
    announced: str | None,
) -> None:
    """The log may have forgotten what was announced (a flush, a failover), and the first announcement follows none."""
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    if announced is not None:
        await announce(fleet, "m", announced, request_id=b"before".ljust(16))
    await announce(fleet, "m", "2")
    last = (await fleet.records())[-1].event
    assert last == Selected(Selector(model="m", other_weights_than="2"))


class _InAnyOrder:
    """Lets calls that append to one log at once take turns as a seed says."""

    def __init__(self, fleet: ScriptedFleet, seed: int) -> None:
        self._random = random.Random(seed)
        self._append = fleet.local.append
        fleet.local.append = self.append  # type: ignore[method-assign]

    async def append(self, *terms: Any, **more: Any) -> Any:
        for _ in range(self._random.randrange(8)):
            await asyncio.sleep(0)
        return await self._append(*terms, **more)


@pytest.mark.parametrize("seed", range(40))
async def test_versions_that_are_announced_at_once_leave_no_page_of_those_superseded(seed: int) -> None:
    """However the records of several calls come to stand: pages of what was announced last may go too, all others must."""
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    versions = ["2", "3", "4", "5"]
    _InAnyOrder(fleet, seed)
    await asyncio.gather(
        *(announce(fleet, "m", version, request_id=version.encode().ljust(16)) for version in versions)
    )
    records = await fleet.records()
    assert len(records) == 2 * len(versions)
    validity = Validity(skew_ms=0)
    finish(validity.restarting(await fleet.local.boot(deadline_ns=0)))
    announcements = {
        record.event.version: record.revision
        for record in records
        if isinstance(record.event, WeightsAnnounced)
    }
    for version, revision in {"1": 0, **announcements}.items():
        later = [each for each in announcements.values() if each > revision]
        # a worker that follows computes under this name from one announcement to the next
        found = {
            validity.judge(
                space("m", Weights(version=version)),
                replace(fleet.position, revision=stamp),
                NOBODY,
                lambda: (),
            )
            for stamp in range(revision, min(later, default=len(records) + 1))
        }
        if later:
            assert found == {RefuseReason.INVALIDATED}, f"{version} is superseded"
        else:
            assert version == validity.weights["m"]
            assert RefuseReason.NONE in found, "what is computed from now on is served"
