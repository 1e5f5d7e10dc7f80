"""What is asked before a look-up: prefetches at a request's arrival, and how much a tensor-parallel group has in common."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

import inference_worker.loading
from inference_worker.client import RegisteredNamespace
from kv_types.errors import ClosedError, InvalidArgumentError, LimitExceededError
from kv_types.ids import KEY_BYTES
from kv_types.limits import LOAD_ROWS_MAX
from kv_types.namespace import Namespace, Uncacheable, UncacheableReason
from kv_types.outcomes import Hit, Miss, MissReason, Tier
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.looking import SPACE, Looking
from tests.inference_worker.worlds import chain, namespace, pages_under
from tests.support.memory_records import Held, Verb
from tests.support.polling import wait_until
from tests.support.timing import timed


@contextmanager
def held(looking: Looking, verb: Verb = "probe") -> Iterator[Held]:
    """Let nothing come from L3 within the block; look-ups don't ask it."""
    hold = looking.site.hold(verb)
    try:
        yield hold
    finally:
        looking.site.release(hold)


# --- prefetches ---


def test_a_prefetch_brings_pages_that_a_look_up_then_finds(looking: Looking) -> None:
    keys = chain(SPACE, 6)
    looking.store(keys[: 2 * KEY_BYTES])
    looking.shelve(keys)
    prefetch = looking.client.prefetch(looking.ns, keys)
    assert prefetch is not None
    wait_until(lambda: prefetch.is_over, what="the prefetch's end")
    asked = looking.site.asked("probe")
    assert looking.look("lease", keys) == (6, 0, MissReason.NONE)
    assert looking.site.asked("probe") == asked == 4
    counted = looking.client.statistics()
    assert (counted["prefetches_sent"], counted["prefetches_failed"], counted["prefetches_in_flight"]) == (
        1,
        0,
        0,
    )
    assert counted["loads"] == counted["l3_pages"] == 0, "nobody waited"
    assert looking.client.prefetch(looking.ns, keys) is None


def test_a_look_up_shares_the_load_of_a_prefetch(looking: Looking) -> None:
    keys = chain(SPACE, 6)
    looking.shelve(keys)
    with ThreadPoolExecutor(1) as pool:
        with held(looking):
            prefetch = looking.client.prefetch(looking.ns, keys, deadline_s=60.0)
            assert prefetch is not None
            assert looking.look("lease", keys, deadline_s=0.0) == (0, 0, MissReason.ABSENT)
            looks = pool.submit(looking.look, "lease", keys)
            asked = looking.site.loader.statistics
            wait_until(lambda: looking.site.call(lambda _: asked()["asked"] == 2), what="the look-up to wait")
        assert looks.result(10) == (0, 6, MissReason.NONE)
    assert looking.site.asked("load") == 6
    assert prefetch.is_over


def test_prefetches_are_bounded_and_end_when_they_are_called_off(looking: Looking) -> None:
    client, ns = looking.client, looking.ns
    keys = [chain(SPACE, 4, seed=seed) for seed in range(9)]
    for one in keys:
        looking.shelve(one)
    with ExitStack() as all_held:
        for _ in keys:
            all_held.enter_context(held(looking))
        prefetches = [client.prefetch(ns, one, deadline_s=60.0) for one in keys]
        assert [one is not None for one in prefetches] == [True] * 8 + [False]
        assert client.statistics()["prefetches_in_flight"] == 8
        assert client.statistics()["prefetches_dropped"] == 1
        for prefetch in prefetches:
            if prefetch is not None:
                prefetch.cancel()
                prefetch.cancel()
        wait_until(lambda: client.statistics()["prefetches_in_flight"] == 0, what="the prefetches to end")
        assert client.prefetch(ns, keys[8]) is not None
    assert client.statistics()["prefetches_failed"] == 0


def test_a_prefetch_waits_for_nobody(looking: Looking) -> None:
    """Not even for a sidecar that hangs."""
    keys = chain(SPACE, 4)
    looking.shelve(keys)
    with held(looking):
        prefetch = timed(lambda: looking.client.prefetch(looking.ns, keys), deadline_s=0.0)
        assert prefetch is not None
        looking.client.close()
        assert prefetch.is_over
    prefetch.cancel()
    with pytest.raises(ClosedError):
        looking.client.prefetch(looking.ns, keys)


# --- shards ---


