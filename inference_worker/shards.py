"""One question for all shards of a tensor-parallel group: how many pages each of them could be served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inference_worker.chains import packed_chain
from inference_worker.deadlines import Deadline
from inference_worker.link import Link
from inference_worker.namespaces import RegisteredNamespace
from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.ids import KEY_BYTES
from kv_types.limits import LOAD_ROWS_MAX
from kv_types.outcomes import Hit, LookUpOutcome, Miss, MissReason, Pending, Tier
from kv_types.page_keys import Keys

Shard = tuple[RegisteredNamespace, bytes]


def checked_shards(shards: Sequence[tuple[RegisteredNamespace, Keys]]) -> list[Shard]:
    """Return the shards with packed keys. Raises InvalidArgumentError, LimitExceededError."""
    packed = [(namespace, packed_chain(keys, 0)[0]) for namespace, keys in shards]
    if not packed:
        raise InvalidArgumentError("a group has one shard at least")
    if len(packed) > LOAD_ROWS_MAX:
        raise LimitExceededError(f"a group of {len(packed)} shards; at most {LOAD_ROWS_MAX} are allowed")
    lengths = {len(keys) // KEY_BYTES for _, keys in packed}
    if len(lengths) > 1:
        raise InvalidArgumentError(
            f"shards of one group have chains of one length; these have {min(lengths)} to {max(lengths)} pages"
        )
    return packed


def match_shards(link: Link, shards: Sequence[Shard], deadline: Deadline) -> LookUpOutcome:
    """Tell how many pages all shards have, after a load of what some of them lack."""
    for namespace, _ in shards:
        if namespace.uncacheable is not None:
            return Miss(MissReason.UNCACHEABLE)
        if namespace.pages is namespace.absent:
            reached = link.acquire(namespace, deadline)
            if isinstance(reached, MissReason):
                return Miss(reached)
    found, reason = _common(shards)
    if reason is not MissReason.ABSENT or not deadline.may_wait:
        return _outcome(found, reason)
    staged = link.stage_group(shards, found, deadline)
    if staged is None:
        return _outcome(found, reason)
    now, ended_by = _common(shards)
    if ended_by is MissReason.ABSENT:
        ended_by = staged.reason or ended_by
    came = max(0, now - found) if staged.l3_from is not None else 0
    outcome = _outcome(now, ended_by, pages_l3=came)
    return outcome if isinstance(outcome, Pending) else replace(outcome, load=staged.decision)


def _common(shards: Sequence[Shard]) -> tuple[int, MissReason]:
    """How many pages the shard has that has the fewest, and why it has no more."""
    shortest, reason = len(shards[0][1]) // KEY_BYTES, MissReason.NONE
    for namespace, packed in shards:
        match namespace.pages.match(packed, 0):
            case Hit(pages=pages, ended_by=ended_by):
                if pages < shortest:
                    shortest, reason = pages, ended_by
            case Miss(reason=ended_by):
                return 0, ended_by
            case _:
                return 0, MissReason.ABSENT
    return shortest, reason


def _outcome(pages: int, reason: MissReason, *, pages_l3: int = 0) -> LookUpOutcome:
    if not pages and reason is not MissReason.NONE:
        return Miss(reason)
    return Hit(pages, Tier.L3 if pages_l3 else Tier.L2, reason, pages_l3)
