"""The settings of the daemon: one model that knows every key, its meaning, its default and its bounds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from cache_l2 import numa
from cache_l2.huge_pages import HugePages
from kv_policy.eviction_choice import EvictionChoice
from kv_types import limits
from kv_types.errors import ConfigError
from kv_types.operator_limits import PIN_QUOTA_DEFAULT
from kv_wire.addresses import default_runtime_dir, host_and_port
from sidecar.tenant_shares import format_shares, parse_shares
from sidecar.units import format_duration, format_size, parse_duration, parse_size

ENVIRONMENT_PREFIX = "STRATAKV_"
AUTO = "auto"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SCHEMES = ("redis://", "rediss://", "unix://")
_CLUSTER_SCHEMES = ("redis+cluster://", "rediss+cluster://")
OFF = "off"
_NODE_WORDS = (numa.AUTO, numa.INTERLEAVE, numa.NONE)


def _word(word: str, otherwise: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Read `word` as None and hand everything else on."""

    def read(value: Any) -> Any:
        if value is None or (isinstance(value, str) and value.strip().lower() == word):
            return None
        return otherwise(value)

    return read


def _number(value: Any) -> Any:
    """Refuse what TOML has words for: false would count as 0, which means something else."""
    if isinstance(value, bool):
        raise ValueError("it takes a number, not true or false")  # noqa: TRY004 - pydantic reports ValueErrors
    return value


