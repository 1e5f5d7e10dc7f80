"""Which L3 a sidecar has, by its settings, and what is made of it: connections, record store, and the bounds of loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cache_l3.address import RedisServers, parse_servers
from cache_l3.data_path import DataPath
from cache_l3.lossy_tally import LossyTally
from cache_l3.redis_store import RecordStoreSettings, RedisRecordStore
from cache_l3.shard import ShardTerms
from kv_types import limits
from kv_types.clock import Clock
from kv_types.ids import NamespaceId
from kv_types.namespace import Namespace
from kv_types.record import Codec
from sidecar.config import Settings
from sidecar.l3.plan import Bounds

_SECOND_NS = 1_000_000_000
_CODECS = {"raw": Codec.RAW, "zstd": Codec.PLANES}

NamespaceOf = Callable[[NamespaceId], Namespace | None]
"""What an id stands for; None where that is not known any more."""

OFF_BY_SETTING = "it is switched off (--no-l3)"
OFF_WITHOUT_URL = "no servers are named: pages stay on this node (--l3-url)"


@dataclass(frozen=True, slots=True)
class ChosenL3:
    """The servers, or why there are none."""

    servers: RedisServers | None
    why_off: str = ""
    holds_log: bool = False
    """Whether the fleet's log is on them too."""


def choose_l3(settings: Settings, *, log_candidates: Sequence[str]) -> ChosenL3:
    """Choose by the settings; `log_candidates` are labels of the servers that the log may be on. Raises ConfigError."""
    if settings.l3_url is None:
        return ChosenL3(None, OFF_WITHOUT_URL if settings.l3 else OFF_BY_SETTING)
    servers = parse_servers(settings.l3_url)
    holds_log = any(address.label in log_candidates for address in servers.addresses)
    return ChosenL3(servers, holds_log=holds_log)


def record_store(
    chosen: ChosenL3,
    settings: Settings,
    path: DataPath,
    namespace_of: NamespaceOf,
    *,
    lossy: LossyTally,
    clock: Clock,
) -> RedisRecordStore:
    """The record store over the chosen servers."""
    assert chosen.servers is not None, "there is an L3"
    return RedisRecordStore(
        RecordStoreSettings(
            servers=chosen.servers,
            fleet=settings.fleet,
            terms=ShardTerms(
                connections=settings.l3_connections, holds_log=chosen.holds_log, reserve=settings.l3_reserve
            ),
            codec=_CODECS[settings.l3_codec],
            namespace_of=namespace_of,
            error_limit=settings.l3_error_limit,
            lossy=lossy,
        ),
        path=path,
        clock=clock,
    )


def bounds(settings: Settings) -> Bounds:
    """How much the planner takes on."""
    return Bounds(
        requests=limits.L3_LOADS_MAX,
        pages=limits.L3_PAGES_WANTED_MAX,
        flights=limits.L3_FLIGHTS_MAX,
        flight_bytes=int(settings.arena_bytes * limits.L3_FLIGHT_BYTES_FRACTION),
        run_pages=limits.L3_RUN_PAGES,
        probe_pages=limits.L3_PROBE_PAGES_MAX,
        absent_pages=limits.L3_ABSENT_MEMO_MAX,
        absent_ns=int(limits.L3_ABSENT_MEMO_S * _SECOND_NS),
        put_awaited_ns=int(limits.L3_PUT_AWAITED_S * _SECOND_NS),
        sent_ns=int(limits.L3_SENT_S_MIN * _SECOND_NS),
    )
