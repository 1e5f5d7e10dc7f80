"""Breaches of the rules that tests against real servers find: each a patch, and the test that fails under it.

`python -m tests.invalidation.redis_mutations NUMBER` runs that test with the patch applied and exits as pytest does.
"""

from __future__ import annotations

import sys

import pytest

from tests.sim.mutations.mutation import Edit, Mutation
from tests.sim.mutations.patching import apply

_CONFIRMED = "            confirmed = answer.replicas == replicas and acknowledged >= replicas\n"
_REPLICAS = "tests/invalidation/test_redis_replicas.py"

MUTATIONS = {
    "25": (
        Mutation(
            "25",
            "a fence is not confirmed by replicas",
            (
                Edit(
                    "invalidation/redis/log.py",
                    _CONFIRMED,
                    _CONFIRMED.replace("= answer", '= verb == "fence" or answer'),
                ),
            ),
        ),
        "test_one_replica_lost_of_one_configured_confirms_nothing_until_k_is_lowered",
    ),
}

CAUGHT_BY = {number: test for number, (_, test) in MUTATIONS.items()}


def main(number: str) -> int:
    """Run the test that must fail."""
    mutation, test = MUTATIONS[number]
    apply(mutation)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", f"{_REPLICAS}::{test}"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
