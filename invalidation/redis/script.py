"""How the log's script is called: its text, the keys of a fleet, and the arguments that every verb takes."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import astuple
from importlib import resources

from invalidation.log import LogLimits
from kv_types.errors import InvalidArgumentError
from kv_types.limits import FLEET_NAME_BYTES_MAX

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
    "known",
)
"""In the order of the script's KEYS."""

_FLEET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@functools.cache
def script_text() -> str:
    """Text of the script, which stands beside this module."""
    return resources.files("invalidation.redis").joinpath("log.lua").read_text()


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
    verb: str, *rest: bytes, incarnation: bytes, replicas: int, limits: LogLimits
) -> list[bytes]:
    """Arguments of one call. `incarnation` (16 random bytes) and `replicas` are those of an incarnation that may begin."""
    return [
        verb.encode(),
        incarnation.hex().encode(),
        b"%d" % replicas,
        _encoded(limits),
        *rest,
    ]


@functools.cache
def _encoded(limits: LogLimits) -> bytes:
    return b",".join(b"%d" % limit for limit in astuple(limits))
