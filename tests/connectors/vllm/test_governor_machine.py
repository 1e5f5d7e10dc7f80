"""Nothing that a record selected is served by a look-up that was invoked after its fence, whatever happens in between."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.connectors.vllm.governed_machine import GovernedEngine

TestGovernedEngine = GovernedEngine.TestCase
TestGovernedEngine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
