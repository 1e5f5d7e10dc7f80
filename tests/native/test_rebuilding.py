"""`make native` may be run beside processes that have the old core loaded."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_rebuilt_core_takes_the_place_of_the_old_one_and_leaves_its_bytes(tmp_path: Path) -> None:
    """An overwritten file would change under whoever has mapped it."""
    recipe = subprocess.run(
        ["make", "--dry-run", "native", f"VENV={sys.prefix}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    copying = [line for line in recipe.splitlines() if "cache_l2/" in line]
    assert len(copying) == 1, recipe
    built, there = tmp_path / "build/dev/_native.abi3.so", tmp_path / "cache_l2/_native.abi3.so"
    for path, content in ((built, b"new" * 1000), (there, b"old" * 1000)):
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    with there.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as loaded:
        subprocess.run(copying[0], shell=True, cwd=tmp_path, check=True)
        assert loaded[:] == b"old" * 1000
    assert there.read_bytes() == b"new" * 1000
