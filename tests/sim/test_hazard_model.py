"""The hazard model: what the sources do pins pages on x86 and with loads and stores reordered; what is left out is found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.sim.hazard_model import BROKEN, Order, Protocol, hazards, protocol_of, views_and_copies
from tests.sim.shared_memory_steps import read_steps

PROTOCOL = protocol_of(read_steps())
BOTH = (Order.X86, Order.WEAK)
WEAK = (Order.WEAK,)


def without(steps: Sequence[str], name: str) -> tuple[str, ...]:
    assert name in steps
    return tuple(step for step in steps if step != name)


def moved(steps: Sequence[str], name: str, *, before: str) -> tuple[str, ...]:
    rest = list(without(steps, name))
    rest.insert(rest.index(before), name)
    return tuple(rest)


def relaxed(name: str) -> Protocol:
    assert PROTOCOL.orders[name] != "relaxed"
    return PROTOCOL._replace(orders={**PROTOCOL.orders, name: "relaxed"})


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("revocable", [False, True])
def test_one_hazard_keeps_both_pages_from_being_refilled_under_their_reader(
    order: Order, revocable: bool
) -> None:
    outcome = hazards(PROTOCOL, order, scans=3, revocable=revocable)
    assert outcome.broken is None, outcome.trace
    assert outcome.states > 10_000


LOOK, REUSE = PROTOCOL.look, PROTOCOL.reuse
LEFT_OUT: dict[str, tuple[Protocol, Sequence[Order]]] = {
    "the hazard": (PROTOCOL._replace(look=without(LOOK, "store hazard")), BOTH),
    "the reader's fence": (PROTOCOL._replace(look=without(LOOK, "fence")), BOTH),
    "the second look": (PROTOCOL._replace(look=without(LOOK, "re-check")), BOTH),
    "the second look behind the fence": (
        PROTOCOL._replace(look=moved(LOOK, "re-check", before="fence")),
        BOTH,
    ),
    # A hazard whose deepest page has gone names whatever took its entry: the parent was not pinned by it.
    "another look at what is left": (
        PROTOCOL._replace(look=(*without(LOOK, "again"), "narrow")),
        BOTH,
    ),
    # A scan looks at one word after the other: at the new one before it is stored, at the old one after it is cleared.
    "the word in which a cover shrinks": (PROTOCOL._replace(look=(*LOOK, "move")), BOTH),
    "the sidecar's fence": (PROTOCOL._replace(reuse=without(REUSE, "fence")), BOTH),
    "the scan": (PROTOCOL._replace(reuse=without(REUSE, "scan")), BOTH),
    "the scan behind the fence": (PROTOCOL._replace(reuse=moved(REUSE, "scan", before="fence")), BOTH),
    "the fence behind hiding": (PROTOCOL._replace(reuse=moved(REUSE, "fence", before="hide")), BOTH),
    "the walk": (PROTOCOL._replace(reuse=without(REUSE, "towards the root")), BOTH),
    "a copy's check": (PROTOCOL._replace(copy=without(PROTOCOL.copy, "check")), BOTH),
    "a copy's fence": (PROTOCOL._replace(copy=without(PROTOCOL.copy, "fence")), WEAK),
    "the second load of a generation": (
        PROTOCOL._replace(match=without(PROTOCOL.match, "load again")),
        BOTH,
    ),
    "the fence before it": (PROTOCOL._replace(match=without(PROTOCOL.match, "fence")), WEAK),
    "acquire in the walk": (relaxed("walk"), WEAK),
    "release of what is published": (relaxed("publish"), WEAK),
    "release of a smaller cover": (relaxed("narrow"), WEAK),
    "release of a cleared hazard": (relaxed("clear"), WEAK),
    "acquire in the scan": (relaxed("scan"), WEAK),
}
"""What is taken away, and in which orders that is found. x86 does by itself what the others are there for."""


@pytest.mark.parametrize("what", LEFT_OUT)
def test_each_step_fence_and_order_matters(what: str) -> None:
    protocol, orders = LEFT_OUT[what]
    for order in orders:
        outcome = views_and_copies(protocol, order)
        assert outcome.broken == BROKEN
        assert outcome.trace
    if orders == WEAK:
        assert views_and_copies(protocol, Order.X86).broken is None


@pytest.mark.parametrize("name", ["store hazard", "hide"])
def test_what_a_fence_orders_needs_no_release_of_its_own(name: str) -> None:
    """Here at least: the language asks for one where a hazard takes the place of another thread's that was cleared."""
    assert views_and_copies(relaxed(name), Order.WEAK).broken is None


def test_a_generation_must_not_come_round() -> None:
    assert hazards(PROTOCOL, Order.X86, scans=2, generations=4, revocable=True).broken == BROKEN
