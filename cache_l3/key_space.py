"""Keys of page records in Redis: a fleet's, spread over the slots of a Cluster by the page's own key."""

from __future__ import annotations

import re

from redis.crc import key_slot

from cache_l3.record_store import RecordName
from kv_types.errors import InvalidArgumentError
from kv_types.limits import FLEET_NAME_BYTES_MAX

_FLEET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_fleet(fleet: str) -> str:
    """Return a fleet's name; raises InvalidArgumentError on one that Redis keys can't carry."""
    if not _FLEET.fullmatch(fleet) or len(fleet) > FLEET_NAME_BYTES_MAX:
        raise InvalidArgumentError(
            f"a fleet's name is 1 to {FLEET_NAME_BYTES_MAX} letters, digits, dots, dashes or underscores and begins "
            f"with a letter or digit; got {fleet!r}"
        )
    return fleet


class KeySpace:
    """`stratakv:<fleet>:page:<namespace hex>:<key hex>`. Raises InvalidArgumentError for a name that is none of a fleet.

    There is no hash tag in it: the pages of one prompt lie on all servers of a Cluster.
    """

    def __init__(self, fleet: str) -> None:
        self._prefix = f"stratakv:{check_fleet(fleet)}:page:".encode()

    def key(self, name: RecordName) -> bytes:
        """The key under which the page's record lies."""
        return b"%b%b:%b" % (self._prefix, name.namespace.hex().encode(), name.key.hex().encode())


def slot_of(key: bytes) -> int:
    """A key's slot in a Cluster, 0 to 16383."""
    return int(key_slot(key))
