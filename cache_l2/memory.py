"""Does an arena fit: what the machine, the cgroups and the limits of this process still allow, and sizes by default."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kv_types.errors import ArenaTooLargeError, ConfigError
from kv_types.limits import (
    ARENA_BYTES_MIN,
    ARENA_PAGES_MAX,
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
_UNLIMITED_BYTES = 1 << 60
"""cgroup v1 writes its 'no limit' as a number near 2^63."""

Limits = Callable[[int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Bound:
    """One limit: `available_bytes` more could be taken under it now; `source` and `remedy` are for a person."""

    available_bytes: int
    source: str
    remedy: str


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


class MemoryProbe:
    """Reads the limits of this process from /proc, /sys/fs/cgroup and getrlimit; tests give it other roots."""

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        limits: Limits = resource.getrlimit,
    ) -> None:
        self._proc = proc
        self._cgroup_root = cgroup_root
        self._limits = limits

    def bounds(self) -> Iterator[Bound]:
        """Every limit on anonymous shared memory that could be found; none is invented where a file is missing."""
        yield from self._machine()
        yield from self._cgroups()

    def address_space(self) -> Bound | None:
        """What RLIMIT_AS leaves; each mapping of the arena takes its size of it."""
        soft, _ = self._limits(resource.RLIMIT_AS)
        if soft == resource.RLIM_INFINITY:
            return None
        used = _kilobytes(self._proc / "self" / "status").get("VmSize", 0)
        return Bound(soft - used, "RLIMIT_AS of this process", "raise it (ulimit -v)")

    def file_size(self) -> Bound | None:
        """What RLIMIT_FSIZE allows one memory file; beyond it the kernel sends SIGXFSZ."""
        soft, _ = self._limits(resource.RLIMIT_FSIZE)
        if soft == resource.RLIM_INFINITY:
            return None
        return Bound(soft, "RLIMIT_FSIZE of this process", "raise it (ulimit -f)")

    def _machine(self) -> Iterator[Bound]:
        figures = _kilobytes(self._proc / "meminfo")
        if "MemAvailable" in figures:
            yield Bound(figures["MemAvailable"], "MemAvailable of this machine", "free memory")
        mode = _number(self._proc / "sys" / "vm" / "overcommit_memory")
        if mode == 2 and {"CommitLimit", "Committed_AS"} <= figures.keys():
            left = figures["CommitLimit"] - figures["Committed_AS"]
            yield Bound(
                left, "CommitLimit of this machine (vm.overcommit_memory is 2)", "raise vm.overcommit_ratio"
            )

    def _cgroups(self) -> Iterator[Bound]:
        for controllers, path in _memberships(self._proc / "self" / "cgroup"):
            if controllers == "":
                names = ("memory.max", "memory.current", "inactive_file")
                roots = [self._cgroup_root, self._cgroup_root / "unified"]
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                roots = [self._cgroup_root / "memory"]
            else:
                continue
            for root in roots:
                for folder in _ancestry(root, path):
                    bound = _cgroup_bound(folder, *names)
                    if bound is not None:
                        yield bound


def check_arena_fits(sizes: ArenaSizes, probe: MemoryProbe | None = None) -> None:
    """Raise ArenaTooLargeError, with the numbers and a remedy, when any limit allows less than the arena needs."""
    probe = probe or MemoryProbe()
    for bound in probe.bounds():
        _require(lambda parts: parts.needed_bytes, bound, sizes)
    address_space = probe.address_space()
    if address_space is not None:
        _require(lambda parts: parts.mapped_bytes, address_space, sizes)
    file_size = probe.file_size()
    if file_size is not None:
        _require(lambda parts: parts.largest_file_bytes, file_size, sizes)


def _require(need: Callable[[ArenaSizes], int], bound: Bound, sizes: ArenaSizes) -> None:
    if need(sizes) <= bound.available_bytes:
        return
    fitting = _fitting_bytes(need, bound.available_bytes, sizes)
    advice = f"choose an arena of at most {mebibytes(fitting)}" if fitting else "no arena fits"
    raise ArenaTooLargeError(
        f"an arena of {mebibytes(sizes.arena_bytes)} needs {mebibytes(need(sizes))} with its index and headroom, but "
        f"{bound.source} leaves {mebibytes(max(0, bound.available_bytes))}: {advice}, or {bound.remedy}"
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


def _cgroup_bound(folder: Path, limit_name: str, usage_name: str, reclaimable_name: str) -> Bound | None:
    limit = _number(folder / limit_name)
    usage = _number(folder / usage_name)
    if limit is None or usage is None or limit >= _UNLIMITED_BYTES:
        return None
    reclaimable = _table(folder / "memory.stat").get(reclaimable_name, 0)
    return Bound(
        limit - usage + reclaimable, f"{folder / limit_name}", "raise that limit of the container or service"
    )


def _ancestry(root: Path, path: str) -> Iterator[Path]:
    """The group of this process and its ancestors: each of them limits it.

    Inside a container the path may be that of the host and lead nowhere; then what is mounted at the root is the
    container's own group.
    """
    folder = root / path.lstrip("/")
    while folder != root and root in folder.parents:
        if folder.is_dir():
            yield folder
        folder = folder.parent
    if root.is_dir():
        yield root


def _memberships(file: Path) -> Iterator[tuple[str, str]]:
    """(controllers, path) of each line of /proc/self/cgroup; cgroup v2 has no controllers."""
    for line in _lines(file):
        parts = line.split(":", 2)
        if len(parts) == 3 and ".." not in Path(parts[2]).parts:
            yield parts[1], parts[2]


def _kilobytes(file: Path) -> dict[str, int]:
    """`Name:   123 kB` lines, in bytes."""
    found: dict[str, int] = {}
    for line in _lines(file):
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def _table(file: Path) -> dict[str, int]:
    """`name 123` lines."""
    rows = (line.split() for line in _lines(file))
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def _number(file: Path) -> int | None:
    """The one number in a file, or None where the file is missing or says something else (such as `max`)."""
    lines = list(_lines(file))
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _lines(file: Path) -> list[str]:
    """Lines of a small kernel file; none where this kernel or container does not show it."""
    try:
        return os.fsdecode(file.read_bytes()).splitlines()
    except OSError:
        return []
