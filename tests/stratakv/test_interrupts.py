"""Ctrl-C at each moment of `stratakv invalidate`, and the exit code that says what is known then."""

from __future__ import annotations

import signal

import pytest

from stratakv import fence_report
from stratakv.admin import Sidecar
from tests.stratakv.conftest import Command, selectors
from tests.support.admin_site import AdminSite
from tests.support.daemon import start_command
from tests.support.polling import wait_until


def test_ctrl_c_is_exit_3_and_says_how_to_repeat(site: AdminSite) -> None:
    site.members[1].acknowledges = False
    process = start_command("invalidate", "--all", "--yes", "--runtime-dir", str(site.runtime_dir))
    wait_until(lambda: bool(selectors(site)), timeout_s=30, what="the record")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 3, errors
    assert "may have been appended" in errors
    assert "--request-id" in errors
    wait_until(lambda: site.calls.running == 0, what="the end of the wait")
    assert len(selectors(site)) == 1


@pytest.mark.parametrize(("acknowledges", "code"), [(True, 0), (False, 3)])
def test_ctrl_c_while_the_answer_is_printed_changes_no_exit_code(
    site: AdminSite, stratakv: Command, monkeypatch: pytest.MonkeyPatch, acknowledges: bool, code: int
) -> None:
    site.members[1].acknowledges = acknowledges

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fence_report, "print_json", interrupted)
    result = stratakv("invalidate", "--all", "--yes", "--json", "--timeout", "200ms" if code else "20s")
    assert result.exit_code == code
    assert "interrupted" in result.stderr


def test_ctrl_c_before_anything_was_sent_is_130(
    site: AdminSite, stratakv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sidecar, "status", interrupted)
    assert stratakv("invalidate", "--all", "--yes").exit_code == 130
    assert selectors(site) == []
