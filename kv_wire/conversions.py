"""Conversions between protobuf messages and kv_types values; what comes from outside is checked here."""

from __future__ import annotations

from kv_types import limits
from kv_types.errors import InvalidArgumentError, LimitExceededError, ProtocolError
from kv_types.ids import KEY_BYTES, Stamp, log_incarnation
from kv_types.loading import ComputeCost, LoadChoice, LoadDecision
from kv_types.outcomes import (
    Hit,
    Known,
    LookUpOutcome,
    Miss,
    MissReason,
    Pending,
    PutOutcome,
    PutStatus,
    Refused,
    RefuseReason,
    Tier,
    put_outcome,
)
from kv_wire.gen import cache_pb2


def stamp_to_wire(stamp: Stamp | None) -> cache_pb2.Stamp | None:
    """Return the message of a stamp; None stays None (the field is left out)."""
    if stamp is None:
        return None
    return cache_pb2.Stamp(incarnation=stamp.incarnation, revision=stamp.revision)


def stamp_from_wire(message: cache_pb2.Stamp) -> Stamp:
    """Return the stamp of a message; raises InvalidIdentifierError when the incarnation is not 16 bytes."""
    return Stamp(incarnation=log_incarnation(message.incarnation), revision=message.revision)


def chain_keys(keys: bytes, *, start: int = 0) -> bytes:
    """Check a chain's packed keys and how many of them come before `start`; returns the keys.

    Raises InvalidArgumentError for a torn or empty chain or a start behind its end, LimitExceededError above
    CHAIN_PAGES_MAX.
    """
    pages, rest = divmod(len(keys), KEY_BYTES)
    if rest or not pages:
        raise InvalidArgumentError(
            f"a chain is one or more keys of {KEY_BYTES} bytes each, concatenated; got {len(keys)} bytes"
        )
    if pages > limits.CHAIN_PAGES_MAX:
        raise LimitExceededError(
            f"a chain has at most {limits.CHAIN_PAGES_MAX} pages; got {pages}; ask for a shorter prefix"
        )
    if start >= pages:
        raise InvalidArgumentError(
            f"start={start} is behind the chain's {pages} pages; nothing is left to do"
        )
    return keys


TTL_WIRE_NEVER = 0xFFFF_FFFF


def ttl_to_wire(ttl_s: int | None) -> int:
    """Return the number of a time to live: None is the sidecar's default, 0 never."""
    if ttl_s is None:
        return 0
    return TTL_WIRE_NEVER if ttl_s == 0 else ttl_s


def ttl_from_wire(number: int) -> int | None:
    """Return the time to live of a number, as `ttl_to_wire` takes it. Raises LimitExceededError."""
    if number == TTL_WIRE_NEVER:
        return 0
    if number > limits.TTL_S_MAX:
        raise LimitExceededError(f"ttl_s is at most {limits.TTL_S_MAX} (a year); got {number}")
    return number or None


def row_to_wire(outcome: LookUpOutcome, *, pages_asked: int, pending: int = 0) -> cache_pb2.RowOutcome:
    """Return the message of one row's outcome; `pages_asked` tells a whole hit from one that ended early.

    `pending`: pages after those that are served now which are being loaded.
    """
    if isinstance(outcome, Hit):
        ended_by = outcome.ended_by
        if outcome.pages < pages_asked and ended_by is MissReason.NONE:
            ended_by = MissReason.ABSENT
        tiers = [cache_pb2.TierPages(tier=int(outcome.tier), pages=outcome.pages)]  # type: ignore[arg-type]
        return cache_pb2.RowOutcome(
            pages=outcome.pages, tiers=tiers, ended_by=int(ended_by), pending_pages=pending  # type: ignore[arg-type]
        )  # fmt: skip
    if isinstance(outcome, Miss):
        return cache_pb2.RowOutcome(ended_by=int(outcome.reason), pending_pages=pending)  # type: ignore[arg-type]
    return cache_pb2.RowOutcome(pending_pages=outcome.pages, ended_by=int(MissReason.ABSENT))  # type: ignore[arg-type]


def row_from_wire(message: cache_pb2.RowOutcome) -> LookUpOutcome:
    """Return a row's outcome: a Hit under the slowest tier that serves part of it. Raises ProtocolError."""
    ended_by = miss_reason_from_wire(message.ended_by)
    if message.pages:
        try:
            tier = max((Tier(part.tier) for part in message.tiers if part.pages), default=Tier.L2)
        except ValueError as error:
            raise ProtocolError(
                f"the answer names a tier that this version does not know: {error}"
            ) from error
        return Hit(pages=message.pages, tier=tier, ended_by=ended_by)
    if message.pending_pages:
        return Pending(pages=message.pending_pages, ticket=0)
    return Miss(ended_by)


def miss_reason_from_wire(number: int) -> MissReason:
    """Return the miss reason of a number; raises ProtocolError for one of no known meaning."""
    try:
        return MissReason(number)
    except ValueError as error:
        raise ProtocolError(
            f"the answer gives the miss reason {number}, which this version does not know"
        ) from error


def cost_to_wire(cost: ComputeCost | None) -> cache_pb2.ComputeCost | None:
    """Return the message of what computing pages takes; None: it is not told."""
    return None if cost is None else cache_pb2.ComputeCost(first_s=cost.first_s, growth_s=cost.growth_s)


def cost_from_wire(message: cache_pb2.ComputeCost) -> ComputeCost:
    """Return what computing pages takes. Raises InvalidArgumentError."""
    return ComputeCost(message.first_s, message.growth_s)


def decision_to_wire(made: LoadDecision | None) -> cache_pb2.LoadDecision | None:
    """Return the message of a choice between loading and computing."""
    if made is None:
        return None
    return cache_pb2.LoadDecision(
        choice=int(made.choice), pages=made.pages, pages_chosen=made.pages_chosen, load_s=made.load_s,  # type: ignore[arg-type]
        compute_s=made.compute_s,
    )  # fmt: skip


def decision_from_wire(message: cache_pb2.LoadDecision) -> LoadDecision:
    """Return such a choice; raises ProtocolError for one of no known meaning."""
    try:
        choice = LoadChoice(message.choice)
    except ValueError as error:
        raise ProtocolError(
            f"the answer gives the choice {message.choice}, which this version does not know"
        ) from error
    return LoadDecision(choice, message.pages, message.pages_chosen, message.load_s, message.compute_s)


def put_to_wire(outcome: PutOutcome) -> cache_pb2.PutOutcome:
    """Return the message of what became of one page."""
    if isinstance(outcome, Refused):
        status, reason = PutStatus.REFUSED, outcome.reason
    else:
        status = PutStatus.KNOWN if isinstance(outcome, Known) else PutStatus.STORED
        reason = RefuseReason.NONE
    return cache_pb2.PutOutcome(status=int(status), reason=int(reason))  # type: ignore[arg-type]


def put_from_wire(message: cache_pb2.PutOutcome) -> PutOutcome:
    """Return what became of one page; raises ProtocolError for numbers of no known meaning."""
    try:
        return put_outcome(message.status, message.reason)
    except ValueError as error:
        raise ProtocolError(
            f"the answer holds a put outcome that this version does not know: {error}"
        ) from error
