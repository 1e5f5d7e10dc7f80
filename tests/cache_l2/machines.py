"""A made-up machine: its /proc, /sys and cgroups, and the limits of a process there."""

from __future__ import annotations

import resource
from pathlib import Path

from cache_l2.memory_probe import MemoryProbe

NO_LIMIT = resource.RLIM_INFINITY


class Machine:
    """A made-up /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sys, self.cgroups = root / "proc", root / "sys", root / "cgroup"
        self.limits: dict[int, int] = {}
        self.memory()
        self.cgroups.mkdir()

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def group(self, path: str, **figures: str) -> None:
        for name, text in figures.items():
            self.write(self.cgroups / path / name.replace("__", "."), text)

    def memory(self, **kilobytes: int) -> None:
        """Figures of /proc/meminfo; what is not given is as on a machine with 1 GiB left."""
        figures = {"MemTotal": 99, "MemAvailable": 1024 * 1024, "Hugepagesize": 2048} | kilobytes
        self.write(self.proc / "meminfo", "".join(f"{name}: {kb} kB\n" for name, kb in figures.items()))

    def pool(self, **figures: int) -> None:
        """The pool of huge pages of 2 MiB."""
        folder = self.sys / "kernel/mm/hugepages/hugepages-2048kB"
        for name in ("resv_hugepages", "surplus_hugepages", "nr_overcommit_hugepages"):
            figures.setdefault(name, 0)
        for name, number in figures.items():
            self.write(folder / name, f"{number}\n")

    def nodes(self, memory: str, **processors: str) -> None:
        """NUMA nodes with memory, and the lists of processors by `node<number>`."""
        folder = self.sys / "devices/system/node"
        self.write(folder / "has_memory", f"{memory}\n")
        self.write(folder / "online", f"{','.join(name[4:] for name in processors)}\n")
        for name, text in processors.items():
            self.write(folder / name / "cpulist", f"{text}\n")

    def probe(self) -> MemoryProbe:
        return MemoryProbe(
            proc=self.proc, sys=self.sys, cgroup_root=self.cgroups,
            limits=lambda kind: (self.limits.get(kind, NO_LIMIT), NO_LIMIT),
        )  # fmt: skip
