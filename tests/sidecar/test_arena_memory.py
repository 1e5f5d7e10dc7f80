"""What memory an arena lies in is told as it is found, and a size that is chosen is the size of everything."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from cache_l2.huge_pages import ArenaMemory, HugePages
from sidecar import arena_memory
from sidecar.arena_memory import MemoryPicture
from tests.support.daemon import ROOT, clean_environment
from tests.support.stores import make_store

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("memory", "found", "got", "said"),
    [
        (ArenaMemory(HugePages.TRANSPARENT, note="none here"), (0, 100), "none", "none here"),
        (ArenaMemory(HugePages.TRANSPARENT), (100, 100), "transparent", ""),
        (ArenaMemory(HugePages.TRANSPARENT), (40, 100), "transparent", "not all of the arena"),
        (ArenaMemory(HugePages.TRANSPARENT), (0, 100), "none", "not all of the arena"),
        (ArenaMemory(HugePages.OFF), (0, 100), "none", ""),
        (ArenaMemory(HugePages.TRY, note="too few"), (0, 100), "none", "too few"),
        (ArenaMemory(HugePages.EXPLICIT, in_huge_pages=True), (100, 100), "explicit", ""),
    ],
)
async def test_what_was_got_is_told_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, memory: ArenaMemory, found: tuple[int, int], got: str, said: str
) -> None:
    monkeypatch.setattr(arena_memory, "mapped_bytes", lambda: found)
    with contextlib.closing(make_store()) as store:
        store.memory = memory
        picture = MemoryPicture(store)
        assert picture.message().huge_pages == ("explicit" if memory.in_huge_pages else "")
        await picture.watch()
        told = picture.message()
    assert (told.huge_pages_asked, told.huge_pages) == (memory.asked, got)
    assert (told.huge_page_bytes, told.mapped_bytes) == found
    assert told.huge_pages_note.startswith(said)
    assert bool(told.huge_pages_note) == bool(said)


async def test_it_is_looked_at_once_all_is_mapped_in() -> None:
    with contextlib.closing(make_store(arena_bytes=32 << 20, prefault=True)) as store:
        picture = MemoryPicture(store)
        await picture.watch()
        assert store.reader.prefault_ended
        assert picture.message().mapped_bytes >= 32 << 20


async def test_a_sidecar_that_chooses_its_size_goes_by_it_everywhere(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from cache_l2.memory_probe import Bound, MemoryProbe\n"
        "from sidecar import arena_room\n"
        "from sidecar.config_sources import load_settings\n"
        "from sidecar.runtime import Sidecar\n"
        "from sidecar.services import Services\n"
        "class Small(MemoryProbe):\n"
        "    def bounds(self): yield Bound(1 << 30, 'this small machine', 'free memory')\n"
        "arena_room.MemoryProbe = Small\n"
        "start = Services.start\n"
        "async def looking(self):\n"
        "    await start(self)\n"
        "    print('sizes', self._store.config.arena_bytes, self._settings.arena_bytes, self._status().arena_bytes, flush=True)\n"
        "    sidecar._ending.set()\n"
        "Services.start = looking\n"
        "flags = {'runtime_dir': sys.argv[1], 'arena_size': 'auto', 'arena_share': '0.2', 'l3': False}\n"
        "sidecar = Sidecar(load_settings(flags).settings, version='0')\n"
        "async def main(): await sidecar.run()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    sizes = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("sizes ")]
    assert len(sizes) == 1, done.stdout + done.stderr
    assert len(set(sizes[0])) == 1
    assert 100 << 20 < int(sizes[0][0]) < 205 << 20
