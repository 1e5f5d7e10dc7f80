"""Announced weights versions: none at or before the view is overlooked, and what can't be told is never guessed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_worker.client import Client
from inference_worker.deadlines import Deadline
from inference_worker.weights import Announced, FollowedVersion, Versions, WeightsWatch
from kv_types.errors import ClosedError, InvalidArgumentError
from kv_types.events import Event, LogStarted, Selected, WeightsAnnounced
from kv_types.ids import new_life_id
from kv_types.limits import LOG_WEIGHTS_MAX
from kv_types.selectors import EVERYTHING
from tests.cache_l1.fakes import FakeHeader
from tests.inference_worker.conftest import MakeClient
from tests.support.attach_site import AttachSite
from tests.support.polling import wait_until
from tests.support.sidecar_process import SidecarProcess


class Sidecar:
    """A header, and a sidecar behind it that tells all versions when it is asked."""

    def __init__(self, **versions: str) -> None:
        self.header = FakeHeader()
        self.versions = versions
        self.asked = 0
        self.woken = 0
        self.answers = True
        self.watch = WeightsWatch(self.header, self._tell, wake=self._wake)

    def announce(self, model: str, version: str) -> None:
        self.versions[model] = version
        self.header.publish(WeightsAnnounced(model, version))

    def look(self, model: str = "m") -> Announced | None:
        return self.watch.look(model)

    def _tell(self) -> Versions | None:
        self.asked += 1
        if not self.answers:
            return None
        return Versions(self.header.life_now, self.header.view_now, dict(self.versions))

    def _wake(self) -> None:
        self.woken += 1


def known(**versions: str) -> Sidecar:
    sidecar = Sidecar(**versions)
    assert sidecar.look() is None
    sidecar.watch.refresh()
    return sidecar


# --- the ring and what it can't tell ---


def test_nothing_is_asked_before_somebody_looks() -> None:
    sidecar = Sidecar(m="7")
    sidecar.watch.refresh()
    assert (sidecar.asked, sidecar.woken) == (0, 0)
    assert sidecar.look() is None
    assert sidecar.woken == 1
    sidecar.watch.refresh()
    assert sidecar.look() == Announced("7", 0, 1)
    assert sidecar.look("other") == Announced(None, 0, 1)
    sidecar.watch.refresh()
    assert sidecar.asked == 1


def test_announcements_come_through_the_ring() -> None:
    sidecar = known(m="7")
    sidecar.announce("other", "1")
    sidecar.header.publish(Selected(EVERYTHING))
    assert sidecar.look() == Announced("7", 0, 1)
    sidecar.announce("m", "8")
    assert sidecar.look() == Announced("8", 1, 1)
    sidecar.announce("m", "9")
    sidecar.announce("m", "8")
    assert sidecar.look() == Announced("8", 3, 1), (
        "back to a version that was announced before, and another moment"
    )
    assert sidecar.look("other") == Announced("1", 1, 1)
    assert sidecar.asked == 1


def test_what_is_announced_while_all_versions_are_read_is_not_overlooked() -> None:
    sidecar = Sidecar(m="7")
    assert sidecar.look() is None
    tell = sidecar.watch._fetch

    def tell_late() -> Versions | None:
        told = tell()
        sidecar.announce("m", "8")
        return told

    sidecar.watch._fetch = tell_late
    sidecar.watch.refresh()
    assert sidecar.look() == Announced("8", 1, 1)


@pytest.mark.parametrize("how", ["overrun", "missing", "unknown", "log", "restart", "back"])
def test_what_the_ring_cannot_tell_is_unknown_until_it_is_read_anew(how: str) -> None:
    sidecar = known(m="7")
    header = sidecar.header
    match how:
        case "overrun":
            header.ring_records = 1
            sidecar.announce("m", "8")
            header.publish(Selected(EVERYTHING))
        case "missing":
            sidecar.announce("m", "8")
            header.publish(Selected(EVERYTHING))
            del header.events[0]
        case "unknown":
            header.publish_raw(77, b"?")
        case "log":
            header.publish(LogStarted())
        case "restart":
            header.restart()
        case "back":
            header.view_now -= 1
    assert sidecar.look() is None
    assert sidecar.look() is None, "and stays so"
    sidecar.watch.refresh()
    after = sidecar.look()
    assert after is not None
    assert (after.version, after.reads) == (sidecar.versions["m"], 2)


def test_an_answer_of_another_life_or_of_before_the_view_is_not_taken() -> None:
    sidecar = Sidecar(m="7")
    assert sidecar.look() is None
    for answer in (Versions(new_life_id(), 99, {}), Versions(sidecar.header.life_now, 0, {})):
        sidecar.watch._fetch = lambda answer=answer: answer  # type: ignore[misc]
        sidecar.watch.refresh()
        assert sidecar.look() is None
    sidecar.answers = False
    sidecar.watch._fetch = sidecar._tell
    sidecar.watch.refresh()
    assert sidecar.look() is None


def test_without_a_sidecar_nobody_is_woken() -> None:
    sidecar = known(m="7")
    sidecar.header.detach()
    assert sidecar.look() is None
    sidecar.watch.refresh()
    assert (sidecar.woken, sidecar.asked) == (1, 1)
    assert sidecar.watch.wait("m", Deadline(60.0)) is None, "nor waited for"


def test_more_models_than_are_kept_are_read_anew() -> None:
    sidecar = known(m="7")
    for number in range(LOG_WEIGHTS_MAX):
        sidecar.header.publish(WeightsAnnounced(f"model {number}", "1"))
    assert sidecar.look() is None
    sidecar.watch.refresh()
    assert sidecar.look() == Announced("7", 0, 2)


def test_who_waits_is_answered_as_soon_as_it_is_known() -> None:
    sidecar = Sidecar(m="7")
    answers: list[Announced | None] = []
    thread = threading.Thread(target=lambda: answers.append(sidecar.watch.wait("m", Deadline(30.0))))
    thread.start()
    wait_until(lambda: sidecar.woken > 0, what="the look")
    sidecar.watch.refresh()
    thread.join(10.0)
    assert answers == [Announced("7", 0, 1)]


# --- the version of one worker ---


def observed(followed: FollowedVersion, version: str | None, count: int, reads: int = 1) -> str:
    return followed.observe(None if count < 0 else Announced(version, count, reads))


def test_a_worker_goes_by_what_is_announced_while_it_runs() -> None:
    followed = FollowedVersion("1")
    assert observed(followed, None, 0) == ""
    assert followed.version == "1"
    assert observed(followed, "2", 1) == ""
    assert followed.version == "2"
    assert observed(followed, "1", 2) == "", "back again"
    assert followed.version == "1"


def test_a_worker_that_starts_with_what_is_announced_is_right() -> None:
    followed = FollowedVersion("2")
    assert observed(followed, "2", 0) == ""
    assert observed(followed, "3", 0, reads=2) == "", "announced while the ring was overrun"
    assert followed.version == "3"


def test_what_was_announced_before_a_worker_started_does_not_rename_its_weights() -> None:
    followed = FollowedVersion("1")
    why = observed(followed, "3", 0)
    assert "version 3" in why
    assert "version 1" in why
    assert followed.version == "1"
    assert observed(followed, "3", 0) == why
    assert observed(followed, "4", 1) == "", "the next announcement reaches it as it does all others"
    assert followed.version == "4"
    other = FollowedVersion("1")
    observed(other, "3", 0)
    other.declare("3")
    assert observed(other, "3", 0) == ""


def test_what_its_owner_says_holds_until_something_is_announced_later() -> None:
    followed = FollowedVersion("1")
    observed(followed, "1", 0)
    followed.declare("2")
    assert observed(followed, "1", 0) == "", "the older announcement changes nothing"
    assert observed(followed, "1", 0, reads=2) == ""
    assert followed.version == "2"
    assert observed(followed, "2", 1) == ""
    assert observed(followed, "2", 1) == ""
    assert followed.version == "2"
    followed.declare("3")
    assert observed(followed, "2", 2) == "", "announced once more, and later"
    assert followed.version == "2"


def test_what_can_not_be_told_switches_reuse_off_for_as_long() -> None:
    followed = FollowedVersion("1")
    assert "can't be told" in observed(followed, None, -1)
    followed.declare("2")
    assert "can't be told" in observed(followed, None, -1)
    assert observed(followed, "1", 0) != "", "declared while nobody could tell what was announced before"
    followed.declare("2")
    assert observed(followed, "1", 0) == ""
    assert "can't be told" in observed(followed, None, -1)
    assert observed(followed, None, 0, reads=2) == "", "a log that began anew has announced nothing"
    assert followed.version == "2"


def test_what_was_announced_stays_announced_where_a_sidecar_knows_nothing_of_it_any_more() -> None:
    """Its log began anew and it was started anew: the weights in use are no others for that."""
    behind = FollowedVersion("1")
    why = observed(behind, "3", 2)
    assert why
    assert observed(behind, None, 0, reads=2) == why, "this worker still runs weights that nobody can name"
    behind.declare("3")
    assert observed(behind, None, 0, reads=3) == ""
    assert observed(behind, "4", 1, reads=3) == ""
    assert observed(behind, None, 0, reads=4) == ""
    assert behind.version == "4"
    behind.declare("5")
    assert observed(behind, None, 0, reads=5) == ""
    assert behind.version == "5", "nothing was announced since"
    assert observed(behind, "4", 1, reads=5) == "", (
        "announced again, and later, though the count is that of before"
    )
    assert behind.version == "4"


def test_weights_without_a_version_can_not_follow() -> None:
    with pytest.raises(InvalidArgumentError, match="version"):
        FollowedVersion(None)


# --- a client and its sidecar ---


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AttachSite]:
    with AttachSite(tmp_path) as started:
        yield started


def announce(site: AttachSite, *events: Event) -> None:
    site.call(lambda store: store.append(*events))  # type: ignore[arg-type]


def of_store(site: AttachSite) -> Versions:
    """What the sidecar would tell over gRPC."""
    return site.call(lambda store: Versions(store.life, store.view, dict(store.validity.weights)))


def test_a_client_reads_announcements_in_shared_memory(
    site: AttachSite, connect: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Versions] = []

    def tell(*_: object) -> Versions:
        asked.append(of_store(site))
        return asked[-1]

    monkeypatch.setattr("inference_worker.remote.RemoteSidecar.versions", tell)
    announce(site, WeightsAnnounced("m", "1"))
    client = connect(site.path.parent, prefault=False)
    assert client.weights_version("m") == "1"
    assert client.weights_version("other") is None
    for version in ("2", "3", "2"):
        announce(site, Selected(EVERYTHING), WeightsAnnounced("m", version))
        assert client.weights_version("m") == version
    assert len(asked) == 1, "the ring told the rest"
    site.call(lambda store: store.begin_anew())
    wait_until(lambda: client.announced("m") is not None, what="the versions of the log that began anew")
    assert client.announced("m") == Announced("2", 3, 2), "its sidecar has not forgotten them"
    for number in range(200):
        announce(site, WeightsAnnounced("m", str(number)))
    assert client.announced("m", deadline_s=10.0) == Announced("199", 3, 3), "the ring was overrun"
    with pytest.raises(InvalidArgumentError, match="model"):
        client.announced("")
    client.close()
    with pytest.raises(ClosedError):
        client.announced("m")


def test_a_sidecar_that_hangs_keeps_no_look_up_waiting(
    site: AttachSite, connect: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, release = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        entered.set()
        release.wait(30.0)

    monkeypatch.setattr("inference_worker.remote.RemoteSidecar.versions", hang)
    client = connect(site.path.parent, prefault=False)
    try:
        assert client.announced("m") is None
        assert entered.wait(10.0)
        assert client.announced("m") is None
        assert client.announced("m", deadline_s=0.05) is None
    finally:
        release.set()


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_real_sidecar_tells_what_is_announced(
    shared_sidecar: SidecarProcess, connect: MakeClient, shared_memory: bool
) -> None:
    client = connect(shared_sidecar.runtime, shared_memory=shared_memory)
    found = client.announced("nobody's", deadline_s=10.0)
    assert found is not None
    assert found.version is None


def test_nobody_there_is_not_nothing_announced(connect: MakeClient, tmp_path: Path) -> None:
    client: Client = connect(tmp_path, attach_deadline_s=0.1)
    assert client.announced("m") is None
    assert client.announced("m", deadline_s=5.0) is None
    assert client.weights_version("m") is None
