"""Style as a test: sizes, first lines, broad excepts, sleeping tests, and words that must not spread.

A ratchet may only go down: when a file shrinks below its allowance, the allowance goes with it.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
PRODUCT = (
    "kv_types", "kv_policy", "kv_wire", "cache_l1", "cache_l2", "cache_l3",
    "invalidation", "inference_worker", "sidecar", "stratakv", "benchmarks", "examples",
)  # fmt: skip

# file -> lines it may have; only files that were longer than the limit when they came
FILE_LINES_RATCHET: dict[str, int] = {}


def _tracked(suffix: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"*{suffix}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = [ROOT / line for line in listing.splitlines()]
    return [path for path in found if path.exists() and "gen" not in path.relative_to(ROOT).parts[:2]]


PYTHON = _tracked(".py")
NATIVE = _tracked(".cpp") + _tracked(".hpp")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _is_product(path: Path) -> bool:
    return path.relative_to(ROOT).parts[0] in PRODUCT


@pytest.mark.parametrize("path", PYTHON, ids=_name)
def test_first_line_states_the_responsibility(path: Path) -> None:
    doc = ast.get_docstring(ast.parse(path.read_text()))
    if doc is None:
        is_marker = path.name == "__init__.py" and not path.read_text().strip()
        assert is_marker, f"{_name(path)} has no module docstring"
        assert not _is_product(path), (
            f"{_name(path)} is a package of the product and says nothing about itself"
        )
        return
    first = doc.splitlines()[0]
    assert len(first) >= 20, f"{_name(path)}: the first line says too little: {first!r}"


@pytest.mark.parametrize("path", PYTHON + NATIVE, ids=_name)
def test_files_stay_small(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    allowed = FILE_LINES_RATCHET.get(_name(path), FILE_LINES_MAX)
    assert lines <= allowed, f"{_name(path)} has {lines} lines, {allowed} are allowed"
    if _name(path) in FILE_LINES_RATCHET:
        assert lines > FILE_LINES_MAX, f"{_name(path)} fits the limit now: drop it from the ratchet"


@pytest.mark.parametrize("path", PYTHON, ids=_name)
def test_functions_stay_small(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{_name(path)}:{node.lineno} {node.name} has {lines} lines"


def _swallows(handler: ast.ExceptHandler) -> bool:
    broad = handler.type is None or (
        isinstance(handler.type, ast.Name) and handler.type.id in {"Exception", "BaseException"}
    )
    silent = all(
        isinstance(statement, ast.Pass | ast.Continue)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in handler.body
    )
    return broad and silent


@pytest.mark.parametrize("path", PYTHON, ids=_name)
def test_no_error_is_swallowed(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            assert not _swallows(node), f"{_name(path)}:{node.lineno} swallows every error"


@pytest.mark.parametrize("path", [p for p in PYTHON if "tests" in p.relative_to(ROOT).parts[:1]], ids=_name)
def test_tests_do_not_sleep(path: Path) -> None:
    if path.name in {"polling.py", "test_tidy.py"} or "sim" in path.relative_to(ROOT).parts:
        return  # a simulated process sleeps on the simulation's clock
    assert not re.search(r"\btime\.sleep\(|\basyncio\.sleep\((?!0\))", path.read_text()), (
        f"{_name(path)} sleeps: use an injected clock, or poll with a deadline"
    )


@pytest.mark.parametrize("path", [p for p in PYTHON if _is_product(p)], ids=_name)
def test_nothing_unpickles_or_evaluates(path: Path) -> None:
    """C35: no byte from outside ever becomes code."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not {alias.name for alias in node.names} & {"pickle", "marshal", "shelve", "dill"}, _name(
                path
            )
        if isinstance(node, ast.ImportFrom):
            assert node.module not in {"pickle", "marshal", "shelve", "dill"}, _name(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec"}, f"{_name(path)}:{node.lineno} evaluates text"


@pytest.mark.parametrize("path", PYTHON + NATIVE, ids=_name)
def test_no_unfinished_marks(path: Path) -> None:
    if path.name == "test_tidy.py":
        return
    found = re.search(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b", path.read_text())
    assert found is None, (
        f"{_name(path)} contains {found.group(0) if found else ''}: finish it or leave it out"
    )


LIMITS = tuple(sorted((ROOT / "kv_types").glob("*limits.py")))


def _assigned(path: Path) -> list[tuple[str, ast.expr]]:
    """Names that a module gives at its top, and their values."""
    return [
        (target.id, statement.value)
        for statement in ast.parse(path.read_text()).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    ]


def _may_have_limits(path: Path) -> bool:
    return path in LIMITS or path.relative_to(ROOT).parts[0] in {"benchmarks", "examples"}


@pytest.mark.parametrize("path", [p for p in PYTHON if _is_product(p) and not _may_have_limits(p)], ids=_name)
def test_limits_stand_in_one_place(path: Path) -> None:
    """A number named `…_MAX` is a limit; what is made of limits or of sizes may stand elsewhere."""
    own = [
        name
        for name, value in _assigned(path)
        if name.endswith("_MAX")
        and "UINT" not in name
        and not any(isinstance(part, ast.Name | ast.Attribute) for part in ast.walk(value))
    ]
    assert not own, f"{_name(path)} has limits of its own: {own}; they belong to kv_types/limits.py"


def test_every_limit_is_enforced_somewhere() -> None:
    """The native core's own limits are compared with these by tests/cache_l2/test_native_pages.py."""
    limits = {name for path in LIMITS for name, _ in _assigned(path)}
    native = "\n".join(path.read_text() for path in (ROOT / "tests/cache_l2").glob("test_native_pages.py"))
    used: set[str] = {name for name in limits if f"limits.{name}," in native}
    for path in PYTHON:
        if not _is_product(path):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if path in LIMITS and not isinstance(node, ast.Assign):
                continue  # a relation enforces nothing
            parts = ast.walk(node.value) if path in LIMITS and isinstance(node, ast.Assign) else [node]
            used |= {part.id for part in parts if isinstance(part, ast.Name)}
            used |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
    assert limits - used == set(), "nothing enforces these"
