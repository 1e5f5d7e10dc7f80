"""What it costs L1 to lose a page: those that L2 has too go first, as long as L2 has them; by what stays, and what is asked."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_policy.learned import LearnedEviction
from kv_policy.losing_cost import LosingCosts
from kv_types.errors import InvalidArgumentError
from kv_types.ids import LifeId, PageKey, new_life_id
from kv_types.validity import UNKNOWN_INSTANCE, Instances
from tests.cache_l1.bench import Bench, chain
from tests.kv_policy.test_learned import chats_among_scans

CAPACITY = 60
SECOND_NS = 1_000_000_000
CHEAP = LosingCosts(elsewhere=0.125)


@cache
def learned_state() -> bytes:
    """Of chats that come back after half a minute, among prompts that don't."""
    return chats_among_scans(LearnedEviction(200)).policy.export_state()


class L2:
    """Instances that are there, in one life; notes what is asked."""

    def __init__(self) -> None:
        self.pages: set[int] = set()
        self.life: LifeId | None = None
        self.keeps = True
        self.asked: list[int] = []

    def has(self, instance: int, life: LifeId) -> bool:
        assert life == self.life, "numbers of another life are nobody's"
        self.asked.append(instance)
        return instance in self.pages


class Site:
    """An L1 and the L2 behind it."""

    def __init__(self, policy: str = "learned", *, is_blind: bool = False) -> None:
        self.l2 = L2()
        self.bench = Bench(CAPACITY, policy=policy, in_l2=None if is_blind else self.l2.has)
        self.l2.life = self.bench.header.life_now
        self.bench.cache.set_losing_costs(CHEAP)
        self.numbers = 0

    def learn(self) -> None:
        """Go on from what another cache has learned, and fill up."""
        policy = self.bench.cache._policy
        if isinstance(policy, LearnedEviction):
            policy.import_state(learned_state(), self.bench.clock.now_ns())
        for turn in range(10):
            self.ask(chain(9, root=2_000 + turn))

    def ask(self, keys: list[PageKey], *, in_l2: bool = True, seconds: float = 1.0) -> None:
        found = self.bench.found(keys)
        numbers = range(self.numbers + 1, self.numbers + 1 + len(keys))
        self.numbers += len(keys)
        told = tuple(numbers) if in_l2 else (UNKNOWN_INSTANCE,) * len(keys)
        self.l2.pages.update(numbers if in_l2 and self.l2.keeps else ())
        self.bench.insert(keys, found, instances=Instances(self.bench.header.life_now, told))
        self.bench.clock.advance(int(seconds * SECOND_NS))

    def here(self, roots: range) -> list[int]:
        """Roots of one-page chains that L1 has."""
        return [root for root in roots if self.bench.found(chain(1, root=root))]


def half_and_half(site: Site) -> tuple[range, range]:
    """Prompts of one page, in turns in L2 and not: as many as fit, once all else is gone."""
    alone, both = range(100, 130), range(200, 230)
    for one, other in zip(alone, both, strict=True):
        site.ask(chain(1, root=one), in_l2=False, seconds=0.01)
        site.ask(chain(1, root=other), seconds=0.01)
    return alone, both


def test_what_l2_has_too_goes_before_what_it_has_not() -> None:
    site = Site()
    site.learn()
    alone, both = half_and_half(site)
    for root in range(300, 320):
        site.ask(chain(1, root=root), seconds=0.01)
    kept = len(site.here(alone)), len(site.here(both))
    assert kept[0] >= 27, kept
    assert kept[1] <= 15, kept
    site.bench.check()


def test_pages_that_l2_has_dropped_since_cost_what_those_do_that_it_never_had() -> None:
    site = Site()
    site.learn()
    alone, both = half_and_half(site)
    site.l2.pages -= {number for number in site.l2.pages if number % 4 >= 2}
    before = site.bench.cache.statistics()["found_alone_pages"]
    for root in range(300, 320):
        site.ask(chain(1, root=root), seconds=0.01)
    assert site.bench.cache.statistics()["found_alone_pages"] > before
    assert len(site.here(alone)) > len(site.here(both)), (
        "half of the latter are as cheap as they were thought to be"
    )
    site.bench.check()


def test_an_l2_that_keeps_nothing_makes_no_difference() -> None:
    """The same pages stay as if nobody had told L1 of L2."""
    stays = []
    for is_blind in (True, False):
        site = Site(is_blind=is_blind)
        site.l2.keeps = False
        site.learn()
        alone, both = half_and_half(site)
        stays.append((site.here(alone), site.here(both), site.here(range(2_000, 2_010))))
        assert is_blind or site.bench.cache.statistics()["found_alone_pages"] > 10
    assert stays[0] == stays[1]


def test_recency_alone_asks_nobody() -> None:
    site = Site("lru")
    site.learn()
    alone, both = half_and_half(site)
    for root in range(300, 320):
        site.ask(chain(1, root=root), seconds=0.01)
    assert not site.l2.asked
    assert abs(len(site.here(alone)) - len(site.here(both))) <= 1


def test_a_page_that_is_in_l2_is_asked_for_only_when_it_is_to_go() -> None:
    site = Site()
    site.learn()
    evicted = site.bench.cache.statistics()["evicted_pages"]
    assert len(site.l2.asked) <= evicted
    asked = len(site.l2.asked)
    for _ in range(20):
        site.here(range(2_000, 2_010))
    assert len(site.l2.asked) == asked


def test_another_life_is_asked_for_nothing_of_the_one_before() -> None:
    site = Site()
    site.learn()
    site.bench.header.restart()
    site.l2.life = site.bench.header.life_now
    asked = len(site.l2.asked)
    stale = Instances(new_life_id(), (1, 2, 3))
    for root in range(400, 440):
        site.bench.insert(chain(3, root=root), instances=stale)
    assert len(site.l2.asked) == asked, "instances of another life say nothing of this one's L2"
    site.bench.check()


@pytest.mark.parametrize("cost", [0.0, -1.0, 1.5])
def test_costs_that_are_none_are_refused(cost: float) -> None:
    with pytest.raises(InvalidArgumentError, match="to load a page costs"):
        Bench().cache.set_losing_costs(LosingCosts(elsewhere=cost))


@settings(max_examples=15, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 9), st.booleans()), min_size=30, max_size=120
    ),
    drops=st.lists(st.integers(0, 400), max_size=40),
)
def test_whatever_l2_says_nothing_is_lost_and_chains_are_whole(
    requests: list[tuple[int, int, bool]], drops: list[int]
) -> None:
    site = Site()
    site.learn()
    for at, (root, length, in_l2) in enumerate(requests):
        site.ask(chain(length, root=root), in_l2=in_l2)
        if at < len(drops):
            site.l2.pages.discard(drops[at])
        site.bench.check()
