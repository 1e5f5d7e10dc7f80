"""What selectors hide in a real arena, beside a naive twin that knows each page's origin and what it was computed on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache_l2.namespaces import NamespaceRecord, NamespaceRegistry
from cache_l2.provenance import ProvenanceTable
from cache_l2.selecting import Selecting, StepTerms
from kv_types.errors import LimitExceededError
from kv_types.ids import NamespaceId, PageKey, Stamp
from kv_types.limits import HIDING_STEP_WORK_MAX, HIDING_WALK_WORK, NAMESPACES_MAX, SELECTORS_MATCHED_MAX
from kv_types.namespace import Namespace
from kv_types.outcomes import PutStatus, RefuseReason
from kv_types.selectors import EVERYTHING, Origin, Selector
from kv_types.validity import NO_INSTANCE
from tests.support.pages import chain, namespace_of, packed, page_of
from tests.support.stores import MIB, add, make_store

SKEW_MS = 1000
PRODUCERS = (b"", b"node-1", b"node-2")
TAGS = (b"evaluation", b"chat")
TIMES = (0, 5_000, 9_000, 20_000)


@dataclass(frozen=True)
class Twin:
    """A page as the model has it."""

    key: PageKey
    parent: Twin | None
    record: NamespaceRecord
    origin: Origin

    def lineage(self) -> Iterator[Twin]:
        at: Twin | None = self
        while at is not None:
            yield at
            at = at.parent

    def is_selected(self, selector: Selector) -> bool:
        """By the words of the rules: a selected page takes what stands on it with it."""
        return any(_matches(page, selector) for page in self.lineage())


def _matches(page: Twin, selector: Selector) -> bool:
    under_key = selector.key is None or any(above.key == selector.key for above in page.lineage())
    return (
        under_key
        and selector.matches_namespace(page.record.namespace)
        and selector.matches_origin(page.origin, skew_ms=SKEW_MS)
    )


class World:
    """An arena of few pages in two tenants' namespaces."""

    def __init__(self) -> None:
        self.store = make_store(arena_bytes=MIB, segment_bytes=MIB // 8, skew_bound_s=SKEW_MS / 1000)
        self.records = [add(self.store, namespace_of("m", tenant=tenant)) for tenant in ("a", "b")]
        self.pages: dict[PageKey, Twin] = {}

    def put(self, which: int, above: Twin | None, origin: Origin, *, rests_on: int = NO_INSTANCE) -> Twin:
        record = self.records[which]
        (key,) = chain(1)
        twin = Twin(key, above, record, origin)
        assert self.store_page(twin, self.store.stamp(), rests_on=rests_on) == (PutStatus.STORED, 0)
        self.pages[key] = twin
        return twin

    def store_page(self, page: Twin, stamp: Stamp, *, rests_on: int = NO_INSTANCE) -> tuple[int, int]:
        store, parent = self.store, page.parent.key if page.parent is not None else None
        ((status, reason, reservation, offset),) = store.reserve(
            store.own_row, page.record, parent, packed([page.key])
        )
        if status != PutStatus.STORED:
            return status, reason
        source = page_of(page.key, page.record.page_bytes)
        store.reader.fill([offset], [source], page_bytes=page.record.page_bytes)
        ((status, reason),) = store.commit(
            store.own_row, [reservation], stamp=stamp, producer=page.origin.producer or b"",
            tags=page.origin.tags or (), computed_from_ms=page.origin.from_ms,
            computed_until_ms=page.origin.until_ms, rests_on=rests_on,
        )  # fmt: skip
        return status, reason

    def resident(self) -> set[PageKey]:
        return {key for key in self.pages if self.store.inspect(key) is not None}


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.store.check_invariants()
    made.store.close()


def origin_of(
    producer: bytes = b"", tags: tuple[bytes, ...] = (), from_ms: int = 0, until_ms: int = 0
) -> Origin:
    return Origin(producer=producer, tags=tags, from_ms=from_ms, until_ms=until_ms, revision=0)


ORIGINS = st.builds(
    lambda producer, tags, times: origin_of(producer, tags, *sorted(times)),
    st.sampled_from(PRODUCERS),
    st.lists(st.sampled_from(TAGS), max_size=2, unique=True).map(tuple),
    st.tuples(st.sampled_from(TIMES), st.sampled_from(TIMES)),
)
PAGES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 8), ORIGINS), min_size=1, max_size=14)


