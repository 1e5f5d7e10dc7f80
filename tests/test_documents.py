"""Documents point at what is there: links, files, tests, make targets and limits by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_tidy import ROOT, _name, _tracked

DOCUMENTS = _tracked(".md")

TESTS = {
    name
    for path in (ROOT / "tests").rglob("*.py")
    for name in re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)]*)?\)", _text(path)):
        if "://" in target:
            continue
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), f"{_name(path)} links to {target}, which is not there"
        if anchor and found.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", _text(found), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor[1:] in anchors, (
                f"{_name(path)} links to {target}{anchor}, a heading that is not there"
            )


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_tests_that_are_named_exist(path: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", _text(path)))
    assert named <= TESTS, f"{_name(path)} names {sorted(named - TESTS)}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_files_that_are_named_exist(path: Path) -> None:
    for named in set(re.findall(r"`([\w./-]+/[\w.*-]+\.(?:py|hpp|cpp|sh|proto|md|cpp))`", _text(path))):
        assert list(ROOT.glob(named)) or list(path.parent.glob(named)), f"{_name(path)} names {named}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_make_targets_that_are_named_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", _text(ROOT / "Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", _text(path), re.MULTILINE))
    assert named <= targets, f"{_name(path)} names {sorted(named - targets)}"
