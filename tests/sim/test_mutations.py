"""Each breach of a rule is found by the seed that was found for it, and that seed finds nothing else (`make sim-hunt`)."""

from __future__ import annotations

import pytest

from tests.sim.mutations.hunt import is_clean, replay
from tests.sim.mutations.patching import texts_of
from tests.sim.mutations.table import MUTATIONS, Mutation, found

FOUND = found()


def _number(mutation: Mutation) -> str:
    return mutation.number


@pytest.mark.parametrize("mutation", MUTATIONS, ids=_number)
def test_its_patch_fits_and_a_seed_finds_it(mutation: Mutation) -> None:
    assert texts_of(mutation), "a mutation changes something"
    finding = FOUND.get(mutation.number)
    assert finding is not None, "nothing finds it: make sim-hunt"
    assert replay(mutation.number, finding.seed, finding.seed) == finding


def test_those_seeds_break_nothing_of_the_product_itself() -> None:
    assert is_clean(*{finding.seed for finding in FOUND.values()})
