"""Pages that vanish, room that runs out, leases that end: what a client sees of a store with limits."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from inference_worker.client import Client, RegisteredNamespace
from kv_types.limits import REQUESTS_IN_FLIGHT_PER_CLIENT_MAX
from kv_types.outcomes import Hit, Miss, MissReason, Refused, RefuseReason, Stored, Tier
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import (
    all_stored,
    chain,
    keys_of,
    namespace,
    page_under,
    pages_under,
    room_for,
)
from tests.support.daemon import ROOT, read_status
from tests.support.polling import wait_until
from tests.support.puts import put_fresh
from tests.support.sidecar_process import SidecarProcess, sidecar_process

MIB = 2**20


@pytest.fixture(scope="module")
def tight_sidecar() -> Iterator[SidecarProcess]:
    """A daemon with room for a dozen pages of 1 MiB."""
    with sidecar_process(arena_bytes=16 * MIB, flags=("--segment-size", str(MIB))) as started:
        yield started


@pytest.fixture(params=["shared_memory", "grpc"])
def client(request: pytest.FixtureRequest, tight_sidecar: SidecarProcess, connect: MakeClient) -> Client:
    """A client of each transport."""
    return connect(tight_sidecar.runtime, shared_memory=request.param == "shared_memory", deadline_s=10.0)


@pytest.fixture
def ns(client: Client, request: pytest.FixtureRequest) -> RegisteredNamespace:
    """A namespace of the test's own with pages of 1 MiB."""
    handle = client.register(namespace(request.node.name, layers=256, head_dim=256))
    assert handle.page_bytes == MIB
    return handle


def put(client: Client, ns: RegisteredNamespace, keys: bytes, **terms: object) -> list[object]:
    return list(put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes), **terms))  # type: ignore[arg-type]


def test_c06_pages_removed_between_look_up_and_get_end_the_hit(
    client: Client, ns: RegisteredNamespace
) -> None:
    keys = chain(ns.identified, 5)
    assert all_stored(put(client, ns, keys[: 2 * 32]))
    assert all_stored(put_fresh(client, ns, keys, pages_under(keys, MIB)[2:], start=2, ttl_s=1))
    assert client.match(ns, keys) == Hit(5, Tier.L2), "a look-up promises nothing"
    wait_until(lambda: client.match(ns, keys) != Hit(5, Tier.L2), what="the tail's expiry")
    room = room_for(keys, ns.page_bytes)
    outcome = client.get(ns, keys, room)
    assert isinstance(outcome, Hit)
    assert outcome.pages == 2, "the first missing page is the third"
    assert outcome.ended_by in (MissReason.EXPIRED, MissReason.ABSENT)
    assert [bytes(page) for page in room[:2]] == pages_under(keys, MIB)[:2]
    assert client.lease(ns, keys).pages == 2
    assert all_stored(put_fresh(client, ns, keys, pages_under(keys, MIB)[2:], start=2)), (
        "it can be stored again at once"
    )


def test_c32_a_store_full_of_leases_says_so_and_keeps_the_head_of_what_it_took(
    tight_sidecar: SidecarProcess, connect: MakeClient, client: Client, ns: RegisteredNamespace
) -> None:
    holder = connect(tight_sidecar.runtime)
    held = holder.register(ns.identified)
    keys = chain(ns.identified, 8)
    assert all_stored(put(client, ns, keys))
    with holder.lease(held, keys) as lease:
        assert lease.pages == 8
        others = chain(ns.identified, 20, seed=1)
        outcomes = put(client, ns, others)
        stored = sum(isinstance(one, Stored) for one in outcomes)
        assert 0 < stored < 20
        assert outcomes[stored:] == [Refused(RefuseReason.FULL)] * (20 - stored)
        assert client.match(ns, others) == Hit(stored, Tier.L2, MissReason.ABSENT)
        assert [bytes(view) for view in lease] == pages_under(keys, MIB), "what is leased stays"
    assert all_stored(put(client, ns, chain(ns.identified, 6, seed=2))), "room comes back with the release"


def test_c11_releases_never_free_what_somebody_else_leases(
    tight_sidecar: SidecarProcess, connect: MakeClient
) -> None:
    one, two = connect(tight_sidecar.runtime), connect(tight_sidecar.runtime)
    mine, theirs = (client.register(namespace("both", layers=256, head_dim=256)) for client in (one, two))
    keys = chain(mine.identified, 4)
    assert all_stored(put(one, mine, keys))
    lease, other = one.lease(mine, keys), two.lease(theirs, keys)
    for _ in range(3):
        lease.release()
    assert (one.statistics()["leases_held"], two.statistics()["leases_held"]) == (0, 1)
    for seed in range(1, 6):
        put(one, mine, chain(mine.identified, 12, seed=seed))
    assert [bytes(view) for view in other] == pages_under(keys, MIB)
    other.release()


