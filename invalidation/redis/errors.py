"""Why the log did not answer, and what to do about it."""

from __future__ import annotations

from cache_l3.errors import explain, reason_of
from invalidation.log import LogUnavailableError

RIGHTS = (
    "give its user the right to EVAL, EVALSHA, INFO, WAIT and XREAD and to the script's commands on the log's keys: "
    "ACL SETUSER <user> ~stratakv:* +@read +@write +eval +evalsha +info +wait"
)
_REMEDIES = {
    "denied": RIGHTS,
    "version": "use Redis 6.2 or later, or Valkey",
    "full": "let its pages be evicted: CONFIG SET maxmemory-policy volatile-lru",
    "disk": "look at its disk: it refuses writes until it can save again",
}


def unavailable(error: Exception, *, server: str, hint: str = "") -> LogUnavailableError:
    """What is raised for an error met on the way to a server, or in its reply; `hint` is for one without a known remedy."""
    return LogUnavailableError(reason_of(error), explain(error, server=server, remedies=_REMEDIES, hint=hint))
