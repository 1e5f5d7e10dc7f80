"""Validity against a naive twin, under any order of events: it never permits more, and without compaction never less."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from invalidation.compaction import CompactionLimits, Kept, floors_of, keep
from invalidation.log import Boot
from invalidation.records import NO_DIGEST, LogEntry, LogRecord, next_digest
from invalidation.validity import Validity
from kv_types.events import Selected, WeightsAnnounced
from kv_types.ids import PageKey, Stamp, new_log_incarnation
from kv_types.namespace import Namespace
from kv_types.outcomes import RefuseReason
from kv_types.selectors import Origin, Selector
from tests.invalidation.validity_oracle import NaiveLog, SomePage
from tests.kv_types.selector_samples import FEW_KEYS, FEW_ORIGINS, FEW_SELECTORS, SPACES
from tests.support.turns import finish

SKEW_MS = 1
UNKNOWN_ORIGIN = Origin(producer=None, tags=None, from_ms=0, until_ms=0, revision=0, lineage_known=False)
PAGES = st.builds(
    SomePage,
    space=st.sampled_from(SPACES),
    chain=st.lists(st.sampled_from(FEW_KEYS), min_size=1, max_size=4, unique=True).map(tuple),
    origin=FEW_ORIGINS,
)


class ValidityMachine(RuleBasedStateMachine):
    """A log that compacts, one that forgets nothing, and a follower that lags, catches up and starts again."""

    log_limits = CompactionLimits(tombstones_per_scope=4, tombstones=8, scopes=2)
    own_limits = CompactionLimits(tombstones_per_scope=3, tombstones=7, scopes=2)
    is_exact = False

    def __init__(self) -> None:
        super().__init__()
        self.validity = Validity(skew_ms=SKEW_MS, limits=self.own_limits)
        self.judged: list[SomePage] = []
        self.appended: list[Selector] = []
        self.told: dict[str, str] = {}
        self._begin()

    def _begin(self) -> None:
        self.incarnation = new_log_incarnation()
        self.naive = NaiveLog(SKEW_MS)
        self.kept = Kept(limits=self.log_limits)
        self.weights: dict[str, str] = {}
        self.records: list[LogRecord] = []
        self.digest = NO_DIGEST
        self._restart()

    def _boot(self) -> Boot:
        tip = Stamp(self.incarnation, len(self.records))
        return Boot(
            tip=tip, digest=self.digest, floors=floors_of(self.kept), tombstones=dict(self.kept.tombstones),
            weights=dict(self.weights), settled=True, replicas=0,
        )  # fmt: skip

    def _restart(self) -> None:
        finish(self.validity.restarting(self._boot()))
        self.told |= self.weights

    @property
    def position(self) -> int:
        assert self.validity.position is not None
        return self.validity.position.revision

    def _append(self, event: Selected | WeightsAnnounced) -> None:
        entry = LogEntry(event=event)
        self.digest = next_digest(self.digest, entry.encode())
        self.records.append(LogRecord(len(self.records) + 1, entry, self.digest))
        match event:
            case Selected(selector):
                self.naive.selectors.append(selector)
                keep(self.kept, selector, len(self.records))
            case WeightsAnnounced(model, version):
                self.naive.selectors.append(None)
                self.weights[model] = version

    @rule(selectors=st.lists(FEW_SELECTORS, min_size=1, max_size=6), follows=st.booleans())
    def append(self, selectors: list[Selector], follows: bool) -> None:
        self.appended = (self.appended + selectors)[-8:]
        for selector in selectors:
            self._append(Selected(selector))
        if follows:
            self._follow(len(self.records))
            self._judge_again()

    @precondition(lambda self: self.appended)
    @rule(data=st.data())
    def append_again(self, data: st.DataObject) -> None:
        """The same selector as a short time ago: it takes the place of its tombstone."""
        self._append(Selected(data.draw(st.sampled_from(self.appended))))
        self._follow(len(self.records))
        self._judge_again()

    @rule(model=st.sampled_from("mn"), version=st.sampled_from("12"))
    def announce(self, model: str, version: str) -> None:
        self._append(WeightsAnnounced(model, version))

    @precondition(lambda self: self.position < len(self.records))
    @rule(count=st.integers(1, 8))
    def follow(self, count: int) -> None:
        self._follow(count)
        self._judge_again()

    def _follow(self, count: int) -> None:
        for record in self.records[self.position : self.position + count]:
            self.validity.apply(record)
            if isinstance(record.event, WeightsAnnounced):
                self.told[record.event.model] = record.event.version

    @precondition(lambda self: self.position + 2 < len(self.records))
    @rule(page=PAGES)
    def catch_up_by_hiding(self, page: SomePage) -> None:
        """A gap: what lies between is known by its tombstones and floors alone.

        What `newer` names covers every page that a follower at the old position holds and may hold no longer."""
        before = self.position
        self._restart()
        newest = self.naive.newest(page, self.position)
        for position in range(before + 1):
            hidden_by = self.validity.newer(position)
            is_hidden = any(self.naive.is_selected(selector, page) for selector, _ in hidden_by)
            assert is_hidden or newest <= position, "a page of this stamp, valid until then, would stay"
            if self.is_exact:
                assert is_hidden == (newest > position), "a good page would go"

    @precondition(lambda self: len(self.records) > 20)
    @rule()
    def begin_anew(self) -> None:
        old = self.validity.position
        assert old is not None
        self._begin()
        for space in SPACES:
            page = SomePage(space, FEW_KEYS, UNKNOWN_ORIGIN)
            assert self._judge(page, old) is RefuseReason.STAMP_FOREIGN

    @rule(page=PAGES)
    def judge(self, page: SomePage) -> None:
        self.judged = [*self.judged, page][-4:]
        self._judge_all(page)

    def _judge_again(self) -> None:
        """What was remembered of a page must not outlive the next record."""
        for page in self.judged:
            self._judge_all(page)

    def _judge_all(self, page: SomePage) -> None:
        """Every stamp up to the position, and some that lie ahead."""
        newest = self.naive.newest(page, self.position)
        for revision in range(self.position + 1):
            stamp = Stamp(self.incarnation, revision)
            found = self._judge(page, stamp)
            assert found in {RefuseReason.NONE, RefuseReason.INVALIDATED}
            if found is RefuseReason.NONE:
                assert revision >= newest, "a page that a record selects would be served"
            elif self.is_exact:
                assert revision < newest, "a good page is refused"
            said = self.validity.explain(page.space, stamp, page.origin, lambda: page.chain)
            assert said.startswith("valid") == (found is RefuseReason.NONE), said
        for revision in range(self.position + 1, self.position + 3):
            assert self._judge(page, Stamp(self.incarnation, revision)) is RefuseReason.STAMP_FOREIGN

    @rule(space=st.sampled_from(SPACES), origin=FEW_ORIGINS)
    def judge_a_chain_too_long_to_be_looked_at(self, space: Namespace, origin: Origin) -> None:
        page = SomePage(space, FEW_KEYS, origin)
        newest = self.naive.newest(page, self.position)
        for revision in range(newest):
            found = self._judge(page, Stamp(self.incarnation, revision), is_too_long=True)
            assert found is RefuseReason.INVALIDATED, "it might hold any key"

    def _judge(self, page: SomePage, stamp: Stamp, *, is_too_long: bool = False) -> RefuseReason:
        asked = 0

        def chain() -> Sequence[PageKey] | None:
            nonlocal asked
            asked += 1
            return None if is_too_long else page.chain

        found = self.validity.judge(page.space, stamp, page.origin, chain)
        assert asked <= 1, "walking a chain is dear"
        assert asked == 0 or stamp.revision < self.position, "the newest stamps cost nothing"
        return found

    @invariant()
    def it_stays_within_bounds(self) -> None:
        sizes = self.validity.statistics()
        assert sizes["tombstones"] <= self.own_limits.tombstones
        assert sizes["floors"] <= self.own_limits.scopes + 1
        parts = ("tombstones_of_keys", "tombstones_of_namespace_fields", "tombstones_of_origins")
        assert sum(sizes[part] for part in parts) == sizes["tombstones"], (
            "an index holds what is kept, no more"
        )

    @invariant()
    def it_knows_where_it_is(self) -> None:
        assert self.validity.position == Stamp(self.incarnation, self.position)
        expected = self.records[self.position - 1].digest if self.position else NO_DIGEST
        assert self.validity.digest == expected
        assert self.validity.weights == self.told, "over incarnations too"
        if self.position == len(self.records):
            assert self.weights.items() <= self.validity.weights.items()


_WIDE = CompactionLimits(tombstones_per_scope=1000, tombstones=1000, scopes=1000)


class ExactMachine(ValidityMachine):
    """Limits that no run reaches: the twin and validity must agree in every judgement."""

    log_limits = own_limits = _WIDE
    is_exact = True


_SETTINGS = settings(
    max_examples=80, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

TestCompacted = ValidityMachine.TestCase
TestCompacted.settings = _SETTINGS
TestExact = ExactMachine.TestCase
TestExact.settings = _SETTINGS
