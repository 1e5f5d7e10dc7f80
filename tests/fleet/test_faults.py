"""Redis dies, stops, forgets and is replaced, sidecars and workers are killed: after exit 0 nobody gets a purged page."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest
from redis.exceptions import OutOfMemoryError

from kv_types.clock import BoottimeClock
from kv_types.limits import LOG_RECORDS_KEPT_MAX
from kv_types.selectors import Selector
from tests.fleet.checker import availability
from tests.fleet.faults import FAULTS_OF_LOG, FAULTS_OF_NODES, one_stopped, redis_full
from tests.fleet.fleet import LEASE_S, WINDOW_S, Fleet
from tests.fleet.invalidating import UNCONFIRMED, UNREACHABLE
from tests.fleet.purges import Purge
from tests.fleet.purging import purging, wait_s
from tests.support.daemon import run_command
from tests.support.logs import Logs, append, entry, within
from tests.support.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

HEAL_S_MAX = 8.0
"""From a fault's end to hits on every worker: a window to settle, a backoff, and a crowded machine."""
DARK_S = LEASE_S + 0.4

SOAK_S = float(os.environ.get("STRATAKV_SOAK_S", "6"))

_CLOCK = BoottimeClock()


def heal(fleet: Fleet, fault: str, *, sidecars: tuple[int, ...] | None = None) -> None:
    """Hits come back by themselves, and invalidations are confirmed again."""
    took_s = fleet.await_hits(timeout_s=HEAL_S_MAX, sidecars=sidecars)
    via = 0 if sidecars is None else sidecars[0]
    done = fleet.purge(Purge(tenant=0, chain=0), via=via)
    assert done.is_confirmed, f"after {fault}: {done}"
    print(f"{fault}: hits on every worker {took_s:.2f} s after its end")


def confirmed_since(fleet: Fleet, since_ns: int) -> int:
    return sum(one.is_confirmed and one.invoked_ns >= since_ns for one in fleet.purged)


def test_without_a_fault_what_is_not_purged_stays_and_every_fence_is_reached(fleet: Fleet) -> None:
    since_ns = _CLOCK.now_ns()
    with fleet.calmly(), purging(fleet) as purges:
        wait_until(lambda: purges.count >= 20, timeout_s=30.0, what="20 invalidations")
    assert confirmed_since(fleet, since_ns) == purges.count
    ends = availability(fleet.look_ups(), fleet.calm)
    assert ends["full"] > 100
    assert sum(ends.values()) - ends["full"] - ends["ABSENT"] < 0.02 * sum(ends.values()), ends


def test_redis_is_killed_and_comes_back_empty(fleet: Fleet) -> None:
    with purging(fleet, timeout_s=1.0):
        wait_s(0.5)
        killed_ns = _CLOCK.now_ns()
        fleet.primary.kill()
        refused = fleet.purge(Purge(tenant=1), timeout_s=0.5)
        assert refused.exit_code == UNREACHABLE, refused
        assert "nothing was appended" in refused.reason
        wait_s(DARK_S)
        fleet.is_dark(killed_ns, _CLOCK.now_ns())
        fleet.primary.start()
        heal(fleet, "Redis was killed")


def test_redis_is_stopped(fleet: Fleet) -> None:
    with purging(fleet, timeout_s=1.0):
        wait_s(0.3)
        stopped_ns = _CLOCK.now_ns()
        fleet.primary.freeze()
        stopped_for_all_ns = _CLOCK.now_ns()
        wait_s(DARK_S)
        fleet.is_dark(stopped_for_all_ns, _CLOCK.now_ns())
        assert confirmed_since(fleet, stopped_ns) <= 1, (
            "one that was under way may have been answered already"
        )
        fleet.primary.thaw()
        heal(fleet, "Redis was stopped")