@st.composite
def selectors(draw: st.DrawFn) -> dict[str, object]:
    """Fields of a selector; a key is the number of a page."""
    fields: dict[str, object] = {}
    for name, values in (
        ("tenant", st.sampled_from(["a", "b", "c"])),
        ("model", st.sampled_from(["m", "other"])),
        ("key", st.integers(0, 14)),
        ("producer", st.sampled_from(PRODUCERS[1:])),
        ("tag", st.sampled_from([*TAGS, b"nobody's"])),
        ("since_ms", st.sampled_from([6_500, 20_500, 21_001])),
        ("until_ms", st.sampled_from([8_500, 4_500, 3_999])),
        ("since_revision", st.integers(0, 2)),
        ("until_revision", st.integers(0, 2)),
    ):
        if draw(st.integers(0, 3)) == 0:
            fields[name] = draw(values)
    for since, until in (("since_ms", "until_ms"), ("since_revision", "until_revision")):
        if since in fields and until in fields and fields[since] > fields[until]:  # type: ignore[operator]
            del fields[until]
    return fields


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pages=PAGES, drawn=st.lists(selectors(), min_size=1, max_size=3))
def test_c40_what_is_selected_goes_and_all_else_stays(
    pages: list[tuple[int, int, Origin]], drawn: list[dict[str, object]]
) -> None:
    world = World()
    twins: list[Twin] = []
    for which, above, origin in pages:
        candidates = [twin for twin in twins if twin.record is world.records[which]]
        parent = candidates[above] if above < len(candidates) else None
        if len(twins) == 5:
            world.store.hide(Selector(tenant="nobody"))  # a record between them, so that their stamps differ
        revision = world.store.stamp().revision
        twins.append(
            world.put(which, parent, Origin(
                producer=origin.producer, tags=origin.tags, from_ms=origin.from_ms, until_ms=origin.until_ms,
                revision=revision,
            ))
        )  # fmt: skip
    chosen = []
    for fields in drawn:
        number, named = fields.get("key"), dict(fields)
        if isinstance(number, int):
            named["key"] = twins[number].key if number < len(twins) else chain(1)[0]
        chosen.append(Selector(**named))  # type: ignore[arg-type]
    selected = {twin.key for twin in twins if any(twin.is_selected(one) for one in chosen)}
    counted = [sum(part) for part in zip(*world.store.census(chosen), strict=True)] or [0, 0]
    size = world.records[0].page_bytes
    assert counted == [len(selected), len(selected) * size], "each page is counted once, and no other"
    assert world.resident() == set(world.pages), "counting changes nothing"
    before = world.store.stamp()
    assert world.store.hide(*chosen) == len(selected)
    assert world.resident() == set(world.pages) - selected
    world.store.check_invariants()
    for twin in twins:
        stands = twin.parent is None or twin.parent.key in world.resident()
        if twin.key in selected and stands:
            # a put that began before may not bring it back, one that begins now may (I3, I9)
            begun = replace(twin, origin=replace(twin.origin, revision=before.revision))
            own = any(_matches(begun, one) for one in chosen)
            refused = world.store_page(twin, before)
            assert refused == (PutStatus.REFUSED, RefuseReason.INVALIDATED) or not own, "BrokeInFlight"
            assert world.store_page(twin, world.store.stamp())[0] in (PutStatus.STORED, PutStatus.KNOWN), (
                "BrokeRecreate"
            )
    world.store.close()


def test_a_page_that_rests_on_an_evicted_page_is_anybodys(world: World) -> None:
    """The root under the child's key is another one than the child was computed on, so that its origin tells nothing."""
    first = world.put(0, None, origin_of(b"node-1"))
    with world.store.lease(first.record.id, [first.key]) as lease:
        old = lease.instance
    world.store.hide(Selector(key=first.key))
    again = Twin(first.key, None, first.record, origin_of(b"node-2"))
    assert world.store_page(again, world.store.stamp())[0] == PutStatus.STORED
    with world.store.lease(first.record.id, [first.key]) as lease:
        new = lease.instance
    assert old != new
    stranger = world.put(0, again, origin_of(b"node-2"), rests_on=old)
    native = world.put(0, again, origin_of(b"node-2"), rests_on=new)
    facts = {twin.key: world.store.inspect(twin.key) for twin in (stranger, native)}
    assert [one is not None and one.origin.lineage_known for one in facts.values()] == [False, True]
    assert world.store.hide(Selector(producer=b"node-1")) == 1
    assert world.resident() == {first.key, native.key}, "what can't be told apart goes, all else stays"


