"""Look-ups that have the sidecar bring what L2 lacks: what they get, how long they wait, and that each page is counted once."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import inference_worker.loading
from inference_worker.loading import Loader, Staged
from kv_types.errors import ClosedError
from kv_types.ids import KEY_BYTES
from kv_types.outcomes import STORED, Hit, MissReason, Tier
from kv_types.selectors import Selector
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.looking import SPACE, Looking
from tests.inference_worker.worlds import chain, pages_under, room_for
from tests.support.l3_site import L3Site
from tests.support.memory_records import Verb
from tests.support.polling import wait_until
from tests.support.puts import put_fresh
from tests.support.timing import timed

both = pytest.mark.parametrize("how", ["lease", "get"])


@both
def test_c29_ten_look_ups_of_all_tiers_are_accounted_for_exactly(looking: Looking, how: str) -> None:
    client, ns = looking.client, looking.ns
    one, two, three, four = (chain(SPACE, 8, seed=seed) for seed in range(4))
    looking.store(one[: 5 * KEY_BYTES])
    looking.shelve(one)
    looking.shelve(two)
    looking.shelve(three[: 4 * KEY_BYTES])
    look, absent, none = looking.look, MissReason.ABSENT, MissReason.NONE
    assert look(how, one[: 5 * KEY_BYTES]) == (5, 0, none)
    assert look(how, one) == (5, 3, none)
    assert look(how, one) == (8, 0, none)
    assert look(how, two, start=3) == (0, 5, none)  # L1 has three of which L2 has none
    assert look(how, two, start=8) == (0, 0, none)
    assert look(how, three) == (0, 4, absent)
    assert look(how, three, start=2) == (2, 0, absent)
    assert look(how, four) == (0, 0, absent)
    assert look(how, four, start=1, deadline_s=0.0) == (0, 0, absent)
    assert look(how, two) == (8, 0, none)
    requested, l1 = 5 + 9 * 8, 3 + 8 + 2 + 1
    l2, l3 = 5 + 5 + 8 + 2 + 8, 3 + 5 + 4
    missed = requested - l1 - l2 - l3
    assert missed == 4 + 4 + 8 + 7
    assert looking.counted() == {
        "look_ups": 10, "requested_pages": requested, "l1_pages": l1, "l2_pages": l2, "l3_pages": l3,
        "missed_pages_absent": missed,
    }  # fmt: skip
    in_sidecar = looking.site.call(lambda store: store.namespace_counts())[SPACE.id]
    assert (in_sidecar.requested, in_sidecar.l1, in_sidecar.l2, in_sidecar.l3) == (requested, l1, l2, l3)
    assert in_sidecar.is_balanced
    told = client.statistics()
    assert (told["loads"], told["loads_pages"]) == (5, 3 + 8 + 4), "those that L1 had were loaded as parents"
    assert int(told["loads_waited_us"]) >= int(told["loads_waited_us_max"]) > 0
    assert client.namespace_counts()[ns.label].l3 == l3


@both
def test_what_is_all_there_and_what_may_not_wait_asks_nobody(looking: Looking, how: str) -> None:
    keys = chain(SPACE, 6)
    looking.store(keys[: 2 * KEY_BYTES])
    looking.shelve(keys)
    assert looking.look(how, keys[: 2 * KEY_BYTES]) == (2, 0, MissReason.NONE)
    assert looking.look(how, keys, deadline_s=0.0) == (2, 0, MissReason.ABSENT)
    assert looking.client.match(looking.ns, keys) == Hit(2, Tier.L2, MissReason.ABSENT)
    assert looking.site.asked("probe") == looking.client.statistics()["loads"] == 0
    assert looking.look(how, keys) == (2, 4, MissReason.NONE)


@both
@pytest.mark.parametrize("verb", ["probe", "load"])
def test_a_load_that_takes_too_long_leaves_what_was_there_and_no_longer_wait(
    looking: Looking, how: str, verb: Verb
) -> None:
    keys = chain(SPACE, 6)
    looking.store(keys[: 2 * KEY_BYTES])
    looking.shelve(keys)
    looking.site.hold(verb)
    answer = timed(lambda: looking.look(how, keys, deadline_s=0.2), deadline_s=0.2)
    assert answer == (2, 0, MissReason.DEADLINE)
    assert looking.counted() == {
        "look_ups": 1, "requested_pages": 6, "l1_pages": 0, "l2_pages": 2, "l3_pages": 0, "missed_pages_deadline": 4,
    }  # fmt: skip
    assert looking.look(how, keys) == (2, 4, MissReason.NONE), "the next one gets them"


@both
def test_a_look_up_that_has_no_time_left_to_ask_is_late_and_not_without_the_page(
    looking: Looking, how: str
) -> None:
    keys = chain(SPACE, 6)
    looking.store(keys[: 2 * KEY_BYTES])
    looking.shelve(keys)
    assert looking.look(how, keys, deadline_s=1e-9) == (2, 0, MissReason.DEADLINE)
    assert looking.counted()["missed_pages_deadline"] == 4
    assert looking.site.asked("probe") == 0


FAILURES = {
    MissReason.L3_UNAVAILABLE: lambda site: site.records.stop(),
    MissReason.OVERLOADED: lambda site: site.records.fail("load", MissReason.OVERLOADED, calls=8),
    MissReason.DEADLINE: lambda site: site.records.fail("load", MissReason.DEADLINE, calls=8),
}


@both
@pytest.mark.parametrize("reason", FAILURES)
def test_c07_a_refused_load_is_a_miss_with_its_reason(looking: Looking, how: str, reason: MissReason) -> None:
    keys = chain(SPACE, 6)
    looking.store(keys[: 2 * KEY_BYTES])
    looking.shelve(keys)
    looking.site.call(lambda _: FAILURES[reason](looking.site))
    assert looking.look(how, keys) == (2, 0, reason)
    assert looking.counted()[f"missed_pages_{reason.name.lower()}"] == 4


@both
@pytest.mark.parametrize(
    "change",
    [
        lambda record: record[:-1] + bytes([record[-1] ^ 1]),
        lambda record: record[: len(record) // 2],
        lambda record: record + b"\0",
    ],
    ids=["flipped", "short", "long"],
)
def test_c07_a_damaged_record_is_a_miss_and_never_bytes(
    looking: Looking, how: str, change: Callable[[bytes], bytes]
) -> None:
    keys = chain(SPACE, 6)
    looking.store(keys[: 2 * KEY_BYTES])
    looking.shelve(keys)
    looking.site.damage(SPACE, keys[4 * KEY_BYTES : 5 * KEY_BYTES], change)
    assert looking.look(how, keys) == (2, 2, MissReason.CORRUPT)
    assert looking.look(how, keys) == (4, 0, MissReason.ABSENT), "it was removed"
    assert looking.counted()["missed_pages_corrupt"] == 2


@both
def test_what_was_invalidated_is_not_loaded(looking: Looking, how: str) -> None:
    keys = chain(SPACE, 6)
    looking.shelve(keys)
    looking.site.call(lambda store: store.hide(Selector(model="loads")))
    assert looking.look(how, keys) == (0, 0, MissReason.INVALIDATED)


@both
def test_no_room_in_l2_is_a_miss_for_that_reason(tmp_path: Path, connect: MakeClient, how: str) -> None:
    with L3Site(tmp_path, arena_bytes=1 << 20) as site:
        client = connect(site.path.parent, prefault=False)
        ns = client.register(SPACE)
        looking = Looking(site, client, ns)
        filled, keys = chain(SPACE, 300, seed=1), chain(SPACE, 4)
        with client.begin(ns) as request:
            request.put(filled, pages_under(filled, ns.page_bytes))
        looking.settle()
        looking.shelve(keys)
        with client.lease(ns, filled, deadline_s=0.0) as lease:
            assert lease.pages > 200, "all that there is room for"
            assert looking.look(how, keys) == (0, 0, MissReason.NO_ROOM)
        assert looking.look(how, keys) == (0, 4, MissReason.NONE)


@both
def test_a_chain_longer_than_one_message_is_asked_for_in_several(
    looking: Looking, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference_worker.loading, "LOAD_KEYS_MAX", 4)
    keys, other = chain(SPACE, 11), chain(SPACE, 11, seed=1)
    looking.store(keys[:KEY_BYTES])
    looking.shelve(keys)
    looking.shelve(other[: 6 * KEY_BYTES])
    assert looking.look(how, keys) == (1, 10, MissReason.NONE)
    assert looking.look(how, other) == (0, 6, MissReason.ABSENT)
    assert looking.client.statistics()["loads_pages"] == 16


@both
def test_a_sidecar_that_dies_meanwhile_is_unreachable_and_the_look_up_counted(
    looking: Looking, how: str
) -> None:
    keys = chain(SPACE, 6)
    looking.store(keys[: 2 * KEY_BYTES])
    looking.shelve(keys)
    held = looking.site.hold("probe")

    def cut_off(_: object) -> None:
        (process,) = looking.site.server.processes()
        assert process.connection is not None
        looking.site.server._close(process.connection)

    with ThreadPoolExecutor(1) as pool:
        looks = pool.submit(looking.look, how, keys)
        wait_until(held.reached.is_set, what="the load to be under way")
        looking.site.call(cut_off)
        pages, from_l3, reason = looks.result(5)
    assert (pages in (0, 2), from_l3, reason) == (True, 0, MissReason.UNREACHABLE)
    counted = looking.counted()
    assert counted["look_ups"] == 1
    assert counted["requested_pages"] == 6 == counted["l2_pages"] + counted["missed_pages_unreachable"]
    looking.site.release(held)
    wait_until(lambda: looking.look(how, keys)[2] is MissReason.NONE, what="the client to work again")


@both
def test_a_request_s_look_up_is_counted_though_its_client_has_given_the_life_up_meanwhile(
    looking: Looking, how: str
) -> None:
    keys = chain(SPACE, 6)
    looking.store(keys[: 2 * KEY_BYTES])
    looking.shelve(keys)
    held = looking.site.hold("probe")
    resumed = threading.Event()
    with looking.client.begin(looking.ns) as request, ThreadPoolExecutor(1) as pool:
        stage = inference_worker.loading.Loader.stage

        def late(self: Loader, *arguments: Any, page_tokens: int) -> Staged:
            staged = stage(self, *arguments, page_tokens=page_tokens)
            assert resumed.wait(10)
            return staged

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inference_worker.loading.Loader, "stage", late)
            room = room_for(keys, looking.ns.page_bytes)
            looks = pool.submit(
                lambda: request.get(keys, room) if how == "get" else request.lease(keys).release()
            )
            wait_until(held.reached.is_set, what="the load to be under way")
            arena = looking.client._link.arena
            assert arena is not None
            with socket.socket(fileno=os.dup(arena.fileno())) as connection:
                connection.shutdown(socket.SHUT_RDWR)
            looking.site.release(held)
            wait_until(lambda: looking.client._link.arena not in (arena, None), what="another life")
            assert looking.counted().get("look_ups", 0) == 0
            resumed.set()
            looks.result(5)
        counted = looking.counted()
        assert (counted["look_ups"], counted["requested_pages"]) == (1, 6)
    assert looking.counted() == counted, "and once, when the request ends"
    assert looking.client.namespace_counts()[looking.ns.label].requested == 6


@both
def test_closing_the_client_ends_a_look_up_that_waits(looking: Looking, how: str) -> None:
    keys = chain(SPACE, 6)
    looking.store(keys[: 2 * KEY_BYTES])
    looking.shelve(keys)
    held = looking.site.hold("probe")
    with ThreadPoolExecutor(1) as pool:
        looks = pool.submit(looking.look, how, keys)
        wait_until(held.reached.is_set, what="the load to be under way")
        looking.client.close()
        with pytest.raises(ClosedError):
            looks.result(5)
    wait_until(lambda: looking.site.statistic("leases") == 0, what="the pins to end")
    looking.site.release(held)


@both
def test_a_look_up_that_a_signal_interrupts_is_counted_as_aborted_and_its_load_given_up(
    looking: Looking, how: str
) -> None:
    keys = chain(SPACE, 6)
    looking.store(keys[: 2 * KEY_BYTES])
    looking.shelve(keys)
    held = looking.site.hold("probe")

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.main_thread().ident
    assert main is not None

    def send() -> None:
        wait_until(held.reached.is_set, what="the load to be under way")
        signal.pthread_kill(main, signal.SIGUSR1)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            with pytest.raises(Interrupted):
                looking.look(how, keys)
        finally:
            sending.result(10)
            signal.signal(signal.SIGUSR1, before)
    assert looking.counted() == {
        "look_ups": 1, "requested_pages": 6, "l1_pages": 0, "l2_pages": 0, "l3_pages": 0, "missed_pages_aborted": 6,
    }  # fmt: skip
    wait_until(lambda: not looking.site.server.processes()[0].loads, what="the load to be given up")
    assert looking.site.statistic("leases") == 0
    looking.site.release(held)
    assert looking.look(how, keys) == (2, 4, MissReason.NONE)


def test_pages_that_were_there_stay_pinned_while_the_rest_is_waited_for(looking: Looking) -> None:
    keys = chain(SPACE, 6)
    looking.store(keys[: 2 * KEY_BYTES])
    looking.shelve(keys)
    held = looking.site.hold("probe")
    with ThreadPoolExecutor(1) as pool:
        looks = pool.submit(looking.look, "lease", keys)
        wait_until(held.reached.is_set, what="the load to be under way")
        assert looking.site.statistic("leases") == 2
        looking.site.release(held)
        assert looks.result(5) == (2, 4, MissReason.NONE)
    assert looking.site.statistic("leases") == 0


def test_a_fork_while_a_look_up_waits_leaves_it_to_the_parent(looking: Looking) -> None:
    keys = chain(SPACE, 6)
    looking.store(keys[: 2 * KEY_BYTES])
    looking.shelve(keys)
    held = looking.site.hold("probe")
    with ThreadPoolExecutor(1) as pool:
        looks = pool.submit(looking.look, "lease", keys)
        wait_until(held.reached.is_set, what="the load to be under way")
        child = os.fork()
        if child == 0:
            counts = looking.client.statistics()
            os._exit(int(counts["requested_pages"] != 0 or counts["loads"] != 0))
        assert os.waitpid(child, 0)[1] == 0
        looking.site.release(held)
        assert looks.result(5) == (2, 4, MissReason.NONE)
    assert looking.counted()["requested_pages"] == 6


@both
def test_a_request_knows_what_was_loaded_for_it_and_rests_on_it(looking: Looking, how: str) -> None:
    client, ns = looking.client, looking.ns
    keys = chain(SPACE, 8)
    looking.store(keys[: 2 * KEY_BYTES])
    looking.shelve(keys[: 6 * KEY_BYTES])
    pages = pages_under(keys, ns.page_bytes)
    with client.begin(ns) as request:
        if how == "lease":
            with request.lease(keys) as lease:
                assert lease.pages == 6
                told = lease.instances
        else:
            assert request.get(keys, room_for(keys, ns.page_bytes)) == Hit(6, Tier.L3, MissReason.ABSENT, 4)
            told = request.instances(keys[: 6 * KEY_BYTES])
        assert request.pages_l3 == 4
        assert 0.0 < request.load_waited_s < 10.0
        assert request.instances(keys[: 6 * KEY_BYTES]) == told
        assert len(set(told.numbers)) == 6
        assert request.put(keys, pages[6:], start=6) == [STORED] * 2
    looking.settle()
    with client.begin(ns) as request, request.lease(keys, deadline_s=0.0) as lease:
        assert lease.pages == 8
        assert request.pages_l3 == request.load_waited_s == 0
    facts = looking.site.call(lambda store: store.inspect(keys[-KEY_BYTES:]))  # type: ignore[arg-type]
    assert facts is not None
    assert facts.origin.lineage_known


def test_a_client_that_only_reads_gets_what_is_loaded(l3_site: L3Site, connect: MakeClient) -> None:
    client = connect(l3_site.path.parent, prefault=False, writable=False)
    looking = Looking(l3_site, client, client.register(SPACE))
    keys = chain(SPACE, 5)
    looking.shelve(keys)
    assert looking.look("lease", keys) == (0, 5, MissReason.NONE)
    assert looking.look("get", keys) == (5, 0, MissReason.NONE)


def test_a_sidecar_that_lies_about_what_it_staged_gets_nobody_bytes(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = chain(SPACE, 4)
    attached = looking.client._link.arena.connection()  # type: ignore[union-attr]
    from cache_l2.attach_messages import LoadedPages, LoadedRow

    monkeypatch.setattr(type(attached), "load", lambda *_, **__: LoadedPages((LoadedRow(4, 0, 0),)))
    assert looking.look("lease", keys) == (0, 0, MissReason.ABSENT)
    assert looking.look("get", keys) == (0, 0, MissReason.ABSENT)
    assert looking.counted()["missed_pages_absent"] == 8


@both
def test_what_was_reused_and_hidden_while_the_rest_was_loaded_is_not_lost_sight_of(
    looking: Looking, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its page is computed anew meanwhile, and what comes then stands on that one."""
    client, ns, keys = looking.client, looking.ns, chain(SPACE, 3)
    pages = pages_under(keys, ns.page_bytes)
    assert put_fresh(client, ns, keys[:KEY_BYTES], pages[:1], tags=[b"hidden"]) == [STORED]
    looking.settle()

    def stage(*_: object, **__: object) -> Staged:
        assert looking.site.call(lambda store: store.hide(Selector(tag=b"hidden"))) == 1
        assert put_fresh(client, ns, keys[: 2 * KEY_BYTES], pages[:2]) == [STORED] * 2
        looking.settle()
        return Staged(2, None, MissReason.ABSENT)

    with client.begin(ns) as request:
        monkeypatch.setattr(Loader, "stage", stage)
        if how == "lease":
            with request.lease(keys) as lease:
                assert lease.pages == 2, "all are looked up again"
            outcomes = request.put(keys, pages[2:], start=2)
            assert outcomes == [STORED], "it rests on nothing that was hidden"
            return
        found = request.get(keys, room_for(keys, ns.page_bytes))
        assert isinstance(found, Hit)
        outcomes = request.put(keys, pages[found.pages :], start=found.pages)
        assert STORED not in outcomes, "it was computed from what was hidden"


