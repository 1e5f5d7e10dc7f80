"""Cases that happened to users of such systems, on real sidecars with a shared log, through the command line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kv_types.clock import BoottimeClock
from kv_types.namespace import Namespace, Weights
from kv_types.outcomes import MissReason, Refused, RefuseReason, Stored
from tests.fleet.fleet import LEASE_S, WINDOW_S, Fleet, Load, fleet_of
from tests.fleet.invalidating import UNCONFIRMED, UNREACHABLE
from tests.fleet.station import Station
from tests.support.daemon import run_command
from tests.support.pages import namespace_of
from tests.support.polling import wait_until
from tests.support.puts import put_fresh

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

PROMPT = list(range(16 * 6))
_CLOCK = BoottimeClock()


@pytest.fixture(scope="module")
def fleet_of_module() -> Iterator[Fleet]:
    """Three sidecars, one worker each that keeps looking up and storing."""
    with fleet_of(workers=1, load=Load(per_s=40.0)) as fleet:
        yield fleet


@contextlib.contextmanager
def stations(
    fleet: Fleet, space: Namespace, *, names: Sequence[str] = ("a", "b", "c")
) -> Iterator[list[Station]]:
    """One on each node."""
    with contextlib.ExitStack() as held:
        yield [
            held.enter_context(Station(sidecar.runtime, space, name=name))
            for sidecar, name in zip(fleet.sidecars, names, strict=True)
        ]


def command(fleet: Fleet, *arguments: str, via: int = 0) -> tuple[int, dict[str, Any]]:
    """Run an administrative verb on one node; its exit code, and what it printed as JSON."""
    done = run_command(
        *arguments, "--json", "--runtime-dir", str(fleet.sidecars[via].runtime), timeout_s=60.0
    )
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    return done.returncode, told if isinstance(told, dict) else {"listed": told}


def invalidate(fleet: Fleet, *arguments: str, via: int = 0) -> dict[str, Any]:
    """Invalidate and wait; it must be confirmed."""
    code, told = command(fleet, "invalidate", *arguments, "--wait", "--yes", via=via)
    assert code == 0, told
    return told


def arena_of(fleet: Fleet, node: int) -> dict[str, int]:
    """The arena's statistics of one node."""
    arena: dict[str, int] = command(fleet, "status", via=node)[1]["arena"]
    return arena


def all_stored(outcomes: Sequence[object]) -> bool:
    return bool(outcomes) and all(isinstance(one, Stored) for one in outcomes)


def test_c15_weights_changed_under_load_miss_on_every_node_and_tier(fleet: Fleet) -> None:
    space = namespace_of("c15")
    assert space.weights == Weights(version="1")
    with stations(fleet, space) as old, stations(fleet, replace(space, weights=Weights(version="2"))) as new:
        chain = old[0].chain(PROMPT)
        for station in old:
            assert all_stored(station.compute(chain))
            assert station.served(chain) == (6, 6)
        code, told = command(fleet, "weights", "set-version", "2", "--model", "c15", "--from", "1", via=1)
        assert (code, told["confirmed"]) == (0, True)
        assert [station.served(chain) for station in old] == [(0, 0)] * 3, "the very first look-ups"
        for station in new:
            fresh = station.chain(PROMPT)
            assert station.served(fresh) == (0, 0), "what was computed under the old weights has other keys"
            assert all_stored(station.compute(fresh))
            assert station.served(fresh) == (6, 6)
        for sidecar in fleet.sidecars:
            status = json.loads(run_command("status", "--json", "--endpoint", str(sidecar.runtime)).stdout)
            assert status["weights_versions"] == {"c15": "2"}


def test_c16_a_computation_that_spans_the_invalidation_is_never_visible(fleet: Fleet) -> None:
    with stations(fleet, namespace_of("c16")) as all_stations:
        chain = all_stations[0].chain(PROMPT)
        under_way = [station.begin() for station in all_stations]
        invalidate(fleet, "--model", "c16", via=2)
        for station, computation in zip(all_stations, under_way, strict=True):
            outcomes, kept = computation.store(chain)
            assert outcomes == [Refused(RefuseReason.INVALIDATED)] * 6
            assert kept == 0
            assert station.served(chain) == (0, 0)
        for station in all_stations:
            assert all_stored(station.compute(chain)), "begun afterwards, the same is stored at once"
            assert station.served(chain) == (6, 6)


