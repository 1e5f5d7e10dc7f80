"""What this machine, the cgroups and the limits of this process allow now: memory, huge pages, nodes."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

HUGE_PAGE_BYTES = 2 << 20
"""Of explicit huge pages: a size that every processor with huge pages has."""
_POOL = "hugepages-2048kB"
_UNLIMITED_BYTES = 1 << 60
"""cgroup v1 writes its 'no limit' as a number near 2^63."""

Limits = Callable[[int], tuple[int, int]]


class CgroupFiles(NamedTuple):
    """Names of a controller's files: the limit, what is used, and the figure of memory.stat that could be reclaimed."""

    limit: str
    usage: str
    reclaimable: str = ""


V1_MEMORY = CgroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2_MEMORY = CgroupFiles("memory.max", "memory.current", "inactive_file")
V1_HUGE_PAGES = CgroupFiles("hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.usage_in_bytes")
V2_HUGE_PAGES = CgroupFiles("hugetlb.2MB.max", "hugetlb.2MB.current")


@dataclass(frozen=True, slots=True)
class Bound:
    """One limit: `available_bytes` more could be taken under it now; `source` and `remedy` are for a person."""

    available_bytes: int
    source: str
    remedy: str


@dataclass(frozen=True, slots=True)
class HugePagePool:
    """Huge pages of HUGE_PAGE_BYTES that the machine has set apart: in all, and those that could be had now."""

    pages: int
    available: int
    is_default: bool
    """Whether vm.nr_hugepages sets this pool; else it is that of another size."""

    def remedy(self, pages: int) -> str:
        """What to do for `pages` of them to be there."""
        total = self.pages + max(0, pages - self.available)
        if self.is_default:
            return f"have more set apart (sysctl vm.nr_hugepages={total})"
        return f"have more set apart (echo {total} > /sys/kernel/mm/hugepages/{_POOL}/nr_hugepages)"


@dataclass(frozen=True, slots=True)
class Nodes:
    """NUMA nodes: those with memory that this process may use, and those whose processors it may run on."""

    memory: tuple[int, ...]
    processors: tuple[int, ...]


class MemoryProbe:
    """Reads the limits of this process from /proc, /sys and getrlimit; tests give it other roots."""

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        limits: Limits = resource.getrlimit,
    ) -> None:
        self._proc = proc
        self._sys = sys
        self._cgroup_root = cgroup_root
        self._limits = limits

    def bounds(self) -> Iterator[Bound]:
        """Every limit on anonymous shared memory that could be found; none is invented where a file is missing."""
        yield from self._machine()
        yield from self._cgroups("memory", V1_MEMORY, V2_MEMORY)

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

    def huge_page_pool(self) -> HugePagePool | None:
        """The pool of huge pages of HUGE_PAGE_BYTES; None where this kernel has none of that size."""
        folder = self._sys / "kernel" / "mm" / "hugepages" / _POOL
        pages, free = _number(folder / "nr_hugepages"), _number(folder / "free_hugepages")
        if pages is None or free is None:
            return None
        spare = (_number(folder / "nr_overcommit_hugepages") or 0) - (
            _number(folder / "surplus_hugepages") or 0
        )
        taken = _number(folder / "resv_hugepages") or 0
        default = _kilobytes(self._proc / "meminfo").get("Hugepagesize")
        return HugePagePool(pages, max(0, free - taken) + max(0, spare), default == HUGE_PAGE_BYTES)

    def huge_page_bounds(self) -> Iterator[Bound]:
        """Limits of cgroups on huge pages of HUGE_PAGE_BYTES."""
        yield from self._cgroups("hugetlb", V1_HUGE_PAGES, V2_HUGE_PAGES)

    def shared_huge_pages(self) -> str:
        """Which shared memory the kernel backs with huge pages by itself: never, advise, always …; empty: it does not say."""
        folder = self._sys / "kernel" / "mm" / "transparent_hugepage"
        own = _chosen(folder / _POOL / "shmem_enabled")
        common = _chosen(folder / "shmem_enabled")
        return common if own in ("", "inherit") or common in ("deny", "force") else own

    def nodes(self) -> Nodes:
        """The NUMA nodes; of a kernel that knows of none, one."""
        folder = self._sys / "devices" / "system" / "node"
        allowed = _ranges(_field(self._proc / "self" / "status", "Mems_allowed_list"))
        memory = _ranges("".join(_lines(folder / "has_memory")[:1])) or (0,)
        running = set(_ranges(_field(self._proc / "self" / "status", "Cpus_allowed_list")))
        processors = tuple(
            node for node in _ranges("".join(_lines(folder / "online")[:1]))
            if running & set(_ranges("".join(_lines(folder / f"node{node}" / "cpulist")[:1])))
        )  # fmt: skip
        return Nodes(tuple(node for node in memory if not allowed or node in allowed), processors)

    def node_memory(self, node: int) -> Bound | None:
        """What one node has left: an arena that is bound to it can't go to another."""
        words = [
            line.split()
            for line in _lines(self._sys / "devices" / "system" / "node" / f"node{node}" / "meminfo")
        ]
        figures = {
            row[2].rstrip(":"): int(row[3]) * 1024 for row in words if len(row) > 3 and row[3].isdigit()
        }
        if "MemFree" not in figures:
            return None
        left = sum(figures.get(name, 0) for name in ("MemFree", "Inactive(file)", "SReclaimable"))
        return Bound(left, f"NUMA node {node}", "let it lie on several (--numa-node interleave)")

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

    def _cgroups(self, controller: str, v1: CgroupFiles, v2: CgroupFiles) -> Iterator[Bound]:
        for controllers, path in _memberships(self._proc / "self" / "cgroup"):
            if controllers == "":
                files, roots = v2, [self._cgroup_root, self._cgroup_root / "unified"]
            elif controller in controllers.split(","):
                files, roots = v1, [self._cgroup_root / controller]
            else:
                continue
            for root in roots:
                for folder in _ancestry(root, path):
                    bound = _cgroup_bound(folder, files)
                    if bound is not None:
                        yield bound


def _cgroup_bound(folder: Path, files: CgroupFiles) -> Bound | None:
    limit = _number(folder / files.limit)
    usage = _number(folder / files.usage)
    if limit is None or usage is None or limit >= _UNLIMITED_BYTES:
        return None
    reclaimable = _table(folder / "memory.stat").get(files.reclaimable, 0) if files.reclaimable else 0
    return Bound(
        limit - usage + reclaimable, f"{folder / files.limit}", "raise that limit of the container or service"
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


def _field(file: Path, name: str) -> str:
    """What follows `Name:` in a file of such lines; empty where there is no such line."""
    found = (line.partition(":")[2].strip() for line in _lines(file) if line.startswith(f"{name}:"))
    return next(found, "")


def _chosen(file: Path) -> str:
    """The word in brackets, which is the one in force."""
    words = " ".join(_lines(file)).split()
    return next((word.strip("[]") for word in words if word.startswith("[")), "")


def _ranges(text: str) -> tuple[int, ...]:
    """Numbers of a list such as `0-3,8`."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        if low.isdigit():
            numbers.extend(range(int(low), int(high or low) + 1))
    return tuple(numbers)


def _lines(file: Path) -> list[str]:
    """Lines of a small kernel file; none where this kernel or container does not show it."""
    try:
        return os.fsdecode(file.read_bytes()).splitlines()
    except OSError:
        return []
