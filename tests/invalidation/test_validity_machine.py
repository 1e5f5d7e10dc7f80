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

SKEW_MS = 1
BACK = st.integers(0, 40)
"""How many revisions a stamp lies behind the position, at most."""
CHAINS = st.lists(st.sampled_from(FEW_KEYS), min_size=1, max_size=4, unique=True).map(tuple)


class ValidityMachine(RuleBasedStateMachine):
    """A log that compacts, one that forgets nothing, and a follower that lags, catches up and starts again."""

    log_limits = CompactionLimits(tombstones_per_scope=4, tombstones=8, scopes=2)
    own_limits = CompactionLimits(tombstones_per_scope=3, tombstones=7, scopes=2)
    is_exact = False

    def __init__(self) -> None:
        super().__init__()
        self.validity = Validity(skew_ms=SKEW_MS, limits=self.own_limits)
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
        self.validity.restart(self._boot())

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

    @rule(selectors=st.lists(FEW_SELECTORS, min_size=1, max_size=6))
    def append(self, selectors: list[Selector]) -> None:
        for selector in selectors:
            self._append(Selected(selector))

    @rule(model=st.sampled_from("mn"), version=st.sampled_from("12"))
    def announce(self, model: str, version: str) -> None:
        self._append(WeightsAnnounced(model, version))

    @precondition(lambda self: self.position < len(self.records))
    @rule(count=st.integers(1, 8))
    def follow(self, count: int) -> None:
        for record in self.records[self.position : self.position + count]:
            self.validity.apply(record)

    @rule()
    def start_again(self) -> None:
        """A gap: what lies between is known by its tombstones and floors alone."""
        self._restart()

    @rule(page_back=BACK, space=st.sampled_from(SPACES), chain=CHAINS, origin=FEW_ORIGINS)
    def catch_up_by_hiding(
        self, page_back: int, space: Namespace, chain: tuple[PageKey, ...], origin: Origin
    ) -> None:
        """What `newer` names covers every page that a follower at the old position holds and may hold no longer."""
        before = self.position
        page = SomePage(space, chain, origin, max(before - page_back, 0))
        was_valid = self.naive.is_valid(page, before)
        self._restart()
        is_hidden = any(self.naive.is_selected(selector, page) for selector, _ in self.validity.newer(before))
        if was_valid and not is_hidden:
            assert self.naive.is_valid(page, self.position)
        if was_valid and is_hidden and self.is_exact:
            assert not self.naive.is_valid(page, self.position)

    @rule()
    def begin_anew(self) -> None:
        old = self.validity.position
        assert old is not None
        self._begin()
        assert self._judge(SomePage(SPACES[0], FEW_KEYS, _ANY, 0), stamp=old) is RefuseReason.STAMP_FOREIGN

    @rule(back=BACK, space=st.sampled_from(SPACES), chain=CHAINS, origin=FEW_ORIGINS)
    def judge(self, back: int, space: Namespace, chain: tuple[PageKey, ...], origin: Origin) -> None:
        page = SomePage(space, chain, origin, max(self.position - back, 0))
        found = self._judge(page)
        allowed = self.naive.is_valid(page, self.position)
        if found is RefuseReason.NONE:
            assert allowed, "a page that a record selects would be served"
        elif self.is_exact:
            assert not allowed, "a good page is refused"
        said = self.validity.explain(
            space, Stamp(self.incarnation, page.revision), origin, lambda: page.chain
        )
        assert said.startswith("valid") == (found is RefuseReason.NONE), said
        if found is RefuseReason.NONE:
            return
        assert found is RefuseReason.INVALIDATED

    @rule(back=BACK, space=st.sampled_from(SPACES), origin=FEW_ORIGINS)
    def judge_a_chain_too_long_to_be_looked_at(self, back: int, space: Namespace, origin: Origin) -> None:
        page = SomePage(space, FEW_KEYS, origin, max(self.position - back, 0))
        if self._judge(page, is_too_long=True) is RefuseReason.NONE:
            assert self.naive.is_valid(page, self.position), "it might hold any key"

    @rule(ahead=st.integers(1, 3), space=st.sampled_from(SPACES), origin=FEW_ORIGINS)
    def judge_what_lies_ahead(self, ahead: int, space: Namespace, origin: Origin) -> None:
        page = SomePage(space, FEW_KEYS, origin, self.position + ahead)
        assert self._judge(page) is RefuseReason.STAMP_FOREIGN

    def _judge(
        self, page: SomePage, *, stamp: Stamp | None = None, is_too_long: bool = False
    ) -> RefuseReason:
        asked = 0

        def chain() -> Sequence[PageKey] | None:
            nonlocal asked
            asked += 1
            return None if is_too_long else page.chain

        stamp = stamp or Stamp(self.incarnation, page.revision)
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
        if self.position == len(self.records):
            assert self.validity.weights == self.weights


_ANY = Origin(producer=None, tags=None, from_ms=0, until_ms=0, revision=0, lineage_known=False)
_WIDE = CompactionLimits(tombstones_per_scope=1000, tombstones=1000, scopes=1000)


class ExactMachine(ValidityMachine):
    """Limits that no run reaches: the twin and validity must agree in every judgement."""

    log_limits = own_limits = _WIDE
    is_exact = True


_SETTINGS = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

TestCompacted = ValidityMachine.TestCase
TestCompacted.settings = _SETTINGS
TestExact = ExactMachine.TestCase
TestExact.settings = _SETTINGS