def test_c34_a_stopped_then_killed_sidecar_keeps_nobody_waiting(fleet: Fleet) -> None:
    sidecar = fleet.sidecars[2]
    with Station(sidecar.runtime, namespace_of("c34")) as station:
        chain = station.chain(PROMPT)
        station.compute(chain)
        sidecar.pause()
        stopped_ns = _CLOCK.now_ns()
        wait_until(lambda: station.from_l2(chain) == (0, MissReason.STALE), timeout_s=LEASE_S + 2.0)
        assert station.from_l1(chain) == 0
        assert _CLOCK.now_ns() - stopped_ns < (LEASE_S + 1.0) * 1e9
        began_ns = _CLOCK.now_ns()
        put_fresh(
            station.client,
            station.namespace,
            station.chain([1] * 16),
            [bytes(station.page_bytes)],
            deadline_s=0.3,
        )
        assert _CLOCK.now_ns() - began_ns < 0.5e9, "a call waits no longer than its deadline"
        sidecar.kill()
        sidecar.start()
        assert station.client.wait_ready(deadline_s=10.0), "it comes back by itself"
        assert station.served(chain) == (0, 0)
        wait_until(lambda: all_stored(station.compute(chain)), timeout_s=10.0, what="stored pages")
        assert station.served(chain) == (6, 6)


def test_c34_a_stopped_log_keeps_nobody_waiting(fleet: Fleet) -> None:
    with Station(fleet.sidecars[0].runtime, namespace_of("c34-log")) as station:
        chain = station.chain(PROMPT)
        station.compute(chain)
        fleet.primary.freeze()
        try:
            slowest_ns = 0
            frozen_ns = _CLOCK.now_ns()
            while station.from_l2(chain) != (0, MissReason.STALE):
                began_ns = _CLOCK.now_ns()
                station.served(chain)
                slowest_ns = max(slowest_ns, _CLOCK.now_ns() - began_ns)
                assert _CLOCK.now_ns() - frozen_ns < (LEASE_S + 1.0) * 1e9
            assert slowest_ns < 100e6, "no look-up waits for the log"
            refused = run_command(
                "invalidate", "--model", "c34-log", "--timeout", "500ms", "--yes",
                "--runtime-dir", str(fleet.sidecars[0].runtime),
            )  # fmt: skip
            assert refused.returncode == UNREACHABLE
            assert "nothing was appended" in refused.stderr
        finally:
            fleet.primary.thaw()
        wait_until(
            lambda: station.served(chain) == (6, 6), timeout_s=5.0, what="hits on what was never invalidated"
        )


def test_c36_leased_pages_are_hidden_at_once_and_freed_at_the_last_release(fleet: Fleet) -> None:
    space = namespace_of("c36")
    with stations(fleet, space) as all_stations:
        holder, other, _ = all_stations
        chain = holder.chain(PROMPT)
        holder.compute(chain)
        lease = holder.client.lease(holder.namespace, chain)
        assert lease.pages == 6
        told = invalidate(fleet, "--model", "c36", via=1)
        assert holder.served(chain) == (0, 0), "hidden at once"
        assert [bytes(page) for page in lease] == holder.pages(chain), "who reads goes on reading"
        command(
            fleet, "members", "--forget-gone"
        )  # lives that earlier tests killed: they can't say that they have drained
        again = ("--request-id", told["request_id"])
        code, missing = command(
            fleet, "invalidate", "--model", "c36", "--wait=drained", "--timeout", "1s", "--yes", *again, via=1
        )
        assert (code, missing["reason"], missing["missing_count"]) == (UNCONFIRMED, "members", 1)
        assert missing["missing"][0]["note"]["pid"] == fleet.sidecars[0].pid
        assert all_stored(holder.compute(chain)), "created anew while somebody reads the old ones"
        held = arena_of(fleet, 0)
        assert held["leased_bytes"] == 6 * holder.page_bytes
        lease.release()
        code, told = command(fleet, "invalidate", "--model", "c36", "--wait=drained", "--yes", *again, via=1)
        assert (code, told["confirmed"]) == (0, True)
        assert (arena_of(fleet, 0)["leased_bytes"], arena_of(fleet, 0)["oldest_hidden_view"]) == (0, 0)
        assert holder.served(chain) == (6, 6)
        assert other.served(chain) == (0, 0)