def test_everything_in_redis_is_flushed(fleet: Fleet) -> None:
    with purging(fleet):
        wait_s(0.5)
        fleet.primary.client.flushall()
        after_ns = _CLOCK.now_ns()
        done = fleet.purge(Purge(tenant=1), via=1)
        assert done.is_confirmed, done
        waited_s = (done.ended_ns - after_ns) / 1e9
        assert waited_s >= WINDOW_S * 0.9, (
            "a table without members says nothing before the incarnation is settled"
        )
        heal(fleet, "FLUSHALL")


def test_redis_restarts_from_an_old_dump(fleet: Fleet) -> None:
    fleet.primary.save()
    with purging(fleet):
        since_ns = _CLOCK.now_ns()
        wait_until(
            lambda: confirmed_since(fleet, since_ns) >= 3, timeout_s=10.0, what="records after the dump"
        )
        fleet.primary.restart()
        heal(fleet, "an old dump came back")


def test_a_full_redis_costs_nobody_anything(fleet: Fleet) -> None:
    with redis_full(fleet):
        with pytest.raises(OutOfMemoryError):
            fleet.primary.client.set("one more", bytes(64 * 1024))
        with fleet.calmly(), purging(fleet) as purges:
            since_ns = _CLOCK.now_ns()
            wait_until(lambda: purges.count >= 8, timeout_s=20.0, what="8 invalidations")
        assert confirmed_since(fleet, since_ns) == purges.count


def test_a_sidecar_misses_more_than_the_log_keeps(fleet: Fleet) -> None:
    """What it missed has become floors and tombstones by then: it hides what these name before anybody gets a page."""
    stopped = fleet.sidecars[0]
    fleet.purge(Purge(tenant=1), via=0)
    stopped.pause()
    fleet.purge(Purge(tenant=0), via=1)
    flood(fleet, LOG_RECORDS_KEPT_MAX)
    done = fleet.purge(Purge(tenant=1, chain=1), via=1)
    assert done.is_confirmed, done
    stopped.signal(signal.SIGCONT)
    heal(fleet, "a sidecar fell behind the log")


def flood(fleet: Fleet, records: int) -> None:
    """Append so many records that name nothing there is; none of those before is kept then."""

    async def append_all() -> None:
        logs = Logs()
        log = logs.open(fleet.primary, fleet="default")
        last = (await append(log, entry(Selector(model="nobody's")))).stamp.revision
        for number in range(records):
            await append(log, entry(Selector(model="nobody's", tag=str(number).encode())))
        _, kept = await log.read(0, count=1, deadline_ns=within())
        assert kept[0].revision > last
        await logs.close()

    asyncio.run(append_all())


def test_the_replica_is_lost_and_k_is_lowered(fleet: Fleet) -> None:
    wait_s(0.2)
    lost_ns = _CLOCK.now_ns()
    fleet.replica.kill()
    done = fleet.purge(Purge(tenant=0), timeout_s=0.8, by_command=True)
    assert (done.exit_code, done.reason) == (UNCONFIRMED, "replication")
    wait_s(max(0.0, DARK_S - (_CLOCK.now_ns() - lost_ns) / 1e9))
    fleet.is_dark(lost_ns, _CLOCK.now_ns())
    runtime = str(fleet.sidecars[0].runtime)
    lowered = run_command("replicas", "set", "0", "--runtime-dir", runtime)
    assert lowered.returncode == 0, lowered.stderr
    heal(fleet, "k was lowered")
    fleet.replica.start()
    fleet.replica.follow(fleet.primary)
    assert run_command("replicas", "set", "1", "--runtime-dir", runtime).returncode == 0
    heal(fleet, "the replica is back")


def test_a_sidecar_is_stopped_and_goes_on(fleet: Fleet) -> None:
    stopped = fleet.sidecars[2]
    with purging(fleet, sidecars=(0, 1)):
        wait_s(0.3)
        stopped.pause()
        stopped_ns = _CLOCK.now_ns()
        named = fleet.purge(Purge(tenant=0), timeout_s=0.3)
        assert (named.exit_code, named.reason, list(named.missing)) == (UNCONFIRMED, "members", [stopped.pid])
        done = fleet.purge(Purge(tenant=1))
        assert done.is_confirmed, done
        assert list(done.gone) == [stopped.pid]
        wait_s(max(0.0, DARK_S - (_CLOCK.now_ns() - stopped_ns) / 1e9))
        fleet.is_dark(stopped_ns, _CLOCK.now_ns(), sidecars=[2])
        stopped.signal(signal.SIGCONT)
        heal(fleet, "a sidecar was stopped")


