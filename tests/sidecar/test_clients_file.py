"""Garbage in the file that clients may write to: the sidecar lives on, and honest clients get right bytes or misses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from inference_worker.client import Client, ClientSettings, RegisteredNamespace
from kv_types.outcomes import Hit, LookUpOutcome, Miss, PutOutcome, Refused, Tier
from tests.inference_worker.worlds import all_stored, chain, namespace, pages_under, room_for
from tests.support.daemon import read_status
from tests.support.polling import wait_until
from tests.support.puts import put_fresh
from tests.support.scribbler import Scribbler
from tests.support.sidecar_process import SidecarProcess, sidecar_process

PAGES = 6
LAYERS = 32  # pages of 32 KiB
ROUNDS = 150
FLAGS = ("--no-l3", "--copy-kernel", "memcpy", "--metrics-port", "off", "--leases-per-client", "1024")


@pytest.fixture
def sidecar() -> Iterator[SidecarProcess]:
    with sidecar_process(arena_bytes=4 << 20, flags=FLAGS) as started:
        yield started


@contextmanager
def honest(sidecar: SidecarProcess) -> Iterator[tuple[Client, RegisteredNamespace]]:
    with Client.connect(sidecar.runtime, settings=ClientSettings(prefault=False, deadline_s=5.0)) as client:
        assert client.wait_ready(deadline_s=10.0)
        yield client, client.register(namespace("scribbled", layers=LAYERS))


def kind_of(outcome: PutOutcome | LookUpOutcome) -> str:
    match outcome:
        case Refused(reason=reason) | Miss(reason=reason):
            return f"{type(outcome).__name__} {reason.name}"
    return type(outcome).__name__


def put_and_get(client: Client, ns: RegisteredNamespace, *, seed: int) -> Iterator[str]:
    """Put a new chain, look it up; what is got must be right, byte for byte."""
    keys = chain(ns.identified, PAGES, seed=seed)
    yield from map(kind_of, put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes)))
    room = room_for(keys, ns.page_bytes)
    outcome = client.get(ns, keys, room)
    if isinstance(outcome, Hit):
        assert [bytes(one) for one in room[: outcome.pages]] == pages_under(keys, ns.page_bytes)[
            : outcome.pages
        ]
    yield kind_of(outcome)


def put_works(client: Client, ns: RegisteredNamespace) -> None:
    keys = chain(ns.identified, PAGES, seed=ROUNDS)
    assert all_stored(put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes)))
    room = room_for(keys, ns.page_bytes)
    assert client.get(ns, keys, room) == Hit(PAGES, Tier.L2)
    assert [bytes(one) for one in room] == pages_under(keys, ns.page_bytes)


def test_garbage_in_its_own_row_and_the_access_times_takes_nothing_from_an_honest_lease(
    sidecar: SidecarProcess,
) -> None:
    seen: Counter[str] = Counter()
    with honest(sidecar) as (client, ns):
        kept = chain(ns.identified, PAGES, seed=10_000)
        assert all_stored(put_fresh(client, ns, kept, pages_under(kept, ns.page_bytes)))
        with (
            client.lease(ns, kept) as lease,
            Scribbler(sidecar.runtime / "attach.sock", "own", seed=5) as scribbler,
        ):
            for seed in range(ROUNDS):
                seen.update(put_and_get(client, ns, seed=seed))
                assert [bytes(page) for page in lease] == pages_under(kept, ns.page_bytes)
            assert scribbler.is_running
            assert int(read_status(sidecar.runtime)["arena"]["evictions_capacity"]) > 0, "pages came and went"
            assert set(seen) <= {"Stored", "Hit", "Refused FULL", "Refused PARENT_ABSENT", "Miss ABSENT"}, (
                seen
            )
            assert seen["Hit"] > ROUNDS // 10, seen
        wait_until(lambda: _leases(sidecar) == 0, what="the scribbler's leases to be gone with it")
        put_works(client, ns)


def test_garbage_in_all_rows_neither_ends_the_sidecar_nor_keeps_it(sidecar: SidecarProcess) -> None:
    with (
        honest(sidecar) as (client, ns),
        Scribbler(sidecar.runtime / "attach.sock", "all", seed=6) as scribbler,
    ):
        for seed in range(ROUNDS):
            list(put_and_get(client, ns, seed=seed))
        assert scribbler.is_running
        assert read_status(sidecar.runtime)["serving"]
        # Others come and go meanwhile, and rows with garbage in them are ended and given anew.
        for _ in range(5):
            with honest(sidecar) as (other, theirs):
                list(put_and_get(other, theirs, seed=ROUNDS + 1))
    with honest(sidecar) as (client, ns):
        put_works(client, ns)
        # Rows that seemed to hold leases when their clients left last as long as this process.
        own, *orphaned, this = sorted(read_status(sidecar.runtime)["clients"], key=_order)
        assert {one["state"] for one in orphaned} <= {"orphaned"}
        assert (own["state"], this["state"]) == ("service", "attached")
        assert (int(this["leases"]), int(this["reservations"])) == (0, 0)


def _order(client: Mapping[str, Any]) -> int:
    return ["service", "orphaned", "attached"].index(client["state"])


def _leases(sidecar: SidecarProcess) -> int:
    return int(read_status(sidecar.runtime)["arena"]["leases"])
