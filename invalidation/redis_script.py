"""How the log's script is called: its text, the keys of a fleet, and the arguments that every verb takes."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from importlib import resources

from kv_types.errors import InvalidArgumentError
from kv_types.limits import (
    FLEET_MEMBERS_MAX,
    FLEET_NAME_BYTES_MAX,
    FLEET_NAMESPACES_MAX,
    LOG_BATCH_RECORDS_MAX,
    LOG_RECORDS_KEPT_MAX,
    LOG_REQUESTS_KEPT_MAX,
    LOG_SCOPES_MAX,
    LOG_TOMBSTONES_MAX,
    LOG_TOMBSTONES_PER_SCOPE_MAX,
    LOG_WEIGHTS_MAX,
)

KEY_NAMES = (
    "state",
    "stream",
    "tombstones",
    "floors",
    "scopes",
    "members",
    "requests",
    "weights",
    "namespaces",
)
"""In the order of the script's KEYS."""

_FLEET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLimits:
    """What bounds the log, in the order in which the script reads it. Tests make it smaller."""

    records: int = LOG_RECORDS_KEPT_MAX
    batch: int = LOG_BATCH_RECORDS_MAX
    per_scope: int = LOG_TOMBSTONES_PER_SCOPE_MAX
    tombstones: int = LOG_TOMBSTONES_MAX
    scopes: int = LOG_SCOPES_MAX
    requests: int = LOG_REQUESTS_KEPT_MAX
    weights: int = LOG_WEIGHTS_MAX
    namespaces: int = FLEET_NAMESPACES_MAX
    members: int = FLEET_MEMBERS_MAX

    def encode(self) -> bytes:
        """As the script takes it."""
        return b",".join(b"%d" % limit for limit in astuple(self))


@functools.cache
def script_text() -> str:
    """Text of the script, which stands beside this module."""
    return resources.files("invalidation").joinpath("log.lua").read_text()


def check_fleet(fleet: str) -> str:
    """Return a fleet's name; raises InvalidArgumentError on one that Redis keys can't carry."""
    if not _FLEET.fullmatch(fleet) or len(fleet) > FLEET_NAME_BYTES_MAX:
        raise InvalidArgumentError(
            f"a fleet's name is 1 to {FLEET_NAME_BYTES_MAX} letters, digits, dots, dashes or underscores and begins "
            f"with a letter or digit; got {fleet!r}"
        )
    return fleet


def script_keys(fleet: str) -> Sequence[str]:
    """Keys of a fleet's log, all in one hash slot; raises InvalidArgumentError on a bad name."""
    return [f"stratakv:{{{check_fleet(fleet)}}}:log:{name}" for name in KEY_NAMES]


def script_arguments(
    verb: str, *rest: bytes, incarnation: bytes, replicas: int, limits: ScriptLimits
) -> list[bytes]:
    """Arguments of one call. `incarnation` (16 random bytes) and `replicas` are those of an incarnation that may begin."""
    return [verb.encode(), incarnation.hex().encode(), b"%d" % replicas, limits.encode(), *rest]
