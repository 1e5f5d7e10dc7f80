"""Some seeds of each kind of trouble, that a seed is a history, and that the validators see what is wrong. More: `make sim`."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from invalidation.compaction import CompactionLimits, Kept, keep
from kv_types.selectors import Selector
from tests.kv_types.selector_samples import FEW_SELECTORS
from tests.sim.floors import floors_of
from tests.sim.planning import plan_of
from tests.sim.profiles import PROFILE, PROFILES
from tests.sim.spaces import chain, namespace
from tests.sim.truth import BrokenPromiseError, Grant, Instance, Truth

ROOT = Path(__file__).resolve().parents[2]
SPACE = namespace("m", "1", "")
KEYS = chain(SPACE, (0, 0))
INCARNATION = b"i" * 16


def _run(*arguments: str, hash_seed: str = "0") -> str:
    """What the runner says, which must be that nothing broke."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.run", *arguments],
        cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("profile", range(len(PROFILES)))
def test_no_promise_is_broken(profile: int) -> None:
    first = profile * PROFILE
    assert "20 seeds" in _run("--seeds", f"{first}..{first + 19}", "--processes", "1")


def test_a_seed_is_one_history_in_whichever_process() -> None:
    """Whatever the order of sets and dictionaries that the process was started with."""
    assert _run("--seed", "29") == _run("--seed", "29", hash_seed="7")


def test_plans_differ_and_repeat() -> None:
    assert plan_of(5) == plan_of(5)
    assert plan_of(5) != replace(plan_of(6), seed=5)


# --- the validators ---


def _page(
    truth: Truth, number: int, *, begun: int, used: frozenset[Instance] = frozenset(), depth: int = 1
) -> Instance:
    page = Instance(
        number=number, namespace=SPACE, chain=KEYS[:depth], begun=begun, incarnation=INCARNATION, revision=0,
        producer=b"p", tags=(b"t",), from_ms=100, until_ms=200, weights="1",
    )  # fmt: skip
    return truth.computed(page, used)


def _append(truth: Truth, revision: int, selector: Selector) -> None:
    truth.appended("r0", INCARNATION, revision, selector, true_ns=0)


def _broken(name: str) -> Any:
    return pytest.raises(BrokenPromiseError, match=f"^{name}")


def test_a_page_begun_before_a_fenced_record_is_seen() -> None:
    truth = Truth()
    page = _page(truth, 1, begun=0)
    _append(truth, 1, Selector(key=KEYS[0]))
    truth.fence_returned([(INCARNATION, 1)], [Selector(key=KEYS[0])])
    truth.check_fence([page], 0, "a look-up invoked before")
    with _broken("BrokeFence"):
        truth.check_fence([page], 1, "a look-up invoked after")
    truth.check_fence([_page(truth, 2, begun=1)], 1, "what was computed anew")


def test_what_was_derived_from_such_a_page_is_seen() -> None:
    truth = Truth()
    old = _page(truth, 1, begun=0)
    _append(truth, 1, Selector(producer=b"p", key=KEYS[0]))
    child = _page(truth, 2, begun=1, used=frozenset((old,)), depth=2)
    truth.fence_returned([(INCARNATION, 1)], [Selector(producer=b"p", key=KEYS[0])])
    with _broken("BrokeFence"):
        truth.check_fence([child], 1, "a look-up")


def test_a_page_published_against_a_record_is_seen() -> None:
    truth = Truth()
    page = _page(truth, 1, begun=0)
    _append(truth, 1, Selector(tag=b"t"))
    truth.check_published(page, INCARNATION, 0, "before the record was applied")
    with _broken("BrokeInFlight"):
        truth.check_published(page, INCARNATION, 1, "after")
    with _broken("BrokeInFlight"):
        truth.check_published(page, b"j" * 16, 0, "in another incarnation")


def test_a_hit_without_a_renewal_is_seen() -> None:
    truth = Truth()
    truth.granted(b"member", Grant(until_ns=100, incarnation=INCARNATION, tip=3))
    truth.check_freshness([(b"member", {INCARNATION: 3})], invoked_ns=99, who="in time")
    for published, invoked_ns in (({INCARNATION: 3}, 100), ({INCARNATION: 2}, 99), ({}, 99)):
        with _broken("BrokeFailClosed"):
            truth.check_freshness(
                [(b"member", published)], invoked_ns=invoked_ns, who="too late, or not applied"
            )


def test_torn_and_foreign_pages_are_seen() -> None:
    truth = Truth()
    page = _page(truth, 1, begun=0)
    assert truth.check_whole((1, 1), KEYS[:1], SPACE, "whole") is page
    for words, keys, space, name in (
        ((1, 2), KEYS[:1], SPACE, "BrokeWhole"),
        ((1, 1), KEYS[:1], namespace("m", "1", "t"), "BrokeWhole"),
        ((1, 1), KEYS[:2], SPACE, "BrokePrefix"),
    ):
        with _broken(name):
            truth.check_whole(words, keys, space, "torn, or another")


def test_a_page_that_goes_for_no_reason_is_seen() -> None:
    truth = Truth()
    page = _page(truth, 1, begun=0)
    _append(truth, 1, Selector(until_ms=50))

    def check(*, read: int = 1, unknown: bool = False, skew_ms: int = 0, tombstones: int = 9) -> None:
        truth.check_spared(
            [(page, unknown, 100, 200)],
            INCARNATION,
            read,
            limits=(tombstones, 9, 9),
            skew_ms=skew_ms,
            who="it",
        )

    check(skew_ms=50)
    check(unknown=True)
    check(tombstones=0)  # which became the floor of everything
    with _broken("BrokeSparing"):
        check(skew_ms=49)
    with _broken("BrokeSparing"):
        check(skew_ms=50, read=0)
    newer = replace(page, revision=1)
    with _broken("BrokeSparing"):
        truth.check_spared(
            [(newer, False, 100, 200)],
            INCARNATION,
            1,
            limits=(0, 9, 9),
            skew_ms=50,
            who="it, computed after the record",
        )


@given(selectors=st.lists(FEW_SELECTORS, max_size=30), caps=st.tuples(*[st.integers(1, 5)] * 3))
def test_floors_are_those_of_the_rule(selectors: list[Selector], caps: tuple[int, int, int]) -> None:
    per_scope, tombstones, scopes = caps
    kept = Kept(limits=CompactionLimits(tombstones_per_scope=per_scope, tombstones=tombstones, scopes=scopes))
    for revision, selector in enumerate(selectors, start=1):
        keep(kept, selector, revision)
    assert floors_of(list(enumerate(selectors, start=1)), *caps) == (kept.floor, kept.floors)
