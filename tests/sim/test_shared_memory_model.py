"""The shared-memory models: what the sources do keeps every promise, and what is left out or moved is found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.sim.keep_model import keeping, leaving
from tests.sim.shared_memory_model import Outcome, claims, header
from tests.sim.shared_memory_steps import Steps, read_steps

STEPS = read_steps()
FENCE = "a look-up invoked after the fence got the page"
STAMP = "a look-up got the page under the view that had taken it"
KEEP = "an engine serves on below a sidecar that a fence gives up"
LEFT = "an engine serves on below a sidecar that has left"
ENGINE = "an engine served what was hidden after the acknowledgement"


def without(steps: Sequence[str], *names: str) -> tuple[str, ...]:
    assert set(names) <= set(steps)
    return tuple(step for step in steps if step not in names)


def moved(steps: Sequence[str], name: str, *, before: str) -> tuple[str, ...]:
    rest = list(without(steps, name))
    rest.insert(rest.index(before), name)
    return tuple(rest)


def of_header(**changes: Sequence[str]) -> Outcome:
    return header(**{"sidecar": STEPS.sidecar, "look": STEPS.look, "read": STEPS.read, **changes})


def test_the_sources_take_the_steps_that_the_models_were_written_for() -> None:
    expected = Steps(
        look=(
            "load F", "load view", "walk", "again", "store hazard", "fence", "re-check", "clock", "view again",
        ),
        copy=("copy", "fence", "check"),
        match=("load", "fields", "fence", "load again"),
        reuse=("hide", "fence", "scan", "towards the root", "free"),
        orders={
            "walk": "acquire", "publish": "release", "hide": "release", "store hazard": "release",
            "narrow": "release", "clear": "release", "scan": "acquire",
        },
        publish=("tag 0", "body", "tag", "view", "fence"),
        read=("tag", "body", "tag again"),
        claim=("claim", "fence", "load view", "closed"),
        close=("close", "fence"),
        goodbye=("look", "tell", "leave"),
        attach=("take back",),
        end=("take back",),
        grant=("same clients", "some left", "confirmed"),
        sidecar=("judge", "hide", "tag 0", "body", "tag", "view", "fence", "acknowledge", "freshness"),
    )  # fmt: skip
    assert expected == STEPS


def test_the_header_keeps_the_fence_and_stamps_are_sound() -> None:
    outcome = of_header()
    assert outcome.broken is None, outcome.trace
    assert outcome.states > 10_000


@pytest.mark.parametrize(
    ("sidecar", "broken"),
    [
        (moved(STEPS.sidecar, "freshness", before="hide"), FENCE),
        (moved(STEPS.sidecar, "freshness", before="view"), FENCE),
        (moved(STEPS.sidecar, "view", before="hide"), STAMP),
        (moved(STEPS.sidecar, "acknowledge", before="hide"), FENCE),
        (moved(STEPS.sidecar, "acknowledge", before="view"), FENCE),
        (without(STEPS.sidecar, "hide"), STAMP),
        (without(STEPS.sidecar, "tag 0"), STAMP),
        (
            moved(STEPS.sidecar, "tag", before="body"),
            None,
        ),  # whoever looks for the record before finds another tag
        (moved(STEPS.sidecar, "view", before="tag 0"), None),  # the tag says that the record isn't there yet
    ],
)
def test_the_order_of_the_sidecars_steps_matters(sidecar: Sequence[str], broken: str | None) -> None:
    assert of_header(sidecar=sidecar).broken == broken


@pytest.mark.parametrize(
    ("look", "broken"),
    [
        (without(STEPS.look, "clock"), FENCE),
        (without(STEPS.look, "view again"), None),  # a second line, as long as F is loaded first
        (without(moved(STEPS.look, "load view", before="load F"), "view again"), FENCE),
        (moved(STEPS.look, "load view", before="load F"), None),  # then the second line holds
    ],
)
def test_a_look_up_loads_freshness_before_the_view(look: Sequence[str], broken: str | None) -> None:
    assert of_header(look=look).broken == broken


@pytest.mark.parametrize(
    ("names", "broken"),
    [
        (("tag again",), STAMP),
        (("tag", "tag again"), STAMP),
        (
            ("tag",),
            None,
        ),  # which tag to find is known: to look afterwards is enough, to look before saves the reading
    ],
)
def test_a_record_of_the_ring_is_checked_after_it_is_read(names: Sequence[str], broken: str | None) -> None:
    assert of_header(read=without(STEPS.read, *names)).broken == broken


def test_an_engine_that_claims_freshness_is_seen_or_sees() -> None:
    assert claims(client=STEPS.claim, sidecar=STEPS.publish).broken is None
    for client, sidecar in (
        (without(STEPS.claim, "fence"), STEPS.publish),
        (moved(STEPS.claim, "load view", before="claim"), STEPS.publish),
        (without(STEPS.claim, "claim"), STEPS.publish),
        (STEPS.claim, without(STEPS.publish, "fence")),
    ):
        assert claims(client=client, sidecar=sidecar).broken == ENGINE


def test_who_claims_is_seen_by_a_sidecar_that_leaves_or_sees_that_it_does() -> None:
    outcome = leaving(client=STEPS.claim, close=STEPS.close, goodbye=STEPS.goodbye)
    assert outcome.broken is None, outcome.trace
    assert outcome.states > 30
    for client, close, goodbye in (
        (without(STEPS.claim, "claim"), STEPS.close, STEPS.goodbye),
        (without(STEPS.claim, "fence"), STEPS.close, STEPS.goodbye),
        (without(STEPS.claim, "closed"), STEPS.close, STEPS.goodbye),
        (moved(STEPS.claim, "closed", before="claim"), STEPS.close, STEPS.goodbye),
        (STEPS.claim, without(STEPS.close, "fence"), STEPS.goodbye),
        (STEPS.claim, without(STEPS.close, "close"), STEPS.goodbye),
        (STEPS.claim, STEPS.close, without(STEPS.goodbye, "look")),
        (STEPS.claim, STEPS.close, moved(STEPS.goodbye, "leave", before="look")),
    ):
        assert leaving(client=client, close=close, goodbye=goodbye).broken == LEFT


def test_who_serves_without_limit_is_known_to_the_log_when_the_sidecar_dies() -> None:
    outcome = keeping(attach=STEPS.attach, end=STEPS.end, grant=STEPS.grant)
    assert outcome.broken is None, outcome.trace
    assert outcome.states > 100
    for attach, end, grant in (
        ((), (), STEPS.grant),  # either of the two is enough where the log counts some at all
        (STEPS.attach, STEPS.end, without(STEPS.grant, "same clients")),
        (STEPS.attach, STEPS.end, without(STEPS.grant, "confirmed")),
    ):
        assert keeping(attach=attach, end=end, grant=grant).broken == KEEP
