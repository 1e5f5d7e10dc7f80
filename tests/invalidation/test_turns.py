"""What comes from the log in bulk is read and taken in by turns of bounded work, counted here in entries, not in time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from invalidation import compaction
from invalidation.log import Boot, RenewalStatus
from invalidation.records import NO_DIGEST, LogEntry, LogRecord, next_digest
from invalidation.redis import replies
from invalidation.redis.replies import Answer
from invalidation.selector_tables import SelectorTables
from invalidation.turns import Turns, in_one, in_turns
from invalidation.validity import Validity
from kv_types.ids import PageKey, Stamp
from kv_types.limits import LOG_BATCH_RECORDS_MAX, LOG_TOMBSTONES_MAX, LOG_TURN_ENTRIES_MAX
from kv_types.outcomes import RefuseReason
from kv_types.selectors import Origin, Selector
from tests.conformance.log_harness import selected
from tests.invalidation.follower_driver import FIRST, SECOND
from tests.support.pages import namespace_of
from tests.support.turns import finish

HEAD = Answer(RenewalStatus.OK, FIRST, replicas=0, tip=LOG_BATCH_RECORDS_MAX, settled=True, rest=())


def answer_of(*rest: object) -> Answer:
    return Answer(HEAD.status, HEAD.incarnation, HEAD.replicas, HEAD.tip, HEAD.settled, list(rest))


def stream(count: int) -> list[Any]:
    """So many entries as the script returns them, from the first of a log on."""
    entries, digest = [], NO_DIGEST
    for number in range(1, count + 1):
        payload = LogEntry(event=selected(number)).encode()
        digest = next_digest(digest, payload)
        entries.append([b"%d-0" % number, [b"p", payload, b"d", digest.hex().encode()]])
    return entries


def tombstones(count: int) -> dict[Selector, int]:
    return {Selector(key=PageKey(number.to_bytes(32, "little"))): number + 1 for number in range(count)}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often what one entry costs was done."""
    times: Counter[str] = Counter()

    def count(where: object, name: str) -> None:
        real: Callable[..., object] = getattr(where, name)

        def counting(*arguments: Any, **named: Any) -> object:
            times[name] += 1
            return real(*arguments, **named)

        monkeypatch.setattr(where, name, counting)

    for where, name in (
        (replies, "read_record"), (replies, "next_digest"), (replies, "_selector"), (replies, "MemberState"),
        (compaction, "keep"), (SelectorTables, "_index"),
    ):  # fmt: skip
        count(where, name)
    return times


def most_of_a_turn(work: Turns[Any], times: Counter[str]) -> tuple[Any, int]:
    """Finish the work; returns its result, and the most that was done of anything between two yields."""
    most = 0
    while True:
        before = times.copy()
        try:
            next(work)
        except StopIteration as done:
            return done.value, max(most, *(times - before).values(), 0)
        most = max(most, *(times - before).values(), 0)


def test_a_full_renewal_is_read_in_turns(counted: Counter[str]) -> None:
    answer = answer_of(b"3", stream(LOG_BATCH_RECORDS_MAX))
    reading = replies.read_renewal(answer, number=3, applied=0, digest=NO_DIGEST, confirmed=True)
    renewal, most = most_of_a_turn(reading, counted)
    assert (renewal.status, len(renewal.records)) == (RenewalStatus.OK, LOG_BATCH_RECORDS_MAX)
    assert counted["read_record"] == LOG_BATCH_RECORDS_MAX
    assert most == LOG_TURN_ENTRIES_MAX


def test_news_and_pages_of_the_log_are_read_in_turns(counted: Counter[str]) -> None:
    entries = stream(LOG_BATCH_RECORDS_MAX)
    news, most = most_of_a_turn(replies.read_news([[b"key", entries]], after=0, digest=NO_DIGEST), counted)
    assert (len(news), most) == (LOG_BATCH_RECORDS_MAX, LOG_TURN_ENTRIES_MAX)
    (_, records), most = most_of_a_turn(replies.read_read(answer_of(entries)), counted)
    assert (len(records), most) == (LOG_BATCH_RECORDS_MAX, LOG_TURN_ENTRIES_MAX)