def test_a_put_in_flight_that_rests_on_an_unknown_page_is_refused_by_what_selects_origins(
    world: World,
) -> None:
    root = world.put(0, None, origin_of(b"node-2"))
    with world.store.lease(root.record.id, [root.key]) as lease:
        instance = lease.instance
    before = world.store.stamp()
    world.store.hide(Selector(producer=b"node-1"))
    page = Twin(chain(1)[0], root, root.record, origin_of(b"node-2"))
    refused = (PutStatus.REFUSED, RefuseReason.INVALIDATED)
    assert world.store_page(page, before, rests_on=(1 << 64) - 1) == refused
    assert world.store_page(page, before, rests_on=instance ^ (1 << 33)) == refused
    assert world.store_page(page, before, rests_on=instance) == (PutStatus.STORED, 0), "sparing"


def test_one_batch_is_judged_page_by_page(world: World) -> None:
    """The second page's key is selected; its parent stays, what is on top of it goes with it."""
    store, record = world.store, world.records[0]
    keys = chain(4)
    rows = store.reserve(store.own_row, record, None, packed(keys))
    before = store.stamp()
    store.hide(Selector(key=keys[1]), Selector(producer=b"somebody"))
    ids = [reservation for _, _, reservation, _ in rows]
    outcomes = store.commit(store.own_row, ids, stamp=before, producer=b"node-1", rests_on=NO_INSTANCE)
    assert outcomes[0] == (PutStatus.STORED, 0)
    assert [status for status, _ in outcomes[1:]] == [PutStatus.REFUSED] * 3
    assert outcomes[1][1] == RefuseReason.INVALIDATED


def test_a_full_table_of_provenances_is_selected_by_whoever_is_named() -> None:
    store = make_store()
    store._provenances._max = 2  # one beside the unknown
    world = World.__new__(World)
    world.store, world.records, world.pages = store, [add(store, namespace_of())], {}
    known = world.put(0, None, origin_of(b"node-1"))
    full = world.put(0, None, origin_of(b"node-2"))
    facts = store.inspect(full.key)
    assert facts is not None
    assert facts.origin.producer is None
    assert store.hide(Selector(producer=b"node-3")) == 1
    assert world.resident() == {known.key}
    store.close()


class SteppingArena:
    """Counts the work that steps may do; `pages` under each key."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.work: list[int] = []
        self.terms: list[StepTerms] = []

    def find(self, key: bytes) -> dict[str, int | bytes] | None:
        del key
        return {"namespace_slot": 0}

    def hide_step(self, *, cursor: int, work_max: int, **terms: object) -> tuple[int, int]:
        self.work.append(work_max)
        self.terms.append(terms)  # type: ignore[arg-type]
        done = min(work_max, self.pages - cursor)
        return (-1 if cursor + done >= self.pages else cursor + done), done

    def count_step(self, *, cursor: int, work_max: int, census: int, **terms: object) -> tuple[int, int, int]:
        del census
        following, done = self.hide_step(cursor=cursor, work_max=work_max, **terms)
        return following, done, done


def registry() -> NamespaceRegistry:
    made = NamespaceRegistry()
    made.register(namespace_of("m", tenant="a").canonical, 4096)
    return made


@pytest.mark.parametrize("pages", [0, 1, 100, 3 * HIDING_STEP_WORK_MAX])
@pytest.mark.parametrize("count", [1, 7, 200])
def test_steps_are_bounded_in_work_whatever_is_selected(pages: int, count: int) -> None:
    arena = SteppingArena(pages)
    selecting = Selecting(arena, registry(), ProvenanceTable(), skew_ms=0)
    hidden, taken = 0, 0
    for step in selecting.hiding([Selector(key=key) for key in chain(count)]):
        walks = len(arena.work) - taken
        taken = len(arena.work)
        assert step + (walks - 1) * HIDING_WALK_WORK <= HIDING_STEP_WORK_MAX + HIDING_WALK_WORK
        hidden += step
    assert hidden == pages * count
    assert taken == len(arena.work), "nothing is hidden after the last step was told"
    assert max(arena.work) <= HIDING_STEP_WORK_MAX


def test_a_number_used_again_in_the_midst_of_a_walk_is_left_out_of_its_rest() -> None:
    """What another namespace puts under it meanwhile is none of the walk's business."""
    made = NamespaceRegistry(give_up=lambda idle: next(iter(idle)))
    for number in range(NAMESPACES_MAX):
        made.register(namespace_of("old", tenant=f"t{number}").canonical, 4096)
    for walk in ("hiding", "counting"):
        arena = SteppingArena(3 * HIDING_STEP_WORK_MAX)
        selecting = Selecting(arena, made, ProvenanceTable(), skew_ms=0)
        steps = iter(getattr(selecting, walk)([Selector(model="old")]))
        next(steps)
        recycled = [
            made.register(namespace_of(f"{walk}-{number}").canonical, 4096).number for number in range(9)
        ]
        assert len(list(steps)) == 2
        first, last = (
            int.from_bytes(terms["namespaces"] or b"", "little")
            for terms in (arena.terms[0], arena.terms[-1])
        )
        assert first & ~last == sum(1 << number for number in recycled)
        assert last & ~first == 0


