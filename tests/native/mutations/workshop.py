"""Patched copies of the sources, and the stress test built from them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.native.mutations.table import Edit

ROOT = Path(__file__).resolve().parents[3]
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
FLAGS = ("-std=c++17", "-O1", "-w", "-DSTRATAKV_PAUSES")
SOURCES = (
    "cache_l2/native",
    "kv_policy/native",
    "tests/native",
    "cache_l2/store.py",
    "sidecar/log/applier.py",
    "sidecar/log/shell.py",
    "invalidation/follower.py",
)
STRESS_S = 120
"""At most: it ends at what it finds, which for the rarest takes some 10 s, now and then more than 20."""
SEED = 1
PAUSE_EVERY = 32
"""One window of the protocol in so many holds its thread up: far more than in the plain stress test."""


class PatchDoesNotApply(Exception):
    """The text that a mutation replaces isn't in the sources any more."""


def patched_tree(where: Path, edits: Iterable[Edit] = ()) -> Path:
    """Copy what mutations patch to `where`, patched. Raises PatchDoesNotApply."""
    for name in SOURCES:
        source, copy = ROOT / name, where / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("mutations", "__pycache__"))
        else:
            shutil.copyfile(source, copy)
    for edit in edits:
        path = where / edit.file
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise PatchDoesNotApply(f"{edit.file} has {text.count(edit.old)} times, not once:\n{edit.old}")
        path.write_text(text.replace(edit.old, edit.new))
    return where


@dataclass
class Workshop:
    """Compiles the stress test once, and of a patched one only what the patch reaches."""

    folder: Path
    objects: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tree = patched_tree(self.folder / "as it is")
        native = [
            path
            for path in sorted((tree / "cache_l2/native").glob("*.cpp"))
            if "bindings" not in path.name and path.name != "buffers.cpp"
        ]
        sources = [tree / "tests/native/stress.cpp", *native]  # the longest first
        with ThreadPoolExecutor(2) as pool:
            self.objects = dict(pool.map(lambda source: (source.name, _compiled(tree, source)), sources))

    def stress(self, tree: Path, rebuilt: Iterable[str] = ()) -> Path:
        """Build the stress test of a patched tree; the program's path."""
        objects = dict(self.objects)
        for name in rebuilt:
            folder = "tests/native" if name == "stress.cpp" else "cache_l2/native"
            objects[name] = _compiled(tree, tree / folder / name)
        program = tree / "stress"
        _run([*_compiler(), "-o", str(program), *map(str, objects.values()), "-pthread"])
        return program


def run_stress(program: Path, *, seconds: float = STRESS_S) -> subprocess.CompletedProcess[str]:
    """Run it with the seed and the pauses that every mutation is found with."""
    return subprocess.run(
        [str(program), str(seconds), str(SEED), str(PAUSE_EVERY)],
        capture_output=True, text=True, check=False, timeout=seconds + 60,
    )  # fmt: skip


def _compiler() -> list[str]:
    assert COMPILER is not None, "asked for before anything is built"
    return [COMPILER]


def _compiled(tree: Path, source: Path) -> Path:
    target = tree / f"{source.stem}.o"
    folders = [f"-I{tree / package / 'native'}" for package in ("cache_l2", "kv_policy")]
    _run([*_compiler(), *FLAGS, *folders, "-c", str(source), "-o", str(target)])
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