def test_a_sidecar_is_killed_and_started_again(fleet: Fleet) -> None:
    killed = fleet.sidecars[1]
    old_pid = killed.pid
    with purging(fleet, sidecars=(0, 2)):
        wait_s(0.3)
        killed.kill()
        done = fleet.purge(Purge(tenant=1))
        assert done.is_confirmed, done
        assert old_pid in done.gone
        killed.start()
        heal(fleet, "a sidecar was killed", sidecars=(1,))


def test_workers_are_killed_and_stopped(fleet: Fleet) -> None:
    with purging(fleet):
        for worker in fleet.workers[:3]:
            worker.kill()
            worker.start()
        stopped = fleet.workers[5]
        with one_stopped(fleet, stopped):
            done = fleet.purge(Purge(tenant=0))
        assert done.is_confirmed, "workers without an index of their own are not waited for"
        heal(fleet, "workers were killed")


@pytest.mark.timeout(120 + SOAK_S)
def test_faults_at_random(fleet: Fleet) -> None:
    """STRATAKV_SOAK_S says for how long; the seed of a run is printed, and STRATAKV_SOAK_SEED takes it up again."""
    seed = int(os.environ.get("STRATAKV_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"STRATAKV_SOAK_SEED={seed}")
    draw = random.Random(seed)
    begun_ns = _CLOCK.now_ns()
    end_ns = begun_ns + int(SOAK_S * 1e9)
    with purging(fleet, timeout_s=2.0, seed=seed) as purges:
        while _CLOCK.now_ns() < end_ns:
            of_log, of_nodes = draw.choice(FAULTS_OF_LOG), draw.choice(FAULTS_OF_NODES)
            first, *others = draw.choice(((of_log,), (of_nodes,), (of_log, of_nodes), (of_nodes, of_log)))
            with first(fleet):
                wait_s(draw.random() * LEASE_S)
                for other in others:
                    with other(fleet):
                        wait_s(draw.random() * 1.5 * LEASE_S)
            if draw.random() < 0.5:
                heal(fleet, " and ".join(fault.__name__ for fault in (first, *others)))
        heal(fleet, "the last fault")
    confirmed = confirmed_since(fleet, begun_ns)
    print(
        f"{confirmed} of {purges.count + 1} invalidations were confirmed; {len(fleet.look_ups())} look-ups are judged"
    )
    assert confirmed > 1


def test_a_replica_is_promoted_while_the_old_primary_lives_on(fleet: Fleet) -> None:
    """Sidecar 2 knows the old primary alone; the others turn to the new one by themselves."""
    old, new = fleet.primary, fleet.replica
    fleet.sidecars[2].kill()
    fleet.start_sidecar(2, old.url, replicas=1)
    heal(fleet, "a sidecar knows one server alone")
    with purging(fleet, sidecars=(0, 1)):
        wait_s(0.3)
        new.promote()
        promoted_ns = _CLOCK.now_ns()
        fleet.primary, fleet.replica = new, fleet.servers.start_replica(new)
        heal(fleet, "a failover", sidecars=(0, 1))
        named = fleet.purge(Purge(tenant=0), via=2, timeout_s=0.6)
        assert (named.exit_code, named.reason) == (UNCONFIRMED, "replication"), named
        wait_s(max(0.0, DARK_S - (_CLOCK.now_ns() - promoted_ns) / 1e9))
        fleet.is_dark(promoted_ns, _CLOCK.now_ns(), sidecars=[2])
        assert old.info("replication")["role"] == "master", "the old primary lives on"
        fleet.sidecars[2].kill()
        fleet.start_sidecar(2, new.url, replicas=1)
        heal(fleet, "it was told of the new primary")
    old.kill()