def _number_or(word: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError(f"it takes a number or {word}, not true or false")  # noqa: TRY004
        return value

    return _word(word, read)


def _path(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("it names no directory")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("a path holds no zero byte")
    return value


def _name(value: Any) -> Any:
    if not isinstance(value, str) or not _NAME.fullmatch(value) or len(value) > limits.FLEET_NAME_BYTES_MAX:
        raise ValueError(
            f"it has 1 to {limits.FLEET_NAME_BYTES_MAX} letters, digits, dots, dashes and underscores, the first of "
            "them a letter or digit"
        )
    return value


def _servers(value: Any) -> Any:
    is_text = isinstance(value, str)
    if not is_text or not (
        is_cluster(value) or all(url.strip().startswith(_SCHEMES) for url in value.split(","))
    ):
        raise ValueError(
            "it is a URL that begins with redis://, rediss:// or unix://, or several with a comma between, or servers of a "
            "Cluster by redis+cluster:// or rediss+cluster://"
        )
    from cache_l3.address import parse_servers  # noqa: PLC0415 - only whoever names servers pays for redis-py

    try:
        parse_servers(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return value


def is_cluster(urls: str) -> bool:
    """Whether what l3_url or log_url says is a Redis Cluster."""
    return urls.strip().startswith(_CLUSTER_SCHEMES)


def without_secrets(urls: str) -> str:
    """Return URLs without users and passwords, to be shown: whatever stands before the last @ of each, or as such an option."""
    shown = re.sub(r"://(?:(?!(?:rediss?(?:\+cluster)?|unix)://).)*@", "://***@", urls)
    return re.sub(r"(password=)[^&]*?(?=&|$|,\S+://)", r"\1***", shown)


def _node(value: Any) -> Any:
    text = str(value).strip().lower() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if text not in _NODE_WORDS and not text.isdecimal():
        raise ValueError(f"it takes {', '.join(_NODE_WORDS)} or the number of a node")
    return text


def _arena_size(value: Any) -> Any:
    if isinstance(value, str) and value.strip().endswith("%"):
        raise ValueError(
            f"{value!r} is not a size; for a share of the memory, write auto and set arena_share (0.5 is half of it)"
        )
    return _word(AUTO, parse_size)(value)


Directory = Annotated[Path, BeforeValidator(_path)]
Number = Annotated[int, BeforeValidator(_number)]
Size = Annotated[int, BeforeValidator(parse_size)]
SizeOrAuto = Annotated[int | None, BeforeValidator(_word(AUTO, parse_size))]
ArenaSize = Annotated[int | None, BeforeValidator(_arena_size)]
CountOrAuto = Annotated[int | None, BeforeValidator(_number_or(AUTO))]
PortOrOff = Annotated[int | None, BeforeValidator(_number_or(OFF))]
TextOrAuto = Annotated[str | None, BeforeValidator(_word(AUTO, lambda value: value))]
TextOrOff = Annotated[str | None, BeforeValidator(_word(OFF, lambda value: value))]
Duration = Annotated[float, BeforeValidator(parse_duration)]
Fraction = Annotated[float, BeforeValidator(_number)]
Shares = Annotated[dict[str, float], NoDecode, BeforeValidator(parse_shares)]
Name = Annotated[str, BeforeValidator(_name)]
NodeOrWord = Annotated[str, BeforeValidator(_node)]
ServersOrAuto = Annotated[str | None, BeforeValidator(_word(AUTO, _servers))]


class Settings(BaseSettings):
    """Everything that can be set. The docstring of a field is its documentation, everywhere."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    runtime_dir: Directory = Field(default_factory=lambda: default_runtime_dir(os.environ))
    """Directory of the sockets and the lock, made with mode 0700. Workers find the sidecar by it."""

    arena_size: ArenaSize = Field(default=2**30, ge=limits.ARENA_BYTES_MIN)
    """Host memory for pages. All of it is committed at start: an arena that does not fit is refused then. auto: by what the
    cgroups, the machine and this process's limits leave at that time (see arena_share); the log says which of them decided.
    It is no default, since what others will need on this machine later is nothing a sidecar could know. To change it, start
    the sidecar anew with another one: workers attach again by themselves, and let go of the old arena at once."""

    arena_share: Fraction = Field(default=0.5, ge=0.01, le=limits.AUTO_SHARE_MAX)
    """The part of the memory that may be had at start which an arena_size of auto takes, index included; it leaves 512 MiB at
    least, and does not start with less than 64 MiB. With explicit huge pages, all that are free are taken."""

    huge_pages: HugePages = HugePages.TRANSPARENT
    """off; transparent: those that the kernel makes by itself where the machine is set to give them to shared memory
    (/sys/kernel/mm/transparent_hugepage/shmem_enabled), small pages elsewhere; explicit: pages of 2 MiB that the machine has set
    apart (vm.nr_hugepages), and no start where they are too few; try: explicit ones where there are enough, else transparent
    ones. The log and `stratakv status` say what was got, and what to do for more. A pool that is set apart may be meant for
    somebody else, so it is not used unasked."""

    numa_node: NodeOrWord = AUTO
    """Where the arena's memory lies on a machine of several NUMA nodes: the number of the one it is bound to; interleave: on
    all of them in turn; none: wherever the kernel puts it; auto: on that of the processors that the sidecar may run on if
    that is one (others take what doesn't fit there), else interleaved, as workers of all nodes read it, unless numactl has said
    otherwise. Where a container doesn't allow this, the sidecar says so and goes on."""

    segment_size: SizeOrAuto = Field(default=None, ge=limits.SEGMENT_BYTES_MIN, le=limits.SEGMENT_BYTES_MAX)
    """Unit in which memory moves between page sizes, and the largest page; auto: by the arena's size."""

    pages_max: CountOrAuto = Field(default=None, ge=1, le=limits.ARENA_PAGES_MAX)
    """Pages that the index can hold; auto: by the arena's size."""

    pin_quota: Fraction = Field(default=PIN_QUOTA_DEFAULT, ge=0.0, le=1.0)
    """The part of the arena that pins may hold (`stratakv pin`), counted in whole slots. A pin that would take more is refused,
    and what comes under a pinned key beyond it is stored and not held."""

    tenant_shares: Shares = Field(default={})
    """Parts of the arena that tenants are sure of: none with a share is evicted below it to make room for another tenant.
    Written as tenant-a=0.3,tenant-b=0.2, as a table in a file, or as a JSON object; together 1 at most. What a tenant doesn't use
    of its share others may, until it does; all tenants without one live in what is left. See docs/pins-and-shares.md."""

    eviction_policy: EvictionChoice = EvictionChoice.LEARNED
    """By what the page is chosen that goes when memory is needed, always the tail of a chain: learned, the one that is least
    likely to be asked for again by what this workload's look-ups have shown, least recently used ones before enough have; lru,
    the least recently used one. What was learned is kept in the runtime directory and outlives a restart of the sidecar."""

    client_rows: Number = Field(default=64, ge=2, le=limits.CLIENT_ROWS_MAX)
    """Workers that can be attached at once, one row being the sidecar's own."""

    leases_per_client: Number = Field(default=16_384, ge=64, le=limits.LEASES_PER_CLIENT_MAX)
    """Leases that one worker can hold at once, each of as many pages as one look-up finds."""

    l3: bool = True
    """Whether there is anything beyond this node. Without (`--no-l3`), the invalidation log is this sidecar's own too,
    unless log_url names one."""

    l3_url: ServersOrAuto = None
    """Redis or Valkey servers that the fleet shares pages through, with a comma between: redis://, rediss:// or unix:// URLs
    of servers any of which may be the primary, and log_replicas must then say how many of them confirm; or a Cluster, by
    redis+cluster:// or rediss+cluster://, and log_replicas is how many replicas each primary has. A server that is down keeps
    nothing from starting. auto: pages stay on this node, and only the invalidation log is on a private server of this
    sidecar's own, which ends with it."""

    log_url: ServersOrAuto = None
    """Where the fleet's invalidation log is, as for l3_url; auto: where l3_url is. On a Cluster it lies on the one primary that
    has its slot. A server that is down at start does not keep the sidecar from starting: it serves no hits until the log
    answers, and says so."""

    l3_ttl: Duration = Field(default=float(limits.L3_TTL_S_DEFAULT), ge=1.0, le=float(limits.TTL_S_MAX))
    """How long a page stays in L3 that nobody stores again; whole seconds. Every page there has an end, none later than that
    of its own time to live."""

    l3_codec: Literal["raw", "zstd"] = "raw"
    """How pages are stored in L3: raw, as fast as the network is; zstd, smaller by as much as the exponents of their numbers
    compress, for a ms of a processor a MiB. Both are bit-exact, and whatever it says, pages of both kinds are read. Pages whose
    namespace says how they are stored (stored_as, which workers choose) are stored so instead."""

    l3_error_limit: Fraction = Field(default=limits.L3_ERROR_LIMIT_DEFAULT, gt=0.0, le=1.0)
    """What a page that is stored lossily may lose at most, in any layer's keys or values, by the sum of their magnitudes; a page
    that would lose more is stored as l3_codec says, and counted. 1 lets all pass."""

    l3_connections: Number = Field(
        default=limits.L3_CONNECTIONS_PER_SHARD_DEFAULT, ge=1, le=limits.L3_CONNECTIONS_PER_SHARD_MAX
    )
    """Connections to each server of L3."""

    l3_reserve: Fraction = Field(
        default=limits.L3_RESERVE_FRACTION, ge=0.0, le=limits.L3_RESERVE_FRACTION_MAX
    )
    """The part of a server's maxmemory that pages leave free where it evicts none of them, and 8 MiB at least: the log, if it
    is there, would fail in a full server, and with it every hit of the fleet."""

    l3_deadline: Duration = Field(default=limits.CALL_DEADLINE_S_DEFAULT, ge=0.01, le=limits.L3_LOAD_S_MAX)
    """How long one page may take on its way into L3, and what a call over gRPC waits for L3 at most. Workers on this node say
    themselves how long they wait."""

    l3_queue: Size = Field(default=limits.L3_STORE_QUEUE_BYTES_DEFAULT, ge=limits.PAGE_BYTES_MAX)
    """Bytes of pages that may wait to be stored in L3. They stay where they are, in the arena, and may be evicted from it
    meanwhile; what finds the queue full is not stored, and counted."""

    l3_admission: Literal["always", "second_use", "cost"] = "always"
    """Which pages go to L3. always: all that workers store; second_use: those that are asked for on this node after they were
    stored, or stored again, so that what is used once takes no room of the fleet's; cost: those whose storing is expected to take
    less time than it saves, by how often L3's pages are asked for again, what loading and computing take, and how full the
    queue is."""

    load_or_recompute: Literal["auto", "always"] = "auto"
    """Whether pages of L3 are loaded that a worker would sooner have computed. auto: a prefix is loaded as far as that takes
    less time, by what loads of late have taken and by the worker's own speed; the rest is a miss with reason compute_is_faster.
    Where a worker's speed is unknown, everything is loaded. always: everything is loaded that L3 has."""

    fleet: Name = "default"
    """Sidecars of one fleet share pages and invalidations. Several fleets can share one server."""

    log_replicas: Number = Field(default=0, ge=0, le=limits.REPLICAS_MAX)
    """Replicas that must confirm, with which a new log begins; later `stratakv replicas set` changes their number. Name
    as many as there are. With 0, a failover whose old primary lives on makes fences wrong, which nobody can notice: 0 is for
    one server without replicas, and refused where several are named, or where a Cluster's primary of the log has replicas."""

    log_deadline: Duration = Field(default=limits.CALL_DEADLINE_S_DEFAULT, ge=0.05, le=60.0)
    """How long one call of the invalidation log may take."""

    redis_memory: Size = Field(default=limits.PRIVATE_REDIS_BYTES_DEFAULT, ge=limits.PRIVATE_REDIS_BYTES_MIN)
    """Memory of a private server from which on it lets pages go; the log, which has bounds of its own, may go beyond it. Not
    taken before it is needed."""

    freshness_lease: Duration = Field(default=limits.FRESHNESS_LEASE_S_DEFAULT, ge=0.1, le=60.0)
    """How long workers go on serving hits after the invalidation log last confirmed this sidecar, which asks it four times
    as often. A fence waits so long, and some more, for a sidecar that is silent."""

    pause_bound: Duration = Field(default=limits.PAUSE_BOUND_S_DEFAULT, ge=0.0, le=3600.0)
    """The longest that a node may stand still without its boot clock noticing, as when a virtual machine is moved. What a
    fence promises holds only as long as no pause is longer."""

    drift_bound: Fraction = Field(default=limits.DRIFT_BOUND_DEFAULT, ge=0.0, le=limits.DRIFT_BOUND_MAX)
    """By which part the boot clocks of two nodes may run apart: 0.001 is one second in 1,000."""

    skew_bound: Duration = Field(default=limits.SKEW_BOUND_S_DEFAULT, ge=0.0, le=3600.0)
    """How far the wall clocks of nodes may lie apart: selectors that name times reach so much further."""

    reservation_time: Duration = Field(default=limits.RESERVATION_S_DEFAULT, ge=1.0, le=3600.0)
    """How long a worker may take from reserving places to committing the pages it filled."""

    default_ttl: Duration = Field(default=0.0, ge=0.0, le=float(limits.TTL_S_MAX))
    """Time after which a page is dropped even if there is room, unless its put says otherwise; whole
    seconds, 0: never."""

    drain_time: Duration = Field(default=limits.DRAIN_S_DEFAULT, ge=0.0, le=600.0)
    """How long running calls may take to finish after SIGTERM or SIGINT; a second signal ends at once."""

    grpc_tcp: TextOrOff = None
    """host:port to serve gRPC on beside the Unix socket, without authentication: only in a trusted network.
    Port 0 takes a free one. Other machines reach it only when an outside address is named; 0.0.0.0 is every
    interface, by IPv6 too. off: no TCP."""

    metrics_port: PortOrOff = Field(default=0, ge=0, le=65_535)
    """Port of 127.0.0.1 that serves Prometheus metrics under /metrics. 0: any free port, told at start and by
    `stratakv status`, so that several sidecars can share a machine; name a port to have it scraped. off: none."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""

    log_format: Literal["auto", "console", "json"] = "auto"
    """How log lines look: for people, or one JSON object a line; auto: console on a terminal, else JSON."""

    prefault: bool = True
    """Map all of the arena into the sidecar, so that no copy pays for a first touch later: the index before it is ready, the
    pages' memory, which is committed by then, by a thread of its own."""

    copy_kernel: TextOrAuto = None
    """Copy routine, by name; auto: the fastest one by a measurement at start."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what `sidecar.config_sources` has merged; it reads the other sources, to tell where values are from."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

    @field_validator("runtime_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        try:
            return value.expanduser().absolute()
        except RuntimeError as error:  # ~user of somebody who is not there
            raise ValueError(f"its home directory cannot be found: {error}") from error

    @field_validator("grpc_tcp")
    @classmethod
    def _host_port(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = host_and_port(value)
        if parts is None or parts[1] > limits.PORT_MAX:
            raise ValueError(
                f"{value!r} is not host:port; write for example 127.0.0.1:7420, [::1]:7420, or off"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.l3_url is not None and not self.l3:
            raise ValueError(
                "l3_url names servers and l3 is off; leave one of them out, or name log_url instead"
            )
        self._check_replicas()
        if self.segment_size is None or self.arena_size is None:
            return self
        if self.segment_size > self.arena_size:
            raise ValueError(
                f"segment_size {format_size(self.segment_size)} is larger than arena_size "
                f"{format_size(self.arena_size)}; make the arena larger or leave segment_size at auto"
            )
        return self

    @property
    def arena_bytes(self) -> int:
        """arena_size, once it is chosen where it is auto."""
        if self.arena_size is None:
            raise RuntimeError("arena_size is auto and has not been chosen yet")
        return self.arena_size

    def _check_replicas(self) -> None:
        """Raise ValueError where a failover is expected and nobody could notice that its old primary lives on (rule R10)."""
        urls = self.log_url or self.l3_url or ""
        servers = len(urls.split(","))
        # Names say nothing of replicas there: the server is asked when the log is joined.
        if is_cluster(urls):
            return
        if servers > 1 and self.log_replicas == 0:
            name = "log_url" if self.log_url is not None else "l3_url"
            raise ValueError(
                f"{name} names {servers} servers and log_replicas is 0: whoever names several expects a failover, and after "
                "one whose old primary lives on, a sidecar that still reaches that one would go on serving what fences call "
                "hidden. Say how many replicas must confirm, as many as there are: "
                f"--log-replicas {min(servers - 1, limits.REPLICAS_MAX)}; or name one server"
            )


_SIZES = frozenset({"arena_size", "segment_size", "redis_memory", "l3_queue"})
_DURATIONS = frozenset(
    {
        "freshness_lease", "reservation_time", "default_ttl", "drain_time", "log_deadline", "pause_bound",
        "skew_bound", "l3_ttl", "l3_deadline",
    }
)  # fmt: skip
_URLS = frozenset({"l3_url", "log_url"})
_KINDS = {**dict.fromkeys(_URLS, "URLs"), "grpc_tcp": "host:port", "tenant_shares": "tenant=share, …"}
_OFF_WHEN_NONE = frozenset({"grpc_tcp", "metrics_port"})


def shown(name: str, value: object) -> str:
    """Write a setting's value the way it can be written in a file or flag, but for passwords."""
    if value is None:
        return OFF if name in _OFF_WHEN_NONE else AUTO
    text = str(value)
    if name in _SIZES and isinstance(value, int):
        text = format_size(value)
    elif isinstance(value, dict):
        text = format_shares(value)
    elif name in _DURATIONS and isinstance(value, float):
        text = format_duration(value) if value else "0"
    elif name in _URLS and isinstance(value, str):
        text = without_secrets(value)
    elif isinstance(value, bool):
        text = "true" if value else "false"
    return text


def default_shown(name: str) -> str:
    """Write a setting's default; it says how one is found that depends on the machine."""
    if name == "runtime_dir":
        return "$XDG_RUNTIME_DIR/stratakv, else /tmp/stratakv-<uid>"
    return shown(name, Settings.model_fields[name].default)


def accepted(name: str) -> str:
    """Say in a few words what a setting takes."""
    annotation = Settings.model_fields[name].annotation
    if name in _SIZES:
        kind = "size"
    elif name in _DURATIONS:
        kind = "duration"
    elif name in _KINDS:
        kind = _KINDS[name]
    elif annotation is Path:
        kind = "directory"
    elif annotation is bool:
        kind = "true or false"
    elif get_origin(annotation) is Literal:
        kind = ", ".join(get_args(annotation))
    else:
        kind = "name" if name in ("copy_kernel", "fleet") else "number"
    if name == "numa_node":
        return f"number, {', '.join(_NODE_WORDS[:-1])} or {_NODE_WORDS[-1]}"
    if name == "huge_pages":
        return ", ".join(HugePages)
    if name == "eviction_policy":
        return ", ".join(EvictionChoice)
    if get_origin(annotation) is UnionType:
        kind += f" or {OFF if name in _OFF_WHEN_NONE else AUTO}"
    return kind
