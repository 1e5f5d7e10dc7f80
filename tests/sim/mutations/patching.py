"""Applies a mutation: modules are loaded from patched text, and the log's script is taken from patched text.

In a process that has loaded none of them yet, and for the rest of that process's life.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from tests.sim.mutations.mutation import Edit, Mutation

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = "invalidation/redis/log.lua"
_SCRIPT_MODULE = "invalidation.redis.script"


def patched_text(file: str, edits: Sequence[Edit]) -> str:
    """Text of a file with its edits; raises ValueError unless each applies exactly once."""
    text = (ROOT / file).read_text(encoding="utf-8")
    for edit in edits:
        if text.count(edit.old) != 1:
            raise ValueError(f"{file} has {text.count(edit.old)} places like {edit.old!r}; a patch needs one")
        text = text.replace(edit.old, edit.new)
    return text


def texts_of(mutation: Mutation) -> dict[str, str]:
    """Every file that a mutation changes, patched; raises ValueError."""
    files = dict.fromkeys(edit.file for edit in mutation.edits)
    return {
        file: patched_text(file, [edit for edit in mutation.edits if edit.file == file]) for file in files
    }


class _Patched(MetaPathFinder, Loader):
    """Finds the patched modules before anybody else does."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._script = texts.get(SCRIPT)
        self._modules = {
            file.removesuffix(".py").replace("/", "."): text for file, text in texts.items() if file != SCRIPT
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._modules:
            return importlib.util.spec_from_loader(fullname, self)
        if fullname == _SCRIPT_MODULE and self._script is not None:
            self._modules[fullname] = (ROOT / f"{fullname.replace('.', '/')}.py").read_text(encoding="utf-8")
            return importlib.util.spec_from_loader(fullname, self)
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        exec(compile(self._modules[name], f"<patched {name}>", "exec"), module.__dict__)
        if name == _SCRIPT_MODULE and self._script is not None:
            module.script_text = functools.partial(str, self._script)  # type: ignore[attr-defined]


def apply(mutation: Mutation) -> None:
    """From here on the product is broken in this way. Raises ValueError where a patch no longer fits."""
    texts = texts_of(mutation)
    loaded = [file for file in texts if file.removesuffix(".py").replace("/", ".") in sys.modules]
    if loaded:
        raise ValueError(f"{loaded} were loaded before they could be patched")
    sys.meta_path.insert(0, _Patched(texts))