def test_many_threads_with_all_kinds_of_deadlines_are_accounted_for(looking: Looking) -> None:
    draw = random.Random(3)
    chains = [chain(SPACE, 12, seed=seed) for seed in range(12)]
    for number, keys in enumerate(chains):
        looking.shelve(keys[: (number + 1) * KEY_BYTES])
    asked = [
        (
            draw.choice(["lease", "get"]),
            draw.choice(chains),
            draw.choice([0, 0, 3]),
            draw.choice([0.0, 0.001, 5.0]),
        )
        for _ in range(300)
    ]

    def look(one: tuple[str, bytes, int, float]) -> tuple[int, int, MissReason]:
        how, keys, start, deadline_s = one
        return looking.look(how, keys, start=start, deadline_s=deadline_s)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(look, asked))
    counted = looking.counted()
    assert counted["look_ups"] == 300
    assert counted["requested_pages"] == 300 * 12
    assert counted["l1_pages"] == sum(start for _, _, start, _ in asked)
    assert counted["l2_pages"] == sum(l2 for l2, _, _ in answers)
    assert counted["l3_pages"] == sum(l3 for _, l3, _ in answers)
    missed = sum(pages for name, pages in counted.items() if name.startswith("missed"))
    assert missed == 300 * 12 - counted["l1_pages"] - counted["l2_pages"] - counted["l3_pages"]
    assert looking.site.statistic("leases") == 0
    assert looking.look("lease", chains[-1]) == (12, 0, MissReason.NONE)
