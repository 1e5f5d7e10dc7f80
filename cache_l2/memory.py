"""Does an arena fit: what the machine, the cgroups and the limits of this process still allow, and sizes by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from cache_l2.memory_probe import HUGE_PAGE_BYTES, Bound, MemoryProbe
from kv_types.errors import ArenaTooLargeError, ConfigError
from kv_types.limits import (
    ARENA_BYTES_MIN,
    ARENA_PAGES_MAX,
    AUTO_ARENA_BYTES_MIN,
    AUTO_HEADROOM_BYTES,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
    SLOT_ALIGN_BYTES,
)

SEGMENTS_WANTED = 64
"""Segments that an arena is cut into by default: enough for a few size classes to take and give."""
PAGE_BYTES_EXPECTED_MIN = 16 * 1024
"""By default the index has an entry for each stretch of this size: 1 % of the arena, and small pages still fill it."""
PAGES_MIN = 4096

HEADROOM_BYTES_MIN = 32 * 1024 * 1024
HEADROOM_SHARE = 64
"""One part in this many of the arena is left for page tables (two mappings here) and for the daemon itself."""
MAPPINGS_PER_PROCESS = 2
"""The sidecar maps the arena as its writer and as the reader that serves gRPC."""

_ADVICE_STEP_BYTES = 1 << 19
"""Half a MiB: what one decimal of a MiB shows exactly."""


@dataclass(frozen=True, slots=True)
class ArenaSizes:
    """Sizes of the arena's parts, in bytes unless the name says otherwise."""

    arena_bytes: int
    segment_bytes: int
    pages_max: int
    pages_max_chosen: bool
    """Whether pages_max follows from arena_bytes; otherwise it was given and stays."""
    index_bytes_per_page: int
    fixed_index_bytes: int

    @property
    def index_bytes(self) -> int:
        """Header, ring, rows, entries and buckets."""
        return self.fixed_index_bytes + self.pages_max * self.index_bytes_per_page

    @property
    def mapped_bytes(self) -> int:
        """Address space that the sidecar takes."""
        return MAPPINGS_PER_PROCESS * self.total_bytes + HEADROOM_BYTES_MIN

    @property
    def largest_file_bytes(self) -> int:
        """The larger of the memory files."""
        return max(self.arena_bytes, self.index_bytes)

    @property
    def huge_pages(self) -> int:
        """Explicit huge pages that the arena takes: of the pages' bytes, and of the two files of the index."""
        return -(-self.arena_bytes // HUGE_PAGE_BYTES) - (-self.index_bytes // HUGE_PAGE_BYTES) + 1

    @property
    def huge_page_bytes(self) -> int:
        """Bytes of these huge pages."""
        return self.huge_pages * HUGE_PAGE_BYTES

    def resized(self, arena_bytes: int) -> ArenaSizes:
        """The same settings for an arena of another size."""
        pages = default_pages_max(arena_bytes) if self.pages_max_chosen else self.pages_max
        return replace(self, arena_bytes=arena_bytes, pages_max=pages)

    @property
    def total_bytes(self) -> int:
        """Memory that the arena commits at start."""
        return self.arena_bytes + self.index_bytes

    @property
    def needed_bytes(self) -> int:
        """Memory that must be there before the arena is made: all of it, and headroom for what serves it."""
        return self.total_bytes + max(HEADROOM_BYTES_MIN, self.total_bytes // HEADROOM_SHARE)


def arena_sizes(
    arena_bytes: int,
    *,
    segment_bytes: int = 0,
    pages_max: int = 0,
    index_bytes_per_page: int,
    fixed_index_bytes: int,
) -> ArenaSizes:
    """Complete the sizes: a zero is chosen, anything else checked.

    Raises ConfigError naming the setting that is out of range or contradicts another one.
    """
    if arena_bytes < ARENA_BYTES_MIN:
        raise ConfigError(f"arena_bytes is {arena_bytes}; the least is {ARENA_BYTES_MIN}")
    segment = segment_bytes or default_segment_bytes(arena_bytes)
    if not SEGMENT_BYTES_MIN <= segment <= SEGMENT_BYTES_MAX or segment % SLOT_ALIGN_BYTES:
        raise ConfigError(
            f"segment_bytes is {segment}; it is a multiple of {SLOT_ALIGN_BYTES} from {SEGMENT_BYTES_MIN} to "
            f"{SEGMENT_BYTES_MAX}, or 0 to have it chosen"
        )
    if segment > arena_bytes:
        raise ConfigError(f"segment_bytes is {segment}, more than the whole arena of {arena_bytes} bytes")
    pages = pages_max or default_pages_max(arena_bytes)
    if not 1 <= pages <= ARENA_PAGES_MAX:
        raise ConfigError(f"pages_max is {pages}; it is 1 to {ARENA_PAGES_MAX}, or 0 to have it chosen")
    return ArenaSizes(
        arena_bytes=arena_bytes // segment * segment,
        segment_bytes=segment,
        pages_max=pages,
        pages_max_chosen=pages_max == 0,
        index_bytes_per_page=index_bytes_per_page,
        fixed_index_bytes=fixed_index_bytes,
    )


def default_segment_bytes(arena_bytes: int) -> int:
    """Largest power of two that cuts the arena into at least SEGMENTS_WANTED, within the limits of a segment."""
    wanted = max(1, arena_bytes // SEGMENTS_WANTED)
    return min(SEGMENT_BYTES_MAX, max(SEGMENT_BYTES_MIN, 1 << (wanted.bit_length() - 1)))


def default_pages_max(arena_bytes: int) -> int:
    """Entries of the index: one for each PAGE_BYTES_EXPECTED_MIN of the arena, at least PAGES_MIN."""
    return min(ARENA_PAGES_MAX, max(PAGES_MIN, arena_bytes // PAGE_BYTES_EXPECTED_MIN))


def check_arena_fits(
    sizes: ArenaSizes,
    probe: MemoryProbe | None = None,
    *,
    in_huge_pages: bool = False,
    node: int | None = None,
) -> None:
    """Raise ArenaTooLargeError, with the numbers and a remedy, when any limit allows less than the arena needs.

    `in_huge_pages`: explicit ones, which are set apart from other memory. `node`: the one NUMA node it is bound to.
    """
    probe = probe or MemoryProbe()
    if in_huge_pages:
        _require_pool(sizes, probe)
    for limit in _limits(probe, in_huge_pages=in_huge_pages, node=node):
        _require(limit, sizes)


@dataclass(frozen=True, slots=True)
class ChosenSize:
    """What `auto` came to: the arena's size, and the limit that decided it."""

    arena_bytes: int
    bound: Bound


def auto_arena_size(
    probe: MemoryProbe, *, share: float, sizes: Callable[[int], ArenaSizes], in_huge_pages: bool = False
) -> ChosenSize:
    """The largest arena that takes at most `share` of the memory that may be had now, and leaves AUTO_HEADROOM_BYTES of it.

    Explicit huge pages are set apart for such use: all that are free are taken. `sizes` completes the sizes of an arena of so
    many bytes. Raises ArenaTooLargeError when that is less than AUTO_ARENA_BYTES_MIN.
    """
    chosen: ChosenSize | None = None
    pool = probe.huge_page_pool() if in_huge_pages else None
    limits = list(_limits(probe, in_huge_pages=in_huge_pages, node=None))
    if pool is not None:
        bound = Bound(
            pool.available * HUGE_PAGE_BYTES,
            "the machine's pool of huge pages",
            pool.remedy(sizes(AUTO_ARENA_BYTES_MIN).huge_pages),
        )
        limits.append(_Limit(_huge_page_bytes, bound))
    for limit in limits:
        left = limit.bound.available_bytes
        if limit.is_for_all:
            left = min(int(left * share), left - AUTO_HEADROOM_BYTES)
        fitting = _fitting_bytes(limit.need, left, sizes(max(ARENA_BYTES_MIN, left)))
        if chosen is None or fitting < chosen.arena_bytes:
            chosen = ChosenSize(fitting, limit.bound)
    if chosen is None:
        raise ConfigError(
            "arena_size is auto, and this machine does not say how much memory it has; name a size"
        )
    if chosen.arena_bytes < AUTO_ARENA_BYTES_MIN:
        raise ArenaTooLargeError(
            f"arena_size is auto, and {chosen.bound.source} leaves {mebibytes(max(0, chosen.bound.available_bytes))}, of which "
            f"an arena would get less than {mebibytes(AUTO_ARENA_BYTES_MIN)}: {chosen.bound.remedy}, or name a size",
            missing_bytes=AUTO_ARENA_BYTES_MIN,
        )
    return chosen


@dataclass(frozen=True, slots=True)
class _Limit:
    """A bound, and what of an arena counts towards it."""

    need: Callable[[ArenaSizes], int]
    bound: Bound
    others_use: bool = False
    """Whether other processes take of it, too, and may give back what they have."""
    is_for_all: bool = False
    """Whether it is for memory of all kinds, of which an arena by itself takes a share alone."""


def _limits(probe: MemoryProbe, *, in_huge_pages: bool, node: int | None) -> Iterator[_Limit]:
    if in_huge_pages:
        yield from (_Limit(_huge_page_bytes, bound, others_use=True) for bound in probe.huge_page_bounds())
    else:
        bounds = [*probe.bounds(), *([] if node is None else [probe.node_memory(node)])]
        yield from (
            _Limit(_needed_bytes, bound, others_use=True, is_for_all=True)
            for bound in bounds
            if bound is not None
        )
    address_space = probe.address_space()
    if address_space is not None:
        yield _Limit(lambda parts: parts.mapped_bytes, address_space)
    file_size = probe.file_size()
    if file_size is not None:
        yield _Limit(lambda parts: parts.largest_file_bytes, file_size)


def _needed_bytes(sizes: ArenaSizes) -> int:
    return sizes.needed_bytes


def _huge_page_bytes(sizes: ArenaSizes) -> int:
    return sizes.huge_page_bytes


def _require_pool(sizes: ArenaSizes, probe: MemoryProbe) -> None:
    pool = probe.huge_page_pool()
    if pool is None:
        raise ArenaTooLargeError(
            f"this kernel has no huge pages of {mebibytes(HUGE_PAGE_BYTES)}; use --huge-pages transparent"
        )
    if pool.available >= sizes.huge_pages:
        return
    fitting = _fitting_bytes(_huge_page_bytes, pool.available * HUGE_PAGE_BYTES, sizes)
    smaller = f"choose an arena of at most {mebibytes(fitting)}, " if fitting else ""
    raise ArenaTooLargeError(
        f"an arena of {mebibytes(sizes.arena_bytes)} needs {sizes.huge_pages} huge pages of {mebibytes(HUGE_PAGE_BYTES)} with "
        f"its index, but of the {pool.pages} that this machine has set apart {pool.available} are to be had: "
        f"{smaller}use --huge-pages transparent, or {pool.remedy(sizes.huge_pages)}",
        missing_bytes=(sizes.huge_pages - pool.available) * HUGE_PAGE_BYTES,
    )


def _require(limit: _Limit, sizes: ArenaSizes) -> None:
    need, bound = limit.need, limit.bound
    if need(sizes) <= bound.available_bytes:
        return
    fitting = _fitting_bytes(need, bound.available_bytes, sizes)
    advice = f"choose an arena of at most {mebibytes(fitting)}" if fitting else "no arena fits"
    raise ArenaTooLargeError(
        f"an arena of {mebibytes(sizes.arena_bytes)} needs {mebibytes(need(sizes))} with its index and headroom, but "
        f"{bound.source} leaves {mebibytes(max(0, bound.available_bytes))}: {advice}, or {bound.remedy}",
        missing_bytes=need(sizes) - bound.available_bytes if limit.others_use else 0,
    )


def _fitting_bytes(need: Callable[[ArenaSizes], int], available_bytes: int, sizes: ArenaSizes) -> int:
    """The largest arena, in steps that the message can show, whose need the bound allows; 0 when none does."""
    low, high = ARENA_BYTES_MIN // _ADVICE_STEP_BYTES, sizes.arena_bytes // _ADVICE_STEP_BYTES
    fitting = 0
    while low <= high:
        middle = (low + high) // 2
        if need(sizes.resized(middle * _ADVICE_STEP_BYTES)) <= available_bytes:
            fitting, low = middle * _ADVICE_STEP_BYTES, middle + 1
        else:
            high = middle - 1
    return fitting


def mebibytes(size_bytes: int) -> str:
    """Size for a person."""
    return f"{size_bytes / (1 << 20):,.1f} MiB"
