"""Ctrl-C and SIGTERM at each moment of `stratakv invalidate`, and the exit code that says what is known then."""

from __future__ import annotations

import signal
from concurrent.futures import Future

import pytest

from stratakv import fence_report
from stratakv.admin import FleetNamespaces, Sidecar
from stratakv.waiting import call_and_wait, waiting_of
from tests.stratakv.conftest import Command, selectors
from tests.support.admin_site import AdminSite
from tests.support.daemon import start_command
from tests.support.polling import wait_until


@pytest.mark.parametrize(
    ("number", "why"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")],
    ids=["Ctrl-C", "SIGTERM"],
)
@pytest.mark.parametrize(
    "words",
    [("invalidate", "--all", "--yes"), ("weights", "set-version", "2", "--model", "m", "--from", "1")],
)
def test_what_ends_a_wait_is_exit_3_and_says_how_to_repeat(
    site: AdminSite, words: tuple[str, ...], number: signal.Signals, why: str
) -> None:
    site.members[1].acknowledges = False
    process = start_command(*words, "--runtime-dir", str(site.runtime_dir))
    wait_until(lambda: bool(site.call(site.fleet.records)), timeout_s=30, what="the record")
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 3, errors
    assert why in errors
    assert "may have been appended" in errors
    assert "--request-id" in errors
    wait_until(lambda: site.calls.running == 0, what="the end of the wait")
    assert len(site.call(site.fleet.records)) == (1 if words[0] == "invalidate" else 2)


def test_sigterm_while_the_fleets_namespaces_are_read_again_says_that_more_may_have_to_go(
    site: AdminSite, stratakv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, calls = Sidecar.namespaces, iter(range(9))

    def terminated(sidecar: Sidecar) -> FleetNamespaces:
        if next(calls):
            signal.raise_signal(signal.SIGTERM)
        return read(sidecar)

    monkeypatch.setattr(Sidecar, "namespaces", terminated)
    result = stratakv("invalidate", "--prefix-tokens", "-", "--tenant", "alice", stdin="1 2 3 4")
    assert result.exit_code == 3
    assert "terminated while the fleet's namespaces were read" in result.stderr
    assert "--request-id" in result.stderr
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


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
    monkeypatch.setattr(Sidecar, "status", lambda _: signal.raise_signal(signal.SIGTERM))
    assert stratakv("invalidate", "--all", "--yes").exit_code == 143
    assert selectors(site) == []


def test_sigterm_that_is_ignored_goes_on_being_ignored(
    site: AdminSite, stratakv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = Sidecar.status

    def signalled(sidecar: Sidecar) -> object:
        signal.raise_signal(signal.SIGTERM)
        return status(sidecar)

    monkeypatch.setattr(Sidecar, "status", signalled)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert stratakv("invalidate", "--all", "--yes").exit_code == 0
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("number", "why"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_what_ends_a_wait_does_not_end_grpc_in_the_midst_of_beginning_it(
    number: signal.Signals, why: str
) -> None:
    """A call that had begun and that nobody drove kept its channel from closing, for ever."""

    class Calling:
        begun: Future[object] | None = None

        def future(self, *_: object, **__: object) -> Future[object]:
            signal.raise_signal(number)
            self.begun = Future()
            return self.begun

    def raises(*_: object) -> None:
        raise KeyboardInterrupt

    calling, before = Calling(), signal.signal(number, raises)
    try:
        waiting = waiting_of(None, "1s", None, no_wait=False)
        assert call_and_wait(calling, None, waiting) == (None, why)
        assert signal.getsignal(number) is raises
    finally:
        signal.signal(number, before)
    assert calling.begun is not None
    assert calling.begun.cancelled()
