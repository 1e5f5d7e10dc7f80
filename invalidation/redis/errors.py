"""Why the log did not answer, and what to do about it."""

from __future__ import annotations

from redis.exceptions import MovedError

from cache_l3.connections import REMEDIES
from cache_l3.errors import explain, reason_of
from invalidation.log import LogUnavailableError

RIGHTS = (
    "give its user the right to EVAL, EVALSHA, INFO, WAIT and XREAD and to the script's commands on the log's keys: "
    "ACL SETUSER <user> ~stratakv:* +@read +@write +eval +evalsha +info +wait, "
    "in a Cluster also +cluster|slots"
)
_REMEDIES = {
    "denied": RIGHTS,
    "full": "let its pages be evicted: CONFIG SET maxmemory-policy volatile-lru",
    **{reason: REMEDIES[reason] for reason in ("version", "disk", "moved")},
}


class MovedElsewhereError(LogUnavailableError):
    """The log's slot is another server's: `redirect` is `MOVED slot host:port`. Nothing was carried out."""

    def __init__(self, detail: str, redirect: str) -> None:
        super().__init__("moved", detail)
        self.redirect = redirect


def unavailable(error: Exception, *, server: str, hint: str = "") -> LogUnavailableError:
    """What is raised for an error met on the way to a server, or in its reply; `hint` is for one without a known remedy."""
    said = explain(error, server=server, remedies=_REMEDIES, hint=hint)
    if isinstance(error, MovedError):
        return MovedElsewhereError(said, f"MOVED {error.slot_id} {error.host}:{error.port}")
    return LogUnavailableError(reason_of(error), said)