def test_c37_one_tenant_never_gets_or_loses_anothers_pages(fleet: Fleet) -> None:
    with (
        stations(fleet, namespace_of("c37", tenant="a")) as first,
        stations(fleet, namespace_of("c37", tenant="b")) as second,
    ):
        chain_a, chain_b = first[0].chain(PROMPT), second[0].chain(PROMPT)
        assert chain_a != chain_b, "the same tokens"
        for station in first:
            station.compute(chain_a)
        assert [station.served(chain_b) for station in second] == [(0, 0)] * 3
        for station in second:
            station.compute(chain_b)
        invalidate(fleet, "--tenant", "a")
        assert [station.served(chain_a) for station in first] == [(0, 0)] * 3
        assert [station.served(chain_b) for station in second] == [(6, 6)] * 3


def test_c38_a_new_life_has_nothing_and_answers_for_nothing_of_the_old_one(fleet: Fleet) -> None:
    sidecar = fleet.sidecars[1]
    with Station(sidecar.runtime, namespace_of("c38")) as station:
        chain = station.chain(PROMPT)
        station.compute(chain)
        old_pid = sidecar.pid
        sidecar.kill()
        killed_ns = _CLOCK.now_ns()
        sidecar.start()
        done_by_new = command(fleet, "invalidate", "--model", "none", "--timeout", "300ms", "--yes")
        if _CLOCK.now_ns() - killed_ns < 0.9 * WINDOW_S * 1e9:
            code, told = done_by_new
            assert code == UNCONFIRMED, "the acknowledgements of the new life don't count for the old one"
            assert old_pid in [member["note"]["pid"] for member in told["missing"]]
        told = invalidate(fleet, "--model", "none")
        named = [member["note"]["pid"] for member in told["gone"]]
        assert old_pid in named
        assert sidecar.pid not in named
        listed = command(fleet, "members")[1]
        pids = {member["note"]["pid"]: member["gone"] for member in listed["members"]}
        assert pids[old_pid] is True
        assert pids[sidecar.pid] is False
        assert station.client.wait_ready(deadline_s=10.0)
        assert station.served(chain) == (0, 0), "its index says what it has: nothing"
        assert all_stored(station.compute(chain))
        assert station.served(chain) == (6, 6)


def test_c40_one_prefix_one_producer_one_tenant_and_nothing_else(fleet: Fleet, tmp_path: Path) -> None:
    branches = {name: [*PROMPT[:32], *[at] * 32] for at, name in enumerate(("left", "right"))}
    with (
        stations(fleet, namespace_of("c40")) as owners,
        stations(fleet, namespace_of("c40"), names=("d", "e", "f")) as others,
    ):
        chains = {name: owners[0].chain(tokens) for name, tokens in branches.items()}
        lone = owners[0].chain([9] * 32)
        for owner, other in zip(owners, others, strict=True):
            owner.compute(chains["left"])
            other.compute(chains["right"], tags=[b"right"])
            other.compute(lone)
        tokens = tmp_path / "prefix.json"
        tokens.write_text(json.dumps(branches["left"][:48]))
        selected = ("--prefix-tokens", str(tokens), "--model", "c40")
        counted = command(fleet, "invalidate", *selected, "--dry-run")[1]
        assert [tier["pages"] for tier in counted["tiers"]] == [2]
        invalidate(fleet, *selected)
        for owner, other in zip(owners, others, strict=True):
            assert owner.served(chains["left"]) == (2, 2), "what both branches stand on stays"
            assert other.served(chains["right"]) == (4, 4)
        invalidate(fleet, "--producer", "d", "--since", "10m ago")
        assert [other.from_l2(chains["right"])[0] for other in others] == [2, 4, 4]
        assert [other.from_l2(lone)[0] for other in others] == [0, 2, 2]
        invalidate(fleet, "--producer", "e", "--since", "2001-01-01", "--until", "2002-01-01")
        assert [other.from_l2(lone)[0] for other in others] == [0, 2, 2], "it was not computed then"
        invalidate(fleet, "--tag", "right", via=2)
        assert [other.from_l2(chains["right"])[0] for other in others] == [2, 2, 2]
        assert [other.from_l2(lone)[0] for other in others] == [0, 2, 2]
        for owner in owners:
            assert owner.from_l2(chains["left"])[0] == 2
