"""A Hypothesis state machine that drives a PageStore beside a dictionary and compares every answer."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from kv_types.ids import NamespaceId, PageKey
from kv_types.outcomes import KNOWN, STORED, Hit, Miss, PutOutcome, Refused, RefuseReason
from tests.conformance.harness import (
    StoreHarness,
    chain,
    destinations,
    fresh_salt,
    payload,
)

_BRANCHES = st.lists(st.integers(0, 2), min_size=0, max_size=4)
_LENGTHS = st.integers(1, 7)
_VERSIONS = st.integers(0, 3)


class _Model:
    """The oracle: bytes by key, and who stands on whom."""

    def __init__(self) -> None:
        self.pages: dict[PageKey, bytes] = {}
        self.parents: dict[PageKey, PageKey | None] = {}

    def prefix(self, keys: list[PageKey]) -> int:
        return next((index for index, key in enumerate(keys) if key not in self.pages), len(keys))

    def put(self, keys: list[PageKey], start: int, version: int) -> list[PutOutcome]:
        if start and keys[start - 1] not in self.pages:
            return [Refused(RefuseReason.PARENT_ABSENT)] * (len(keys) - start)
        outcomes: list[PutOutcome] = []
        for index in range(start, len(keys)):
            if keys[index] in self.pages:
                outcomes.append(KNOWN)
                continue
            self.pages[keys[index]] = payload(keys[index], version=version)
            self.parents[keys[index]] = keys[index - 1] if index else None
            outcomes.append(STORED)
        return outcomes

    def hide(self, key: PageKey) -> None:
        gone = {key}
        while grown := {page for page, parent in self.parents.items() if parent in gone} - gone:
            gone |= grown
        for page in gone:
            del self.pages[page], self.parents[page]


class PageStoreMachine(RuleBasedStateMachine):
    """One example drives chains of a salt of its own, so that examples may share a store."""

    def __init__(self, harness: StoreHarness, space: NamespaceId) -> None:
        super().__init__()
        self._harness = harness
        self._space = space
        self._salt = fresh_salt()
        self._model = _Model()

    def _chain(self, branch: list[int], length: int) -> list[PageKey]:
        return chain(self._space, length, salt=self._salt, branch=branch)

    @rule(branch=_BRANCHES, length=_LENGTHS, start_share=st.floats(0, 1), version=_VERSIONS)
    def put(self, branch: list[int], length: int, start_share: float, version: int) -> None:
        keys = self._chain(branch, length)
        start = min(int(start_share * length), length - 1)
        offered = [memoryview(payload(key, version=version)) for key in keys[start:]]
        outcomes = self._harness.store.put(
            self._space, keys, offered, start=start, stamp=self._harness.store.stamp()
        )
        assert outcomes == self._model.put(keys, start, version)

    @rule(branch=_BRANCHES, length=_LENGTHS)
    def look_up(self, branch: list[int], length: int) -> None:
        keys = self._chain(branch, length)
        self._check_length(self._harness.store.look_up(self._space, keys), keys)

    @rule(branch=_BRANCHES, length=_LENGTHS)
    def get(self, branch: list[int], length: int) -> None:
        keys = self._chain(branch, length)
        into = destinations(length)
        before = self._harness.totals()
        outcome = self._harness.store.get(self._space, keys, into)
        after = self._harness.totals()
        self._check_length(outcome, keys)
        found = self._model.prefix(keys)
        assert [bytes(page) for page in into[:found]] == [self._model.pages[key] for key in keys[:found]]
        assert after.requested - before.requested == length
        assert after.hits - before.hits == found
        assert after.misses - before.misses == length - found

    @precondition(lambda self: self._harness.hide is not None)
    @rule(branch=_BRANCHES, length=_LENGTHS)
    def hide(self, branch: list[int], length: int) -> None:
        # the deepest resident page of a chain that is drawn like any other: which keys there are varies with the salt
        assert self._harness.hide is not None
        keys = self._chain(branch, length)
        found = self._model.prefix(keys)
        if found:
            self._harness.hide(self._space, keys[found - 1])
            self._model.hide(keys[found - 1])

    @precondition(lambda self: self._harness.hide is not None)
    @rule(branch=_BRANCHES, length=_LENGTHS, share=st.floats(0, 1, exclude_max=True), version=_VERSIONS)
    def hide_below_and_put_again(self, branch: list[int], length: int, share: float, version: int) -> None:
        # what stood on the hidden page must be gone: were it kept, it would be known now, and of an older version
        assert self._harness.hide is not None
        keys = self._chain(branch, length)
        if found := self._model.prefix(keys):
            below = keys[int(share * found)]
            self._harness.hide(self._space, below)
            self._model.hide(below)
            self.put(branch, length, 0.0, version)

    def _check_length(self, outcome: object, keys: list[PageKey]) -> None:
        found = self._model.prefix(keys)
        if found:
            assert isinstance(outcome, Hit), f"{outcome} where {found} pages are resident"
            assert outcome.pages == found
        else:
            assert isinstance(outcome, Miss), f"{outcome} where nothing is resident"


def run_page_store_machine(
    harness: StoreHarness,
    space: NamespaceId,
    *,
    examples: int,
    steps: int,
    shrink: bool = True,
    same_each_time: bool = False,
) -> None:
    """Run the machine; raises AssertionError with the (shrunk) steps when store and model differ.

    `same_each_time` draws the same examples in every run, for tests that the machine finds what is wrong.
    """

    class Bound(PageStoreMachine):
        def __init__(self) -> None:
            super().__init__(harness, space)

    run_state_machine_as_test(
        Bound,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=same_each_time,
            report_multiple_bugs=False,
            phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])],
            suppress_health_check=list(HealthCheck),
        ),
    )
