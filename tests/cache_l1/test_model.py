"""L1Cache against a naive twin that remembers every page and every event and looks at all of them each time."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from kv_types.events import Event, LogStarted, Selected, WeightsAnnounced
from kv_types.ids import LifeId, NamespaceId, PageKey
from kv_types.selectors import EVERYTHING, Selector
from kv_types.validity import UNKNOWN_INSTANCE, Instances, ObservedView
from tests.cache_l1.bench import SPACE, Bench, chain

CAPACITY = 256
RING = 6
Selection = Callable[[PageKey], bool]

ROOTS = st.integers(0, 1)
BRANCHES = st.lists(st.integers(0, 1), min_size=4, max_size=4).map(tuple)
CHAINS = st.builds(
    lambda n, root, branch: chain(n, root=root, branch=branch), st.integers(1, 5), ROOTS, BRANCHES
)
OTHER = Selector(namespace=NamespaceId(SPACE.id[::-1]))
ORIGINS = st.fixed_dictionaries(
    {}, optional={"producer": st.just(b"w"), "tag": st.just(b"t"), "since_ms": st.just(5)}
)
NARROW = st.sampled_from([{}, {"model": SPACE.model}, {"namespace": SPACE.id}, {"model": "other"}])


def selection(event: Event) -> Selection:
    """What an L1 has to forget of its own, said once more and naively: origins are not known there."""
    match event:
        case LogStarted():
            return lambda key: True
        case WeightsAnnounced():
            return lambda key: False
        case Selected(selector):
            if not selector.matches_namespace(SPACE):
                return lambda key: False
            return lambda key: selector.key in (None, key)


class Twin(RuleBasedStateMachine):
    """Pages are of one namespace; the cache has room for all of them, so that nothing goes but by events."""

    views = Bundle("views")

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(CAPACITY, namespace=SPACE)
        self.bench.header.ring_records = RING
        self.pages: dict[PageKey, tuple[PageKey | None, int]] = {}  # parent, instance
        self.events: list[tuple[LifeId, int, Selection]] = []
        self.unread = 0
        self.numbers = 0

    # --- what the sidecar does ---

    def _publish(self, event: Event) -> None:
        self.bench.header.publish(event)
        self.unread += 1
        self._forget(selection(event))

    def _forget(self, selects: Selection) -> None:
        header = self.bench.header
        self.events.append((header.life_now, header.view_now, selects))
        gone = {key for key in self.pages if selects(key)}
        while above := {key for key, (parent, _) in self.pages.items() if parent in gone} - gone:
            gone |= above
        self.pages = {key: page for key, page in self.pages.items() if key not in gone}

    @rule(keys=CHAINS, narrow=NARROW, origin=ORIGINS)
    def hide_a_page(self, keys: list[PageKey], narrow: dict[str, object], origin: dict[str, object]) -> None:
        self._publish(Selected(Selector(key=keys[-1], **narrow, **origin)))  # type: ignore[arg-type]

    @rule(
        selector=st.sampled_from([OTHER, Selector(model="other", producer=b"w"), Selector(tenant="nobody")])
    )
    def hide_what_others_have(self, selector: Selector) -> None:
        self._publish(Selected(selector))

    @rule(selector=st.sampled_from([EVERYTHING, Selector(producer=b"w"), Selector(model=SPACE.model)]))
    def hide_all(self, selector: Selector) -> None:
        self._publish(Selected(selector))

    @rule(
        event=st.sampled_from(
            [LogStarted(), WeightsAnnounced(SPACE.model, "9"), WeightsAnnounced("other", "1")]
        )
    )
    def say(self, event: Event) -> None:
        self._publish(event)

    @rule()
    def restart(self) -> None:
        self.bench.header.restart()
        self.unread = 0
        self._forget(lambda key: True)

    # --- what the worker does ---

    def _follow(self) -> None:
        """The cache reads the ring now; what it has missed is everything."""
        if self.unread > RING:
            self._forget(lambda key: True)
        self.unread = 0

    @initialize(target=views)
    def first(self) -> ObservedView:
        return self.bench.view()

    @rule(target=views)
    def begin(self) -> ObservedView:
        self._follow()
        return self.bench.view()

    @rule(view=views, keys=CHAINS, start=st.integers(0, 2), known=st.booleans())
    def insert(self, view: ObservedView, keys: list[PageKey], start: int, known: bool) -> None:
        start = min(start, len(keys))
        self._follow()
        header = self.bench.header
        is_late = view.life != header.life_now or any(
            life == view.life and at > view.view and any(map(selects, keys))
            for life, at, selects in self.events
        )
        admitted = not is_late and all(key in self.pages for key in keys[:start])
        numbers = tuple(self._told(key, known=known) for key in keys)
        fresh = [key for key in keys[start:] if key not in self.pages] if admitted else []
        told = Instances(header.life_now, numbers)
        assert self.bench.insert(keys, start, view=view, instances=told) == len(fresh)
        for key, number in zip(keys, numbers, strict=True):
            if key in fresh:
                parent = keys[keys.index(key) - 1] if key != keys[0] else None
                below = self.pages[parent][1] if parent is not None else 0
                self.pages[key] = (parent, UNKNOWN_INSTANCE if below == UNKNOWN_INSTANCE else number)

    def _told(self, key: PageKey, *, known: bool) -> int:
        """The page that is here already, or a new one: a caller that reused what L1 has."""
        if key in self.pages:
            return self.pages[key][1]
        self.numbers += 1
        return self.numbers if known else UNKNOWN_INSTANCE

    @rule(keys=CHAINS)
    def look_up(self, keys: list[PageKey]) -> None:
        self._follow()
        here = 0
        while here < len(keys) and keys[here] in self.pages:
            here += 1
        assert self.bench.found(keys) == here
        assert self.bench.instances(keys) == tuple(self.pages[key][1] for key in keys[:here])

    @rule(view=consumes(views))
    def end(self, view: ObservedView) -> None:
        """A request ends without having stored anything."""

    @invariant()
    def nothing_is_lost(self) -> None:
        self.bench.check()


TestTwin = Twin.TestCase
TestTwin.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
