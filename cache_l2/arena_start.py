"""Starting an arena: settings, the check that it fits, its creation with memory committed, and how long that took."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import structlog

from cache_l2 import numa
from cache_l2._native import Arena, Reader
from cache_l2.huge_pages import ArenaMemory, HugePages, transparent_note
from cache_l2.memory import ArenaSizes, arena_sizes, check_arena_fits, mebibytes
from cache_l2.memory_probe import MemoryProbe
from kv_policy.eviction_choice import EvictionChoice
from kv_types.errors import ArenaTooLargeError, ConfigError
from kv_types.ids import LifeId
from kv_types.limits import (
    CLIENT_ROWS_MAX,
    LEASES_PER_CLIENT_MAX,
    RESERVATION_S_DEFAULT,
    RING_RECORDS_MAX,
    SKEW_BOUND_S_DEFAULT,
    TTL_S_MAX,
)
from kv_types.operator_limits import PIN_QUOTA_DEFAULT, TENANT_SHARES_MAX

# Upper bounds of the layout's sizes, for the estimate before the arena is there; the arena itself knows exactly.
_INDEX_BYTES_PER_PAGE = 128 + 16 + 64
_ROW_BYTES = 64 * 1024
_LEASE_BYTES = 16
_RING_RECORD_BYTES = 512

_OFF, _TRANSPARENT, _EXPLICIT = range(3)
"""What the native core calls them."""

_log = structlog.get_logger("stratakv.arena")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaConfig:
    """Settings of one arena; zeros of `segment_bytes` and `pages_max` are chosen from its size.

    `copy_kernel` and `warm_copy_kernel` number one of `_native.COPY_KERNELS`, for destinations out of
    the caches and in them; `default_ttl_s` 0: pages never expire;
    `numa_node` is what numa.placement_of takes;
    `tenant_shares` and `pin_quota` are parts of the arena;
    `client_rows` includes the sidecar's own; `skew_bound_s` widens the times of selectors (rule R3). Raises ConfigError.
    """

    arena_bytes: int
    segment_bytes: int = 0
    pages_max: int = 0
    client_rows: int = 64
    leases_per_client: int = 16_384
    ring_records: int = 1024
    skew_bound_s: float = SKEW_BOUND_S_DEFAULT
    reservation_s: float = RESERVATION_S_DEFAULT
    default_ttl_s: int = 0
    index_hash_bits: int = 64
    copy_kernel: int = 0
    warm_copy_kernel: int = 0
    prefault: bool = True
    huge_pages: HugePages = HugePages.TRANSPARENT
    numa_node: str = numa.AUTO
    tenant_shares: Mapping[str, float] = field(default_factory=dict)
    pin_quota: float = PIN_QUOTA_DEFAULT
    eviction_policy: EvictionChoice = EvictionChoice.LEARNED

    def __post_init__(self) -> None:
        _check_range("client_rows", self.client_rows, 2, CLIENT_ROWS_MAX)
        _check_range("leases_per_client", self.leases_per_client, 1, LEASES_PER_CLIENT_MAX)
        _check_range("ring_records", self.ring_records, 2, RING_RECORDS_MAX)
        _check_range("default_ttl_s", self.default_ttl_s, 0, TTL_S_MAX)
        _check_range("index_hash_bits", self.index_hash_bits, 1, 64)
        _check_range("skew_bound_s", self.skew_bound_s, 0, 3600)
        _check_range("reservation_s", self.reservation_s, 0.01, 3600)
        _check_range("pin_quota", self.pin_quota, 0, 1)
        self._check_shares()
        self.sizes()

    def _check_shares(self) -> None:
        if len(self.tenant_shares) > TENANT_SHARES_MAX:
            raise ConfigError(
                f"at most {TENANT_SHARES_MAX} tenants have a share; got {len(self.tenant_shares)}"
            )
        for tenant, share in self.tenant_shares.items():
            if not tenant:
                raise ConfigError("pages without a tenant have no share: they live in what is left")
            _check_range(f"the share of tenant {tenant!r}", share, 0, 1)
        total = math.fsum(self.tenant_shares.values())
        if total > 1:
            raise ConfigError(
                f"the tenants' shares make {total:g} together; they are parts of one arena, so 1 at most"
            )

    def sizes(self) -> ArenaSizes:
        """Sizes of the arena's parts; raises ConfigError."""
        per_row = _ROW_BYTES + _LEASE_BYTES * self.leases_per_client
        return arena_sizes(
            self.arena_bytes,
            segment_bytes=self.segment_bytes,
            pages_max=self.pages_max,
            index_bytes_per_page=_INDEX_BYTES_PER_PAGE,
            fixed_index_bytes=self.client_rows * per_row + self.ring_records * _RING_RECORD_BYTES,
        )