class Group:
    """Shards of one model, and the chain of one prompt in each."""

    def __init__(self, looking: Looking, shards: int, pages: int) -> None:
        self.looking = looking
        self.spaces: list[Namespace] = [namespace(f"shard{number}") for number in range(shards)]
        self.handles: list[RegisteredNamespace] = [looking.client.register(space) for space in self.spaces]
        self.keys = [chain(space, pages) for space in self.spaces]
        for handle in self.handles:
            looking.client.begin(handle).end()

    def store(self, *pages: int) -> None:
        for handle, keys, count in zip(self.handles, self.keys, pages, strict=True):
            with self.looking.client.begin(handle) as request:
                request.put(
                    keys[: count * KEY_BYTES], pages_under(keys[: count * KEY_BYTES], handle.page_bytes)
                )

    def shelve(self, *pages: int) -> None:
        for space, handle, keys, count in zip(self.spaces, self.handles, self.keys, pages, strict=True):
            self.looking.site.shelve(space, keys[: count * KEY_BYTES], pages_under(keys, handle.page_bytes))

    def match(self, deadline_s: float | None = None) -> object:
        shards = list(zip(self.handles, self.keys, strict=True))
        return self.looking.client.match_shards(shards, deadline_s=deadline_s)

    def resident(self) -> list[int]:
        outcomes = [
            self.looking.client.match(handle, keys)
            for handle, keys in zip(self.handles, self.keys, strict=True)
        ]
        return [one.pages if isinstance(one, Hit) else 0 for one in outcomes]


def test_a_group_has_what_all_its_shards_have_and_no_more_is_brought(looking: Looking) -> None:
    group = Group(looking, 3, 8)
    group.store(2, 5, 3)
    group.shelve(8, 8, 6)
    assert group.match(deadline_s=0.0) == Hit(2, Tier.L2, MissReason.ABSENT)
    assert looking.site.asked("probe") == 0
    assert group.match() == Hit(6, Tier.L3, MissReason.ABSENT, 4)
    assert group.resident() == [6, 6, 6]
    asked = looking.site.asked("load")
    assert group.match() == Hit(6, Tier.L2, MissReason.ABSENT)
    assert looking.site.asked("load") == asked
    assert looking.client.statistics()["look_ups"] == 0, "a question is no look-up"


def test_what_all_shards_have_asks_nobody(looking: Looking) -> None:
    group = Group(looking, 2, 4)
    group.store(4, 4)
    assert group.match() == Hit(4, Tier.L2)
    assert looking.site.asked("probe") == 0


def test_one_shard_that_has_nothing_brings_nothing_for_the_others(looking: Looking) -> None:
    group = Group(looking, 3, 4)
    group.shelve(4, 0, 4)
    assert group.match() == Miss(MissReason.ABSENT)
    assert group.resident() == [0, 0, 0]
    assert looking.site.asked("load") == 0


def test_a_long_chain_of_a_group_is_asked_for_in_several_messages(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference_worker.loading, "LOAD_KEYS_MAX", 6)
    group = Group(looking, 2, 10)
    group.shelve(10, 8)
    assert group.match() == Hit(8, Tier.L3, MissReason.ABSENT, 8)
    assert group.resident() == [8, 8]


def test_a_group_waits_no_longer_than_its_deadline(looking: Looking) -> None:
    group = Group(looking, 2, 4)
    group.store(1, 1)
    group.shelve(4, 4)
    with held(looking):
        outcome = timed(lambda: group.match(deadline_s=0.1), deadline_s=0.1)
    assert outcome == Hit(1, Tier.L2, MissReason.DEADLINE)


def test_a_group_is_checked(looking: Looking, connect: MakeClient) -> None:
    client, ns = looking.client, looking.ns
    keys = chain(SPACE, 2)
    off = client.register(Uncacheable(UncacheableReason.INVALID, "no"))
    assert client.match_shards([(ns, keys), (off, keys)]) == Miss(MissReason.UNCACHEABLE)
    with pytest.raises(InvalidArgumentError, match="one shard"):
        client.match_shards([])
    with pytest.raises(InvalidArgumentError, match="one length"):
        client.match_shards([(ns, keys), (ns, keys[:KEY_BYTES])])
    with pytest.raises(LimitExceededError):
        client.match_shards([(ns, keys)] * (LOAD_ROWS_MAX + 1))
    nobody = connect("127.0.0.1:9", deadline_s=1.0)
    assert nobody.match_shards([(nobody.register(SPACE), keys)]) == Miss(MissReason.UNREACHABLE)
    with pytest.raises(InvalidArgumentError, match="another client"):
        nobody.match_shards([(ns, keys)])