def test_a_full_boot_is_read_in_turns(counted: Counter[str]) -> None:
    flat: list[bytes] = []
    for selector, revision in tombstones(LOG_TOMBSTONES_MAX).items():
        flat += (b"-" + selector.encode(), b"%d" % revision)
    boot, most = most_of_a_turn(replies.read_boot(answer_of(b"0" * 40, [], flat, [])), counted)
    assert boot.tombstones == tombstones(LOG_TOMBSTONES_MAX)
    assert counted["_selector"] == LOG_TOMBSTONES_MAX
    assert most == LOG_TURN_ENTRIES_MAX


def test_a_large_fleet_is_read_in_turns(counted: Counter[str]) -> None:
    flat: list[bytes] = []
    for number in range(1000):
        flat += (number.to_bytes(16, "little"), b"1 0 0 0 {}")
    state, most = most_of_a_turn(replies.read_fence(answer_of(flat), confirmed=True), counted)
    assert (len(state.members), most) == (1000, LOG_TURN_ENTRIES_MAX)


def boot_of(count: int, *, weights: dict[str, str] | None = None) -> Boot:
    return Boot(
        tip=Stamp(SECOND, count), digest=b"d" * 20, floors={}, tombstones=tombstones(count),
        weights=weights or {}, settled=True, replicas=0,
    )  # fmt: skip


def test_a_restart_takes_turns_and_judges_by_all_that_is_new_or_by_nothing_of_it(
    counted: Counter[str],
) -> None:
    validity, namespace = Validity(skew_ms=0), namespace_of()
    finish(
        validity.restarting(
            Boot(
                tip=Stamp(FIRST, 0), digest=NO_DIGEST, floors={}, tombstones={}, weights={"m": "1"},
                settled=True, replicas=0,
            )
        )
    )  # fmt: skip
    validity.apply(LogRecord(1, LogEntry(event=selected(1)), b"1" * 20))
    old, new = Stamp(FIRST, 1), Stamp(SECOND, 0)
    named = PageKey(bytes(32))

    def judged(stamp: Stamp) -> RefuseReason:
        unknown = Origin(producer=None, tags=None, from_ms=0, until_ms=0, revision=stamp.revision)
        return validity.judge(namespace, stamp, unknown, lambda: [named])

    most, turns = 0, 0
    work = validity.restarting(boot_of(1000, weights={"m": "2"}))
    while True:
        before = counted.copy()
        assert (validity.position, validity.digest, validity.weights) == (old, b"1" * 20, {"m": "1"})
        assert (judged(old), judged(new)) == (RefuseReason.NONE, RefuseReason.STAMP_FOREIGN)
        turns += 1
        if next(work, "done") == "done":
            break
        most = max(most, *(counted - before).values())
    assert most == LOG_TURN_ENTRIES_MAX
    assert turns > 1000 // LOG_TURN_ENTRIES_MAX
    assert (validity.position, validity.weights) == (Stamp(SECOND, 1000), {"m": "2"})
    assert (judged(old), judged(new)) == (RefuseReason.STAMP_FOREIGN, RefuseReason.INVALIDATED)


@pytest.mark.asyncio
async def test_others_run_between_two_turns() -> None:
    ran: list[str] = []

    def work() -> Turns[int]:
        for turn in range(3):
            ran.append(f"turn {turn}")
            yield
        return 7

    async def other() -> None:
        while ran[-1] != "turn 2":
            ran.append("other")
            await asyncio.sleep(0)

    ran.append("begin")
    task = asyncio.create_task(other())
    assert await in_turns(work()) == 7
    await task
    for turn in range(2):
        assert "other" in ran[ran.index(f"turn {turn}") : ran.index(f"turn {turn + 1}")]
    assert await in_turns(in_one(len)([1, 2])) == 2
