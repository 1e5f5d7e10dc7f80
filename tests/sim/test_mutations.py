"""Each breach of a rule is found by the seed that was found for it. Seeds are looked for by `make sim-hunt`."""

from __future__ import annotations

import pytest

from tests.sim.mutations.hunt import is_clean, replay
from tests.sim.mutations.mutation import Mutation
from tests.sim.mutations.patching import texts_of
from tests.sim.mutations.table import MUTATIONS, found

FOUND = found()
NEXT = 40
"""Seeds tried after the one that is noted: a change of the product moves what happens when, and with it who finds what."""


def _number(mutation: Mutation) -> str:
    return mutation.number


@pytest.mark.parametrize("mutation", MUTATIONS, ids=_number)
def test_its_patch_fits(mutation: Mutation) -> None:
    """Apart from the seeds, since it takes no time: whoever changes what a patch changes runs it alone."""
    assert texts_of(mutation), "a mutation changes something"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=_number)
def test_a_seed_finds_it(mutation: Mutation) -> None:
    noted = FOUND.get(mutation.number)
    assert noted is not None, "nothing finds it: make sim-hunt"
    finding = replay(mutation.number, noted.seed, noted.seed + NEXT)
    assert finding is not None, (
        f"seed {noted.seed} finds it no longer: make sim-hunt MUTATIONS={mutation.number!r}"
    )
    assert finding.validator in mutation.breaks


def test_those_seeds_break_nothing_of_the_product_itself() -> None:
    assert is_clean(*{finding.seed for finding in FOUND.values()})
