"""Room for an arena at start: its size where that is auto, and a bounded wait for arenas that sidecars before left to clients."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cache_l2.arena_start import ArenaConfig, check_room
from cache_l2.huge_pages import HugePages
from cache_l2.memory import ChosenSize, auto_arena_size, mebibytes
from cache_l2.memory_probe import MemoryProbe
from kv_types.errors import ArenaTooLargeError
from kv_types.limits import ARENA_RELEASE_S_MAX
from sidecar.config import Settings
from sidecar.logs import logger

_LOOK_AGAIN_S = 0.1
_PIDS_TOLD = 8
_ARENA, _INDEX = "/memfd:stratakv-", "/memfd:stratakv-control"
_File = tuple[str, str]
"""Device and inode."""

_log = logger("arena")


@dataclass(frozen=True, slots=True)
class LeftArenas:
    """Arenas whose sidecars are gone and that clients still have mapped."""

    size_bytes: int = 0
    pids: tuple[int, ...] = ()

    def __str__(self) -> str:
        pids = ", ".join(map(str, self.pids[:_PIDS_TOLD])) + (" …" if len(self.pids) > _PIDS_TOLD else "")
        return f"Arenas of sidecars that are gone, {mebibytes(self.size_bytes)}, are still held by the processes {pids}"


def base_config(settings: Settings) -> ArenaConfig:
    """The arena's part of the settings, but for what is measured."""
    return ArenaConfig(
        arena_bytes=settings.arena_bytes,
        segment_bytes=settings.segment_size or 0,
        pages_max=settings.pages_max or 0,
        client_rows=settings.client_rows,
        leases_per_client=settings.leases_per_client,
        skew_bound_s=settings.skew_bound,
        reservation_s=settings.reservation_time,
        default_ttl_s=math.ceil(settings.default_ttl),
        prefault=settings.prefault,
        huge_pages=settings.huge_pages,
        numa_node=settings.numa_node,
        tenant_shares=settings.tenant_shares,
        pin_quota=settings.pin_quota,
        eviction_policy=settings.eviction_policy,
    )


async def with_room(
    settings: Settings,
    *,
    probe: MemoryProbe | None = None,
    proc: Path = Path("/proc"),
    wait_s: float = ARENA_RELEASE_S_MAX,
) -> Settings:
    """The settings with a size for the arena, which fits now.

    Clients of a sidecar that ended let go of its arena as soon as they notice, unless they hold leases there: they are
    waited for while auto would count that memory as taken, or the arena does not fit beside it. Raises ArenaTooLargeError,
    which names them where they have not let go in `wait_s`, and ConfigError.
    """
    probe = probe or MemoryProbe()
    ends = time.monotonic() + wait_s
    is_waiting = False
    while True:
        chosen, problem, left = None, None, LeftArenas()
        try:
            chosen = _choose(settings, probe)
        except ArenaTooLargeError as error:
            problem = error
        if problem is not None or chosen is not None:
            left = await asyncio.to_thread(left_arenas, proc)
        would_help = problem is None or 0 < problem.missing_bytes <= left.size_bytes
        if not left.pids or not would_help or time.monotonic() >= ends:
            break
        if not is_waiting:
            _log.info("waiting for clients to let go of arenas from before", reason=str(left))
            is_waiting = True
        await asyncio.sleep(_LOOK_AGAIN_S)
    if problem is not None:
        told = f". {left}: end them, or have them release their leases" if would_help and left.pids else ""
        raise ArenaTooLargeError(f"{problem}{told}") from problem
    if chosen is None:
        return settings
    _log.info(
        "arena size chosen",
        arena_bytes=chosen.arena_bytes, decided_by=chosen.bound.source,
        available_bytes=chosen.bound.available_bytes, share=settings.arena_share,
    )  # fmt: skip
    if left.pids:
        _log.warning("the arena is smaller for memory that is not given back", reason=str(left))
    return _of_size(settings, chosen.arena_bytes)


def left_arenas(proc: Path = Path("/proc")) -> LeftArenas:
    """Look through the mappings of all processes that this one may look at."""
    sizes: dict[_File, int] = {}
    holders: dict[_File, set[int]] = {}
    served: set[_File] = set()
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            lines = (folder / "maps").read_text(errors="replace").splitlines()
        except OSError:  # it has ended, or is another user's
            continue
        files, is_sidecar = _arena_files(lines)
        sizes |= files
        for file in files:
            holders.setdefault(file, set()).add(int(folder.name))
        served |= files.keys() if is_sidecar else set()
    left = sizes.keys() - served
    pids: set[int] = set().union(*(holders[file] for file in left))
    return LeftArenas(sum(sizes[file] for file in left), tuple(sorted(pids)))


def _arena_files(maps: Iterable[str]) -> tuple[dict[_File, int], bool]:
    """Files of arenas that a process has mapped, with their sizes, and whether it writes an index, as sidecars do."""
    files: dict[_File, int] = {}
    is_sidecar = False
    for line in maps:
        if _ARENA not in line:
            continue
        addresses, access, _, device, inode, name = line.split(maxsplit=5)
        low, high = (int(part, 16) for part in addresses.split("-"))
        files[device, inode] = high - low
        is_sidecar |= name.startswith(_INDEX) and "w" in access
    return files, is_sidecar


def _choose(settings: Settings, probe: MemoryProbe) -> ChosenSize | None:
    """The size that auto comes to; None where a size is given, which fits."""
    if settings.arena_size is not None:
        check_room(base_config(settings), probe)
        return None
    return auto_arena_size(
        probe,
        share=settings.arena_share,
        sizes=lambda arena_bytes: base_config(_of_size(settings, arena_bytes)).sizes(),
        in_huge_pages=settings.huge_pages is HugePages.EXPLICIT,
    )


def _of_size(settings: Settings, arena_bytes: int) -> Settings:
    return settings.model_copy(update={"arena_size": arena_bytes})