def test_c11_a_release_after_the_pages_time_frees_nothing_early_and_counts_once(
    tight_sidecar: SidecarProcess, connect: MakeClient
) -> None:
    one, two = connect(tight_sidecar.runtime), connect(tight_sidecar.runtime)
    mine, theirs = (client.register(namespace("expires", layers=256, head_dim=256)) for client in (one, two))
    keys = chain(mine.identified, 3)
    assert all_stored(put(one, mine, keys, ttl_s=1))
    lease, other = one.lease(mine, keys), two.lease(theirs, keys)
    assert (lease.pages, other.pages) == (3, 3)
    wait_until(
        lambda: one.match(mine, keys) == Miss(MissReason.ABSENT), what="the pages to be gone, not only over"
    )
    for _ in range(3):
        lease.release()
    for seed in range(1, 6):
        put(one, mine, chain(mine.identified, 12, seed=seed))
    assert [bytes(view) for view in other] == pages_under(keys, MIB), "the other lease is not over"
    other.release()
    assert (one.statistics()["leases_held"], two.statistics()["leases_held"]) == (0, 0)

    def holds_nothing() -> bool:
        arena = read_status(tight_sidecar.runtime)["arena"]
        return not any(int(arena[name]) for name in ("leases", "leased_bytes", "entries_hidden_leased"))

    wait_until(holds_nothing, what="the pages that nobody leases any more to be freed")
    assert all_stored(put(one, mine, chain(mine.identified, 12, seed=9))), "all room is there again"


def test_an_array_on_a_lease_keeps_its_page_after_the_release(
    tight_sidecar: SidecarProcess, connect: MakeClient
) -> None:
    import numpy as np

    client = connect(tight_sidecar.runtime)
    ns = client.register(namespace("array", layers=256, head_dim=256))
    keys = chain(ns.identified, 2)
    assert all_stored(put(client, ns, keys))
    with client.lease(ns, keys) as lease:
        array = np.frombuffer(lease[1], np.uint8)
    assert client.statistics()["leases_held"] == 1
    for seed in range(1, 6):
        put(client, ns, chain(ns.identified, 12, seed=seed))
    assert array.tobytes() == page_under(keys_of(keys)[1], MIB)
    del array
    wait_until(lambda: client.statistics()["leases_held"] == 0, what="the view's end")


def test_c10_look_ups_of_a_killed_worker_hold_nothing(
    tight_sidecar: SidecarProcess, connect: MakeClient
) -> None:
    client = connect(tight_sidecar.runtime)
    ns = client.register(namespace("killed", layers=256, head_dim=256))
    keys = chain(ns.identified, 8)
    assert all_stored(put(client, ns, keys))
    script = (
        "import os, signal, sys; from inference_worker.client import Client\n"
        "from tests.inference_worker.worlds import *\n"
        "client = Client.connect(sys.argv[1]); ns = client.register(namespace('killed', layers=256, head_dim=256))\n"
        "keys = chain(ns.identified, 8)\n"
        "leases = [client.lease(ns, keys[:32]) for _ in range(10_000)]; assert leases[-1].pages == 1\n"
        "leases += [client.lease(ns, keys) for _ in range(100)]; assert leases[-1].pages == 8\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tight_sidecar.runtime)], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == -9, done.stderr

    def leased() -> int:
        return int(read_status(tight_sidecar.runtime)["arena"]["leased_bytes"])

    wait_until(lambda: leased() == 0, what="leased bytes to return to 0")
    fresh = chain(ns.identified, 12, seed=1)
    wait_until(
        lambda: all(not isinstance(one, Refused) for one in put(client, ns, fresh)),
        what="room for 12 pages, which takes that of the dead worker's leases",
    )


def test_more_requests_than_have_places_store_nothing_and_say_why(
    tight_sidecar: SidecarProcess, connect: MakeClient
) -> None:
    client = connect(tight_sidecar.runtime)
    ns = client.register(namespace("many requests"))
    keys = chain(ns.identified, 2)
    requests = [client.begin(ns) for _ in range(REQUESTS_IN_FLIGHT_PER_CLIENT_MAX)]
    assert all(one.stamp is not None for one in requests)
    with client.begin(ns) as too_many:
        assert (too_many.stamp, too_many.refused) == (None, RefuseReason.QUOTA)
        quota = [Refused(RefuseReason.QUOTA)] * 2
        assert too_many.put(keys, pages_under(keys, ns.page_bytes)) == quota
        assert too_many.match(keys) == Miss(MissReason.ABSENT)
    requests[0].end()
    del requests[1:]
    gc.collect()
    again = [client.begin(ns) for _ in range(REQUESTS_IN_FLIGHT_PER_CLIENT_MAX)]
    assert all(one.stamp is not None for one in again), "ended and forgotten requests give their places back"
    with again[0] as request:
        assert all_stored(request.put(keys, pages_under(keys, ns.page_bytes)))


def test_a_put_without_time_is_refused_and_leaves_no_reservation(
    client: Client, ns: RegisteredNamespace
) -> None:
    keys = chain(ns.identified, 4)
    assert put(client, ns, keys, deadline_s=0.0) == [Refused(RefuseReason.DEADLINE)] * 4
    wait_until(lambda: all_stored(put(client, ns, keys)), what="the same put with time")
