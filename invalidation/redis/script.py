"""How the log's script is called: its text, the keys of a fleet, and the arguments that every verb takes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import astuple
from importlib import resources

from cache_l3.key_space import check_fleet
from invalidation.log import LogLimits

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


@functools.cache
def script_text() -> str:
    """Text of the script, which stands beside this module."""
    return resources.files("invalidation.redis").joinpath("log.lua").read_text()


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
