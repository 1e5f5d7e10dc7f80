"""Attaching, storing and reading between real processes, and what is left of those that die."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from cache_l2.reader import Reserved
from kv_types.ids import Stamp, new_log_incarnation
from kv_types.limits import BATCH_PAGES_MAX, RESERVATIONS_PER_CLIENT_MAX
from kv_types.outcomes import MissReason, Refused, RefuseReason
from tests.support.attach_site import AttachSite, register
from tests.support.attach_worker import Worker, check, put, stamp_of
from tests.support.pages import chain, namespace_of, packed
from tests.support.polling import wait_until
from tests.support.processes import wait_until_stopped


def root() -> str:
    return os.urandom(32).hex()


def keys_of(seed: str, pages: int) -> bytes:
    return packed(chain(pages, root=bytes.fromhex(seed)))


def test_pages_of_one_process_are_read_by_another_byte_for_byte(site: AttachSite) -> None:
    seed = root()
    with Worker("puts", site.path, seed, 20, 3) as writer:
        assert writer.hear() == {"stored": 20}
        with Worker("gets", site.path, seed, 24, 3) as reader:
            assert reader.hear() == {"pages": 20}
            assert reader.wait() == 0
        with site.attach() as arena:
            registration = register(arena, namespace_of(units=3))
            assert check(arena, registration, chain(20, root=bytes.fromhex(seed))) == 20
        writer.tell()
        assert writer.wait() == 0
    counts = site.call(lambda store: store.namespace_counts())[namespace_of(units=3).id]
    assert (counts.requested, counts.l2, counts.missed[MissReason.ABSENT]) == (44, 40, 4)
    assert counts.is_balanced
    assert counts.bytes_written == 20 * 3 * 4096


@pytest.mark.parametrize("stage", ["reserved", "half", "filled"])
def test_c31_a_writer_killed_before_commit_publishes_nothing(site: AttachSite, stage: str) -> None:
    seed = root()
    keys = chain(8, root=bytes.fromhex(seed))
    with site.attach() as arena, Worker("dies_writing", site.path, seed, 8, stage) as writer:
        registration = register(arena, namespace_of())
        assert writer.hear() == {"stage": stage}
        assert (
            arena.reserve(registration, None, packed(keys), deadline_s=5.0)
            == [Refused(RefuseReason.BUSY)] * 8
        )
        writer.kill()
        wait_until(lambda: site.statistic("reservations") == 0, what="the dead writer's reservations to end")
        assert arena.reader.match(packed(keys), namespace=registration.number) == (0, MissReason.ABSENT)
        put(arena, registration, keys)
        assert check(arena, registration, keys) == 8


def test_c10_ten_thousand_look_ups_and_a_kill_leave_no_lease(site: AttachSite) -> None:
    seed = root()
    with site.attach() as arena, Worker("puts", site.path, seed, 2) as writer:
        registration = register(arena, namespace_of())
        writer.hear()
        with Worker("leases", site.path, seed, 1, 10_000) as reader:
            assert reader.hear() == {"leased": 10_000}
            assert site.statistic("leases") == 10_000
            assert site.statistic("leased_bytes") > 0
            reader.kill()
            wait_until(lambda: site.statistic("leases") == 0, what="leases of the dead reader to end")
        assert site.statistic("leased_bytes") == 0
        put(arena, registration, chain(10))
        counts = site.call(lambda store: store.namespace_counts())[namespace_of().id]
        assert counts.requested == counts.l2 == 10_000


@pytest.mark.parametrize("how", ["returns", "killed"])
def test_c24_a_worker_may_come_and_go(site: AttachSite, how: str) -> None:
    seed = root()
    with Worker("puts", site.path, seed, 3) as other:
        other.hear()
        with Worker("leases", site.path, seed, 3, 5) as worker:
            assert worker.hear() == {"leased": 15}
            if how == "killed":
                worker.kill()
            else:
                worker.tell("return")
                assert worker.hear() == {"kept": 5}
                assert worker.wait() == 0
            wait_until(lambda: site.statistic("server.processes") == 1, what="the row to be freed")
        with Worker("gets", site.path, seed, 3) as another:
            assert another.hear() == {"pages": 3}
        other.tell()
        assert other.wait() == 0
    wait_until(lambda: site.statistic("server.processes") == 0, what="every row to be freed")
    assert site.statistic("leases") == 0


def test_a_forked_child_cannot_touch_but_may_attach_itself(site: AttachSite) -> None:
    with Worker("forks", site.path, root()) as worker:
        assert worker.hear() == {"child": 0, "parent_pages": 3, "alive": True}
        assert worker.wait() == 0
    wait_until(lambda: site.statistic("server.processes") == 0, what="every row to be freed")


def test_a_child_that_keeps_the_socket_does_not_keep_its_dead_parents_row(site: AttachSite) -> None:
    with Worker("holds_socket_in_child", site.path, root()) as worker:
        heard = worker.hear()
        try:
            assert site.statistic("leases") == heard["leased"] == 2
            worker.kill()
            os.kill(heard["child"], 0)
            wait_until(
                lambda: site.statistic("server.processes") == 0, what="the row to end with its process"
            )
            assert site.statistic("leases") == 0
            assert site.statistic("server.connections") == 0
        finally:
            os.kill(heard["child"], signal.SIGKILL)


def test_a_broken_connection_orphans_a_living_process_and_keeps_its_leases(site: AttachSite) -> None:
    arena = site.attach()
    registration = register(arena, namespace_of())
    keys = chain(2)
    put(arena, registration, keys)
    lease = arena.reader.lease(registration.counter, packed(keys), namespace=registration.number)
    arena.reserve(registration, None, packed(chain(1)), deadline_s=5.0)
    arena._channel.close()
    wait_until(lambda: site.statistic("clients_orphaned") == 1, what="the row to be orphaned")
    assert not arena.alive
    assert site.statistic("leases") == 2
    assert site.statistic("entries_quarantined") == 1, "the writer may still write"
    assert bytes(lease[0]), "leased memory stays readable"
    lease.release()
    arena.close()
    assert site.statistic("clients_orphaned") == 1, "the row lasts as long as the process"


def test_detaching_with_nothing_held_frees_the_row_at_once(site: AttachSite) -> None:
    arena = site.attach(name="short visit")
    assert [process.name for process in site.call(lambda _: site.server.processes())] == ["short visit"]
    arena.close()
    arena.close()
    wait_until(lambda: site.statistic("server.processes") == 0, what="the row to be freed")
    assert site.statistic("server.detached") == 1
    assert site.statistic("server.orphaned") == 0


def test_c30_a_copy_slower_than_its_lease_is_not_served(tmp_path: Path) -> None:
    mib = 1 << 20
    pages, units = 32, 512  # 64 MiB in pages of 2 MiB
    with AttachSite(tmp_path, arena_bytes=96 * mib, segment_bytes=8 * mib) as site:
        seed = root()
        with Worker("puts", site.path, seed, pages, units) as writer:
            writer.hear()
            with Worker("copies_slowly", site.path, seed, pages, units) as reader:
                row = reader.hear()["row"]
                assert _stop_in_mid_copy(site, reader, row), "no copy was ever caught under way"
                stopped_at = time.monotonic()
                wait_until(lambda: time.monotonic() - stopped_at > 0.2, what="the stop to outlast the lease")
                reader.signal(signal.SIGCONT)
                heard = [reader.hear()]
                while heard[-1]["seconds"] < 0.2:
                    heard.append(reader.hear())
                assert heard[-1]["reason"] == MissReason.LEASE_EXPIRED
                # what was copied within the lease may be served; the rest must not be
                assert heard[-1]["pages"] < pages


def _stop_in_mid_copy(site: AttachSite, reader: Worker, row: int) -> bool:
    def leases() -> int:
        return site.call(lambda store: next(client.leases for client in store.clients() if client.row == row))

    for _ in range(200):
        if leases():
            reader.signal(signal.SIGSTOP)
            wait_until_stopped(reader.pid)
            if leases():
                return True
            reader.signal(signal.SIGCONT)
    return False


def test_reservations_are_limited_a_client_and_others_still_get_theirs(tmp_path: Path) -> None:
    with (
        AttachSite(tmp_path, arena_bytes=32 << 20, pages_max=8192) as site,
        site.attach() as greedy,
        site.attach() as other,
    ):
        registration = register(greedy, namespace_of())
        answers = []
        for _ in range(RESERVATIONS_PER_CLIENT_MAX // BATCH_PAGES_MAX):
            answers += greedy.reserve(registration, None, packed(chain(BATCH_PAGES_MAX)), deadline_s=5.0)
        assert all(isinstance(answer, Reserved) for answer in answers)
        refused = greedy.reserve(registration, None, packed(chain(1)), deadline_s=5.0)
        assert refused == [Refused(RefuseReason.QUOTA)]
        put(other, register(other, namespace_of()), chain(20))


def test_stopping_lets_clients_leave_and_then_closes_those_that_stay(tmp_path: Path) -> None:
    with AttachSite(tmp_path) as site:
        leaver, stayer = site.attach(), site.attach()
        keys = chain(1)
        registration = register(stayer, namespace_of())
        put(stayer, registration, keys)
        site.call(lambda store: store.drain())
        stopping = asyncio.run_coroutine_threadsafe(site.server.stop(0.3), site.loop)
        assert not leaver.alive, "a closed header tells clients to leave"
        leaver.close()
        stopping.result(10)
        assert stayer.reader.match(packed(keys), namespace=registration.number) == (0, MissReason.CLOSED)
        refused = [Refused(RefuseReason.UNREACHABLE)]
        assert stayer.reserve(registration, None, packed(chain(1)), deadline_s=1.0) == refused
        assert not site.path.exists()
        stayer.close()


def test_stopping_does_not_wait_once_everybody_has_left(tmp_path: Path) -> None:
    with AttachSite(tmp_path) as site:
        arena = site.attach()
        begun = time.monotonic()
        stopping = asyncio.run_coroutine_threadsafe(site.server.stop(30.0), site.loop)
        arena.close()
        stopping.result(10)
        assert time.monotonic() - begun < 10


def test_a_stamp_of_another_log_is_refused(site: AttachSite) -> None:
    with site.attach() as arena:
        registration = register(arena, namespace_of())
        (place,) = arena.reserve(registration, None, packed(chain(1)), deadline_s=5.0)
        assert isinstance(place, Reserved)
        own = stamp_of(arena)
        ahead = Stamp(own.incarnation, own.revision + 1)
        assert arena.commit([place.id], stamp=ahead, deadline_s=5.0) == [Refused(RefuseReason.STAMP_FOREIGN)]
        assert arena.commit([place.id], stamp=own, deadline_s=5.0) == [Refused(RefuseReason.EXPIRED)]
        assert site.statistic("entries_reserved") == 0
        foreign = Stamp(new_log_incarnation(), 0)
        (place,) = arena.reserve(registration, None, packed(chain(1)), deadline_s=5.0)
        assert isinstance(place, Reserved)
        assert arena.commit([place.id], stamp=foreign, deadline_s=5.0) == [
            Refused(RefuseReason.STAMP_FOREIGN)
        ]