def test_a_storm_of_equal_and_of_wide_selectors_is_one_walk() -> None:
    arena = SteppingArena(10)
    made = registry()
    selecting = Selecting(arena, made, ProvenanceTable(), skew_ms=0)
    storm = [Selector(tenant="a"), Selector(model="m"), Selector(tenant="nobody"), Selector(tenant="a")] * 50
    assert list(selecting.hiding(storm)) == [10]
    assert [terms["namespaces"] for terms in arena.terms] == [b"\x01"]
    arena.terms.clear()
    assert list(selecting.hiding([*storm, EVERYTHING])) == [10]
    assert [terms["namespaces"] for terms in arena.terms] == [None], "everything is one walk too"
    assert (
        list(selecting.hiding([Selector(tenant="nobody"), Selector(namespace=NamespaceId(bytes(32)))])) == []
    )


@pytest.mark.parametrize("tag", [None, b"t"])
def test_many_selectors_are_held_against_many_namespaces_in_turns(
    tag: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many tenants as a fleet may purge, on a node that serves as many: no turn may hold up the event loop."""
    made = NamespaceRegistry()
    for number in range(100):
        made.register(namespace_of("m", tenant=f"here {number}").canonical, 4096)
    selecting = Selecting(SteppingArena(10), made, ProvenanceTable(), skew_ms=0)
    matched = 0
    real = Selector.matches_namespace

    def matches(selector: Selector, namespace: Namespace) -> bool:
        nonlocal matched
        matched += 1
        return real(selector, namespace)

    monkeypatch.setattr(Selector, "matches_namespace", matches)
    storm = [Selector(tenant=f"gone {number}", tag=tag) for number in range(1000)]
    storm += [Selector(tenant="here 7", tag=tag)]
    told, hidden = 0, 0
    for step in selecting.hiding(storm):
        assert matched - told <= 2 * SELECTORS_MATCHED_MAX
        told = matched
        hidden += step
    assert hidden == 10
    assert matched > 20 * SELECTORS_MATCHED_MAX
    assert sum(pages for pages, _ in selecting.counting(storm)) == 10


def test_keys_of_pages_that_are_not_here_are_looked_for_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that comes back to a full log looks for every page that it names, and finds few."""
    arena, looked = SteppingArena(10), 0

    def find(key: bytes) -> None:
        nonlocal looked
        looked += 1

    monkeypatch.setattr(arena, "find", find)
    selecting = Selecting(arena, registry(), ProvenanceTable(), skew_ms=0)
    told = 0
    for hidden in selecting.hiding([Selector(tenant="a", key=key) for key in chain(8192)]):
        assert (hidden, arena.terms) == (0, [])
        assert looked - told <= SELECTORS_MATCHED_MAX // 2
        told = looked
    assert looked == 8192


def test_a_count_that_another_one_ended_says_so(world: World) -> None:
    for _ in range(3):
        world.put(0, None, origin_of())
    counting = world.store.census([Selector(tenant="a"), Selector(tag=b"t")])
    next(counting)
    assert list(world.store.census([EVERYTHING]))
    with pytest.raises(LimitExceededError, match="ask again"):
        list(counting)
