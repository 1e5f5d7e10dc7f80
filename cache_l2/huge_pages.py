"""Which huge pages an arena is asked to lie in, what was got, and how a machine is made to have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cache_l2.memory_probe import HUGE_PAGE_BYTES

_FILES = "/memfd:stratakv-"
_MAPPED_HUGE = ("ShmemPmdMapped", "Private_Hugetlb", "Shared_Hugetlb")
_SETTING = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"


class HugePages(StrEnum):
    """What is asked for."""

    OFF = "off"
    TRANSPARENT = "transparent"
    """Those that the kernel makes by itself, where it is set to."""
    TRY = "try"
    """Explicit ones where enough are set apart, else transparent ones."""
    EXPLICIT = "explicit"
    """Those that the machine has set apart, or no start."""


@dataclass(frozen=True, slots=True)
class ArenaMemory:
    """What memory an arena lies in: which pages were asked for, whether they are explicit huge ones, and where they are."""

    asked: HugePages
    in_huge_pages: bool = False
    note: str = ""
    """Why not in huge pages, and what to do; empty where there is nothing to say."""
    placement: str = ""
    """The NUMA nodes it was placed on; empty: wherever the kernel put it."""
    placement_note: str = ""
    """Why it was not placed as asked."""

    def described(self) -> dict[str, str]:
        """For the log: what is worth saying."""
        told = {
            "huge_pages_asked": str(self.asked),
            "huge_pages": "explicit" if self.in_huge_pages else "",
            "huge_pages_note": self.note,
            "placement": self.placement,
            "placement_note": self.placement_note,
        }
        return {name: text for name, text in told.items() if text}


def transparent_note(offered: str) -> str:
    """Why there are no transparent huge pages where the kernel offers shared memory `offered`; empty where there may be some."""
    if offered in ("always", "advise", "within_size", "force"):
        return ""
    if not offered:
        return "this kernel has no transparent huge pages for shared memory"
    return (
        f"no transparent huge pages: this machine gives shared memory none ({_SETTING} is {offered}); to have them, "
        f"as root: echo advise > {_SETTING}, then restart the sidecar"
    )


def mapped_bytes(smaps: Path = Path("/proc/self/smaps")) -> tuple[int, int]:
    """(bytes in huge pages, bytes) of all mappings of arenas in this process, as far as they are mapped in.

    Looks at every page: some ms a GiB of small ones.
    """
    with smaps.open() as lines:
        return _sums(lines)


def _sums(lines: Iterable[str]) -> tuple[int, int]:
    huge = mapped = 0
    for name, size_bytes in _figures(lines):
        huge += size_bytes if name in _MAPPED_HUGE else 0
        mapped += size_bytes if name in ("Rss", *_MAPPED_HUGE[1:]) else 0  # explicit ones are no part of Rss
    return huge, mapped


def _figures(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """(name, bytes) of each figure of a mapping of an arena's file."""
    is_ours = False
    for line in lines:
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and len(words) == 2 and words[1] == "kB":
            if is_ours:
                yield name, int(words[0]) * 1024
        elif "-" in name.split(" ", 1)[0]:
            is_ours = _FILES in line


__all__ = ["HUGE_PAGE_BYTES", "ArenaMemory", "HugePages", "mapped_bytes", "transparent_note"]
