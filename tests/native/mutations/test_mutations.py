"""Every breach of the shared-memory rules in the table is found, by what the table says and for the reason it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.mutations.table import CAUGHT_BY, MUTATIONS, Edit, Model, Mutation, Stress
from tests.native.mutations.workshop import COMPILER, PatchDoesNotApply, Workshop, patched_tree, run_stress
from tests.sim.hazard_model import Order, protocol_of, views_and_copies
from tests.sim.keep_model import leaving
from tests.sim.shared_memory_model import Outcome, claims, header
from tests.sim.shared_memory_steps import Steps, read_steps

OWN = {"15", "16", "17", "29", "30", "31", "32", "34"}
"""Numbers of the mutations whose rules live in shared memory."""
BY_MODEL = [mutation for mutation in MUTATIONS if isinstance(mutation.found_by, Model)]
BY_STRESS = [mutation for mutation in MUTATIONS if isinstance(mutation.found_by, Stress)]

MODELS: dict[str, Callable[[Steps], Outcome]] = {
    "header": lambda steps: header(sidecar=steps.sidecar, look=steps.look, read=steps.read),
    "hazards": lambda steps: views_and_copies(protocol_of(steps), Order.X86),
    "hazards reordered": lambda steps: views_and_copies(protocol_of(steps), Order.WEAK),
    "leaving": lambda steps: leaving(client=steps.claim, close=steps.close, goodbye=steps.goodbye),
    "claims": lambda steps: claims(client=steps.claim, sidecar=steps.publish),
}

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler: set CXX")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


def name_of(mutation: Mutation) -> str:
    return mutation.number


def test_the_table_is_whole() -> None:
    assert {number.partition(",")[0] for number in CAUGHT_BY} == OWN | {"R3", "R17", "R18", "I5"}
    assert len(CAUGHT_BY) == len(MUTATIONS)


def test_a_patch_that_does_not_apply_says_so(tmp_path: Path) -> None:
    with pytest.raises(PatchDoesNotApply, match="0 times"):
        patched_tree(tmp_path, [Edit("invalidation/follower.py", "not there", "")])


def test_the_models_find_nothing_in_the_sources_as_they_are(tmp_path: Path) -> None:
    steps = read_steps(patched_tree(tmp_path))
    for name, model in MODELS.items():
        assert model(steps).broken is None, name


@pytest.mark.parametrize("mutation", BY_MODEL, ids=name_of)
def test_a_model_finds(mutation: Mutation, tmp_path: Path) -> None:
    assert isinstance(mutation.found_by, Model)
    outcome = MODELS[mutation.found_by.name](read_steps(patched_tree(tmp_path, mutation.edits)))
    assert outcome.broken == mutation.found_by.message, mutation.title
    assert outcome.trace


@needs_compiler
def test_the_stress_test_finds_nothing_in_the_sources_as_they_are(workshop: Workshop, tmp_path: Path) -> None:
    done = run_stress(workshop.stress(patched_tree(tmp_path)), seconds=2)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "PASSED"), done.stdout + done.stderr


@needs_compiler
@pytest.mark.parametrize("mutation", BY_STRESS, ids=name_of)
def test_the_stress_test_finds(mutation: Mutation, workshop: Workshop, tmp_path: Path) -> None:
    assert isinstance(mutation.found_by, Stress)
    program = workshop.stress(patched_tree(tmp_path, mutation.edits), mutation.found_by.rebuilt)
    done = run_stress(program)
    assert done.returncode == 1, f"{mutation.title}: {done.stdout}{done.stderr}"
    assert any(message in done.stderr for message in mutation.found_by.messages), done.stderr
