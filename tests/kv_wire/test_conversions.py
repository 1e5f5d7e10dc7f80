"""Messages and values turn into each other without loss; numbers nobody knows are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_types import limits
from kv_types.errors import InvalidArgumentError, InvalidIdentifierError, LimitExceededError, ProtocolError
from kv_types.ids import Stamp, new_log_incarnation
from kv_types.limits import COMPUTE_PAGE_S_MAX
from kv_types.loading import ComputeCost, LoadChoice, LoadDecision
from kv_types.outcomes import (
    KNOWN,
    STORED,
    Hit,
    LookUpOutcome,
    Miss,
    MissReason,
    Pending,
    PutOutcome,
    PutStatus,
    Refused,
    RefuseReason,
    Tier,
)
from kv_wire.checksum import Checksum, checksum
from kv_wire.conversions import (
    chain_keys,
    cost_from_wire,
    cost_to_wire,
    decision_from_wire,
    decision_to_wire,
    miss_reason_from_wire,
    put_from_wire,
    put_to_wire,
    row_from_wire,
    row_to_wire,
    stamp_from_wire,
    stamp_to_wire,
)
from kv_wire.gen import cache_pb2


def test_the_schemas_numbers_are_those_of_kv_types() -> None:
    for ours, theirs, prefix in (
        (MissReason, cache_pb2.MissReason, "MISS_REASON_"),
        (RefuseReason, cache_pb2.RefuseReason, "REFUSE_REASON_"),
        (PutStatus, cache_pb2.PutStatus, "PUT_STATUS_"),
    ):
        assert {f"{prefix}{item.name}": int(item) for item in ours} == dict(theirs.items())
    tiers = {f"TIER_{item.name}": int(item) for item in Tier}
    assert {**tiers, "TIER_UNSPECIFIED": 0} == dict(cache_pb2.Tier.items())


@pytest.mark.parametrize(
    "outcome",
    [Hit(3, Tier.L2, MissReason.ABSENT), Hit(5, Tier.L3), Miss(MissReason.STALE), Miss(MissReason.CLOSED)],
)
def test_rows_come_back(outcome: LookUpOutcome) -> None:
    assert row_from_wire(row_to_wire(outcome, pages_asked=5)) == outcome


def test_a_pending_row_comes_back() -> None:
    assert row_from_wire(row_to_wire(Pending(4, ticket=9), pages_asked=5)) == Pending(4, ticket=0)


def test_a_short_hit_always_says_why_it_ended() -> None:
    assert row_to_wire(Hit(2, Tier.L2), pages_asked=3).ended_by == cache_pb2.MISS_REASON_ABSENT


@pytest.mark.parametrize("outcome", [STORED, KNOWN, *(Refused(reason) for reason in RefuseReason)])
def test_put_outcomes_come_back(outcome: PutOutcome) -> None:
    assert put_from_wire(put_to_wire(outcome)) == outcome


def test_numbers_of_a_later_version_are_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="99"):
        miss_reason_from_wire(99)
    with pytest.raises(ProtocolError, match="put outcome"):
        put_from_wire(cache_pb2.PutOutcome(status=2, reason=99))  # type: ignore[arg-type]
    tiers = [cache_pb2.TierPages(tier=7, pages=1)]  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="tier"):
        row_from_wire(cache_pb2.RowOutcome(pages=1, tiers=tiers))


def test_stamps_come_back() -> None:
    stamp = Stamp(new_log_incarnation(), 2**63)
    message = stamp_to_wire(stamp)
    assert message is not None
    assert stamp_from_wire(message) == stamp
    assert stamp_to_wire(None) is None
    with pytest.raises(InvalidIdentifierError):
        stamp_from_wire(cache_pb2.Stamp(incarnation=b"short"))


@pytest.mark.parametrize("size", [0, 1, 31, 33, 63])
def test_torn_chains_are_refused(size: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{size} bytes"):
        chain_keys(b"k" * size)


def test_chains_are_bounded() -> None:
    assert chain_keys(bytes(32 * limits.CHAIN_PAGES_MAX))
    with pytest.raises(LimitExceededError, match=str(limits.CHAIN_PAGES_MAX)):
        chain_keys(bytes(32 * (limits.CHAIN_PAGES_MAX + 1)))
    with pytest.raises(InvalidArgumentError, match="start=2"):
        chain_keys(bytes(64), start=2)


def test_checksums_are_xxh3_64_and_do_not_depend_on_the_pieces() -> None:
    assert checksum(b"") == 0x2D06800538D394C2  # the published value of XXH3-64 of nothing, seed 0
    data = bytes(range(256)) * 40
    digest = Checksum()
    for begin in range(0, len(data), 1000):
        digest.update(memoryview(data)[begin : begin + 1000])
    assert digest.value == checksum(data) != checksum(data[:-1] + b"\0")


@settings(deadline=None)
@given(st.floats(0.0, COMPUTE_PAGE_S_MAX, exclude_min=True), st.floats(0.0, COMPUTE_PAGE_S_MAX))
def test_costs_come_back(first_s: float, growth_s: float) -> None:
    message = cost_to_wire(ComputeCost(first_s, growth_s))
    assert message is not None
    assert cost_from_wire(message) == ComputeCost(first_s, growth_s)
    assert cost_to_wire(None) is None


@pytest.mark.parametrize(
    ("first_s", "growth_s"), [(0.0, 0.0), (float("nan"), 0.0), (1.0, -1.0), (1e300, 0.0)]
)
def test_a_cost_that_is_none_is_the_callers_mistake(first_s: float, growth_s: float) -> None:
    with pytest.raises(InvalidArgumentError, match="compute"):
        cost_from_wire(cache_pb2.ComputeCost(first_s=first_s, growth_s=growth_s))


@pytest.mark.parametrize("choice", LoadChoice, ids=lambda choice: choice.name)
def test_choices_come_back(choice: LoadChoice) -> None:
    made = LoadDecision(choice, 9, 3, 0.5, 0.25)
    message = decision_to_wire(made)
    assert message is not None
    assert decision_from_wire(message) == made
    assert decision_to_wire(None) is None
    assert cache_pb2.LoadChoice.Name(int(choice)) == f"LOAD_CHOICE_{choice.name}"


def test_a_choice_of_another_version_is_named() -> None:
    with pytest.raises(ProtocolError, match="99"):
        decision_from_wire(cache_pb2.LoadDecision(choice=99))  # type: ignore[arg-type]