def create_arena(
    config: ArenaConfig, life: LifeId, *, probe: MemoryProbe | None = None
) -> tuple[Arena, ArenaMemory]:
    """Check that the arena fits, make it, commit its memory, and say what memory it is.

    Raises ArenaTooLargeError, ConfigError.
    """
    probe = probe or MemoryProbe()
    sizes, placement = config.sizes(), numa.placement_of(config.numa_node, probe.nodes())
    begun = time.monotonic()
    with numa.placed(placement, is_asked_for=config.numa_node != numa.AUTO) as placed:
        arena, memory = _made(config, life, probe)
    memory = replace(memory, placement=placed.told, placement_note=placed.note)
    _log.info(
        "arena ready",
        arena_bytes=sizes.arena_bytes, segment_bytes=sizes.segment_bytes, pages_max=sizes.pages_max,
        prefault=config.prefault, **memory.described(), seconds=round(time.monotonic() - begun, 3),
    )  # fmt: skip
    return arena, memory


def check_room(config: ArenaConfig, probe: MemoryProbe) -> str | None:
    """Raise ArenaTooLargeError, with the numbers and a remedy, when the arena does not fit as it is asked for.

    None: it fits in explicit huge pages. Else why it is not to lie there, empty where that wasn't asked for.
    """
    note = ""
    if config.huge_pages in (HugePages.TRY, HugePages.EXPLICIT):
        try:
            check_arena_fits(config.sizes(), probe, in_huge_pages=True)
        except ArenaTooLargeError as error:
            if config.huge_pages is HugePages.EXPLICIT:
                raise
            note = str(error)
        else:
            return None
    placement = numa.placement_of(config.numa_node, probe.nodes())
    check_arena_fits(config.sizes(), probe, node=None if placement is None else placement.bound_node)
    return note


def _made(config: ArenaConfig, life: LifeId, probe: MemoryProbe) -> tuple[Arena, ArenaMemory]:
    """The arena in the pages that were asked for, or in those that come next."""
    asked, note = config.huge_pages, check_room(config, probe)
    if note is None:
        try:
            return _native_arena(config, life, _EXPLICIT), ArenaMemory(asked, in_huge_pages=True)
        except (
            ArenaTooLargeError
        ) as error:  # somebody was faster, or this kernel's huge pages can't be sealed
            if asked is HugePages.EXPLICIT:
                raise
            note = str(error)
            check_arena_fits(config.sizes(), probe)
    if note:
        _log.warning("no explicit huge pages", reason=note)
    if asked is HugePages.OFF:
        return _native_arena(config, life, _OFF), ArenaMemory(asked)
    offered = probe.shared_huge_pages()
    arena = _native_arena(config, life, _TRANSPARENT, through_mapping=offered == "advise")
    return arena, ArenaMemory(
        asked, note="; ".join(part for part in (note, transparent_note(offered)) if part)
    )


def _native_arena(
    config: ArenaConfig, life: LifeId, huge_pages: int, *, through_mapping: bool = False
) -> Arena:
    sizes = config.sizes()
    try:
        return Arena(
            arena_bytes=sizes.arena_bytes, segment_bytes=sizes.segment_bytes, entries=sizes.pages_max,
            rows=config.client_rows, leases_per_row=config.leases_per_client, ring_records=config.ring_records,
            life=life, index_hash_bits=config.index_hash_bits, copy_kernel=config.copy_kernel,
            warm_copy_kernel=config.warm_copy_kernel, prefault=config.prefault,
            huge_pages=huge_pages, commit_through_mapping=through_mapping,
            learns=config.eviction_policy is EvictionChoice.LEARNED,
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(f"the arena's settings do not fit together: {error}") from error
    except (MemoryError, OSError) as error:
        raise ArenaTooLargeError(
            f"the kernel did not give an arena of {mebibytes(sizes.total_bytes)}: {error}; choose a smaller one"
            f"{', or --huge-pages transparent' if huge_pages == _EXPLICIT else ''}"
        ) from error


def map_own(arena: Arena, row: int, life: LifeId, *, prefault: bool) -> Reader:
    """Map the arena a second time, as a client of one's own; ends it when that fails. Raises ArenaTooLargeError."""
    control, clients, data = arena.duplicate_descriptors(writable=True)
    try:
        return Reader(
            control_fd=control, clients_fd=clients, data_fd=data, row=row, life=life, writable=True, prefault=prefault,
            first_use=True,
        )  # fmt: skip
    except (MemoryError, OSError) as error:
        arena.close()
        raise ArenaTooLargeError(
            f"the arena can't be mapped twice, to write and to serve it: {error}; choose a smaller one"
        ) from error


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{name} is {value}; it is {least} to {most}")
