"""PageStoreConformance: what every PageStore must do, as tests that a subclass runs on its own store.

    class TestMyStore(PageStoreConformance):
        @pytest.fixture
        def harness(self) -> Iterator[StoreHarness]: ...

Expectations come from the protocol and from `tests.conformance.harness`, never from the store under test.
"""

from __future__ import annotations

import itertools
import random

import pytest

from kv_types.errors import (
    BufferMismatchError,
    InvalidArgumentError,
    LimitExceededError,
    UnknownNamespaceError,
)
from kv_types.ids import NamespaceId, PageKey, Stamp, new_log_incarnation
from kv_types.limits import CHAIN_PAGES_MAX
from kv_types.outcomes import KNOWN, STORED, Hit, Miss, MissReason, Refused, RefuseReason
from tests.conformance.harness import (
    LARGE_PAGE_BYTES,
    SMALL_PAGE_BYTES,
    StoreHarness,
    chain,
    destinations,
    fresh_salt,
    namespace,
    payload,
    sources,
)
from tests.conformance.page_store_machine import run_page_store_machine


class PageStoreConformance:
    """The suite. Every test gets an empty store by the fixture `harness`."""

    machine_examples = 25
    machine_steps = 30

    @pytest.fixture
    def space(self, harness: StoreHarness) -> NamespaceId:
        return harness.register(namespace())

    # --- looking up ---

    def test_an_empty_store_misses(self, harness: StoreHarness, space: NamespaceId) -> None:
        keys = chain(space, 3, salt=fresh_salt())
        assert harness.store.look_up(space, keys) == Miss(MissReason.ABSENT)
        assert harness.store.get(space, keys, destinations(3)) == Miss(MissReason.ABSENT)

    def test_what_was_put_is_found_with_its_bytes(self, harness: StoreHarness, space: NamespaceId) -> None:
        keys = chain(space, 5, salt=fresh_salt())
        assert harness.store.put(space, keys, sources(keys), stamp=harness.store.stamp()) == [STORED] * 5
        assert _pages(harness.store.look_up(space, keys)) == 5
        assert _bytes_of(harness, space, keys) == [payload(key) for key in keys]

    @pytest.mark.parametrize("asked", [1, 3, 4, 5, 9])
    def test_the_longest_prefix_is_served(
        self, harness: StoreHarness, space: NamespaceId, asked: int
    ) -> None:
        keys = chain(space, 9, salt=fresh_salt())
        harness.store.put(space, keys[:4], sources(keys[:4]), stamp=harness.store.stamp())
        outcome = harness.store.look_up(space, keys[:asked])
        assert isinstance(outcome, Hit)
        assert outcome.pages == min(asked, 4)
        assert outcome.ended_by == (MissReason.NONE if asked <= 4 else MissReason.ABSENT)
        into = destinations(asked)
        assert harness.store.get(space, keys[:asked], into) == outcome
        found = [bytes(page) for page in into[: outcome.pages]]
        assert found == [payload(key) for key in keys[: outcome.pages]]

    def test_a_fork_of_a_chain_is_served_up_to_the_fork(
        self, harness: StoreHarness, space: NamespaceId
    ) -> None:
        salt = fresh_salt()
        trunk = chain(space, 6, salt=salt)
        fork = chain(space, 6, salt=salt, branch=[0, 0, 0, 1])
        assert trunk[:3] == fork[:3]
        assert trunk[3] != fork[3]
        harness.store.put(space, trunk, sources(trunk), stamp=harness.store.stamp())
        assert _pages(harness.store.look_up(space, fork)) == 3
        assert (
            harness.store.put(space, fork, sources(fork)[3:], start=3, stamp=harness.store.stamp())
            == [STORED] * 3
        )
        assert _bytes_of(harness, space, fork) == [payload(key) for key in fork]
        assert _bytes_of(harness, space, trunk) == [payload(key) for key in trunk]

    def test_a_look_up_changes_nothing(self, harness: StoreHarness, space: NamespaceId) -> None:
        keys = chain(space, 4, salt=fresh_salt())
        harness.store.put(space, keys[:2], sources(keys[:2]), stamp=harness.store.stamp())
        outcomes = [harness.store.look_up(space, keys) for _ in range(3)]
        assert outcomes == [outcomes[0]] * 3
        assert _pages(outcomes[0]) == 2

    # --- putting ---

    def test_known_pages_keep_their_bytes(self, harness: StoreHarness, space: NamespaceId) -> None:
        keys = chain(space, 4, salt=fresh_salt())
        harness.store.put(space, keys[:2], sources(keys[:2]), stamp=harness.store.stamp())
        others = [memoryview(payload(key, version=1)) for key in keys]
        assert harness.store.put(space, keys, others, stamp=harness.store.stamp()) == [
            KNOWN,
            KNOWN,
            STORED,
            STORED,
        ]
        expected = [payload(key, version=int(index >= 2)) for index, key in enumerate(keys)]
        assert _bytes_of(harness, space, keys) == expected

    def test_a_put_in_parts_equals_one_put(self, harness: StoreHarness, space: NamespaceId) -> None:
        keys = chain(space, 12, salt=fresh_salt())
        for start in range(0, 12, 3):
            part = sources(keys[start : start + 3])
            assert (
                harness.store.put(space, keys[: start + 3], part, start=start, stamp=harness.store.stamp())
                == [STORED] * 3
            )
        assert _bytes_of(harness, space, keys) == [payload(key) for key in keys]

    def test_a_page_without_its_parent_is_refused(self, harness: StoreHarness, space: NamespaceId) -> None:
        keys = chain(space, 4, salt=fresh_salt())
        refused = Refused(RefuseReason.PARENT_ABSENT)
        assert harness.store.put(space, keys, sources(keys[2:]), start=2, stamp=harness.store.stamp()) == [
            refused,
            refused,
        ]
        assert harness.store.look_up(space, keys) == Miss(MissReason.ABSENT)
        harness.store.put(space, keys[:2], sources(keys[:2]), stamp=harness.store.stamp())
        assert harness.store.put(space, keys, sources(keys[2:]), start=2, stamp=harness.store.stamp()) == [
            STORED,
            STORED,
        ]

    def test_residents_are_closed_under_prefixes(self, harness: StoreHarness, space: NamespaceId) -> None:
        salt, draw = fresh_salt(), random.Random(20_240_607)
        branches = [list(turns) for turns in itertools.product((0, 1), repeat=3)]
        accepted: set[PageKey] = set()
        for _ in range(60):
            keys = chain(space, draw.randint(1, 5), salt=salt, branch=draw.choice(branches))
            start = draw.randint(0, len(keys) - 1)
            outcomes = harness.store.put(
                space, keys, sources(keys[start:]), start=start, stamp=harness.store.stamp()
            )
            for key, outcome in zip(keys[start:], outcomes, strict=True):
                assert (outcome == KNOWN) == (key in accepted), "known exactly what was accepted before"
                if outcome == STORED:
                    accepted.add(key)
            assert (outcomes[0] == Refused(RefuseReason.PARENT_ABSENT)) == (
                start > 0 and keys[start - 1] not in accepted
            )
        for branch in branches:
            keys = chain(space, 5, salt=salt, branch=branch)
            resident = [key in accepted for key in keys]
            assert resident == sorted(resident, reverse=True), "a page stands on a page that is not there"
            assert _pages(harness.store.look_up(space, keys)) == sum(resident)

    def test_the_stamp_is_a_position_that_a_put_may_name(
        self, harness: StoreHarness, space: NamespaceId
    ) -> None:
        stamp = harness.store.stamp()
        assert stamp is not None
        keys = chain(space, 2, salt=fresh_salt())
        assert harness.store.put(space, keys, sources(keys), stamp=stamp) == [STORED] * 2

    def test_a_stamp_of_another_log_or_of_the_future_is_refused(
        self, harness: StoreHarness, space: NamespaceId
    ) -> None:
        stamp = harness.store.stamp()
        assert stamp is not None
        keys = chain(space, 1, salt=fresh_salt())
        foreign = Refused(RefuseReason.STAMP_FOREIGN)
        for wrong in (
            Stamp(new_log_incarnation(), stamp.revision),
            Stamp(stamp.incarnation, stamp.revision + 1_000_000),
        ):
            assert harness.store.put(space, keys, sources(keys), stamp=wrong) == [foreign]
        assert harness.store.look_up(space, keys) == Miss(MissReason.ABSENT)

    # --- vanishing ---

    def test_c06_a_page_removed_between_look_up_and_get_ends_the_hit(
        self, harness: StoreHarness, space: NamespaceId
    ) -> None:
        if harness.hide is None:
            pytest.skip("nobody but the store itself can remove its pages")
        keys = chain(space, 6, salt=fresh_salt())
        harness.store.put(space, keys, sources(keys), stamp=harness.store.stamp())
        assert _pages(harness.store.look_up(space, keys)) == 6
        harness.hide(space, keys[3])
        into = destinations(6)
        outcome = harness.store.get(space, keys, into)
        assert isinstance(outcome, Hit)
        assert outcome.pages == 3
        assert outcome.ended_by in {MissReason.ABSENT, MissReason.INVALIDATED}
        assert [bytes(page) for page in into[:3]] == [payload(key) for key in keys[:3]]

    def test_what_was_hidden_can_be_stored_again(self, harness: StoreHarness, space: NamespaceId) -> None:
        if harness.hide is None:
            pytest.skip("nobody but the store itself can remove its pages")
        keys = chain(space, 3, salt=fresh_salt())
        harness.store.put(space, keys, sources(keys), stamp=harness.store.stamp())
        harness.hide(space, keys[0])
        assert isinstance(harness.store.look_up(space, keys), Miss)
        again = [memoryview(payload(key, version=2)) for key in keys]
        assert harness.store.put(space, keys, again, stamp=harness.store.stamp()) == [STORED] * 3
        assert _bytes_of(harness, space, keys) == [payload(key, version=2) for key in keys]

    # --- isolation ---

    def test_c37_tenants_never_meet(self, harness: StoreHarness) -> None:
        first = harness.register(namespace(tenant="a"))
        second = harness.register(namespace(tenant="b"))
        salt = fresh_salt()
        keys = chain(first, 3, salt=salt)
        harness.store.put(first, keys, sources(keys), stamp=harness.store.stamp())
        assert harness.store.look_up(second, chain(second, 3, salt=salt)) == Miss(MissReason.ABSENT)
        assert _pages(harness.store.look_up(first, keys)) == 3

    def test_namespaces_of_several_page_sizes_share_a_store(self, harness: StoreHarness) -> None:
        small, large = harness.register(namespace()), harness.register(namespace(large=True))
        small_keys = chain(small, 3, salt=fresh_salt())
        large_keys = chain(large, 3, salt=fresh_salt())
        harness.store.put(small, small_keys, sources(small_keys), stamp=harness.store.stamp())
        harness.store.put(
            large, large_keys, sources(large_keys, LARGE_PAGE_BYTES), stamp=harness.store.stamp()
        )
        assert _bytes_of(harness, small, small_keys) == [payload(key) for key in small_keys]
        found = _bytes_of(harness, large, large_keys, LARGE_PAGE_BYTES)
        assert found == [payload(key, LARGE_PAGE_BYTES) for key in large_keys]

    # --- bad input ---

    def test_an_unknown_namespace_is_an_error(self, harness: StoreHarness) -> None:
        unknown = namespace(model="never registered").id
        keys = chain(unknown, 1, salt=fresh_salt())
        for call in (
            lambda: harness.store.look_up(unknown, keys),
            lambda: harness.store.get(unknown, keys, destinations(1)),
            lambda: harness.store.put(unknown, keys, sources(keys), stamp=harness.store.stamp()),
        ):
            with pytest.raises(UnknownNamespaceError):
                call()

    def test_a_chain_longer_than_the_limit_is_an_error(
        self, harness: StoreHarness, space: NamespaceId
    ) -> None:
        keys = [PageKey(index.to_bytes(32, "big")) for index in range(CHAIN_PAGES_MAX + 1)]
        one = destinations(1)[0]
        for call in (
            lambda: harness.store.look_up(space, keys),
            lambda: harness.store.get(space, keys, [one] * len(keys)),
            lambda: harness.store.put(space, keys, [one] * len(keys), stamp=harness.store.stamp()),
        ):
            with pytest.raises(LimitExceededError):
                call()
        self._still_works(harness, space)

    @pytest.mark.parametrize("wrong_bytes", [0, 1, SMALL_PAGE_BYTES - 1, SMALL_PAGE_BYTES + 1])
    def test_a_source_of_the_wrong_size_stores_nothing(
        self, harness: StoreHarness, space: NamespaceId, wrong_bytes: int
    ) -> None:
        keys = chain(space, 4, salt=fresh_salt())
        offered = sources(keys)
        offered[2] = memoryview(bytes(wrong_bytes))
        with pytest.raises(BufferMismatchError):
            harness.store.put(space, keys, offered, stamp=harness.store.stamp())
        assert harness.store.look_up(space, keys) == Miss(MissReason.ABSENT)
        self._still_works(harness, space)

    @pytest.mark.parametrize("kind", ["short", "read-only", "strided"])
    def test_a_destination_that_cannot_hold_a_page_is_an_error(
        self, harness: StoreHarness, space: NamespaceId, kind: str
    ) -> None:
        keys = chain(space, 3, salt=fresh_salt())
        harness.store.put(space, keys, sources(keys), stamp=harness.store.stamp())
        into = destinations(3)
        into[1] = {
            "short": memoryview(bytearray(SMALL_PAGE_BYTES - 1)),
            "read-only": memoryview(bytes(SMALL_PAGE_BYTES)),
            "strided": memoryview(bytearray(2 * SMALL_PAGE_BYTES))[::2],
        }[kind]
        with pytest.raises(BufferMismatchError):
            harness.store.get(space, keys, into)
        assert _bytes_of(harness, space, keys) == [payload(key) for key in keys]

    def test_as_many_buffers_as_pages_are_needed(self, harness: StoreHarness, space: NamespaceId) -> None:
        keys = chain(space, 3, salt=fresh_salt())
        with pytest.raises(InvalidArgumentError):
            harness.store.put(space, keys, sources(keys)[:2], stamp=harness.store.stamp())
        with pytest.raises(InvalidArgumentError):
            harness.store.get(space, keys, destinations(4))
        assert harness.store.look_up(space, keys) == Miss(MissReason.ABSENT)

    @pytest.mark.parametrize("start", [-1, 4])
    def test_a_start_outside_the_chain_is_an_error(
        self, harness: StoreHarness, space: NamespaceId, start: int
    ) -> None:
        keys = chain(space, 3, salt=fresh_salt())
        with pytest.raises(InvalidArgumentError):
            harness.store.put(space, keys, sources(keys), start=start, stamp=harness.store.stamp())

    # --- accounts ---

    def test_every_page_that_is_asked_for_is_accounted(
        self, harness: StoreHarness, space: NamespaceId
    ) -> None:
        salt, draw = fresh_salt(), random.Random(7)
        resident = chain(space, 5, salt=salt)
        harness.store.put(space, resident, sources(resident), stamp=harness.store.stamp())
        before = harness.totals()
        assert before.requested == before.hits + before.misses
        requested = hits = 0
        for _ in range(10):
            keys = chain(space, draw.randint(1, 9), salt=salt, branch=[0] * draw.randint(0, 6) + [1])
            expected = next((i for i, key in enumerate(keys) if i >= 5 or key != resident[i]), len(keys))
            assert _pages(harness.store.get(space, keys, destinations(len(keys)))) == expected
            requested += len(keys)
            hits += expected
        after = harness.totals()
        assert after.requested == after.hits + after.misses
        assert after.requested - before.requested == requested
        assert after.hits - before.hits == hits

    # --- everything at once ---

    def test_it_behaves_like_a_dictionary_of_chains(self, harness: StoreHarness, space: NamespaceId) -> None:
        run_page_store_machine(harness, space, examples=self.machine_examples, steps=self.machine_steps)

    def _still_works(self, harness: StoreHarness, space: NamespaceId) -> None:
        keys = chain(space, 2, salt=fresh_salt())
        assert harness.store.put(space, keys, sources(keys), stamp=harness.store.stamp()) == [STORED] * 2
        assert _bytes_of(harness, space, keys) == [payload(key) for key in keys]


def _pages(outcome: object) -> int:
    if isinstance(outcome, Miss):
        return 0
    assert isinstance(outcome, Hit), f"neither hit nor miss: {outcome}"
    return outcome.pages


def _bytes_of(
    harness: StoreHarness, space: NamespaceId, keys: list[PageKey], page_bytes: int = SMALL_PAGE_BYTES
) -> list[bytes]:
    into = destinations(len(keys), page_bytes)
    outcome = harness.store.get(space, keys, into)
    assert isinstance(outcome, Hit), f"{outcome} where all pages are resident"
    assert (outcome.pages, outcome.ended_by) == (len(keys), MissReason.NONE)
    return [bytes(page) for page in into]
