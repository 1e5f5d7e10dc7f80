"""What the eviction policy has learned outlives a restart, in a file that is whole, private, and never a reason not to start."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from cache_l2.store import ArenaStore
from inference_worker.client import Client
from kv_types.errors import InvalidArgumentError
from kv_types.limits import POLICY_STATE_BYTES_MAX
from sidecar.kept_files import write_whole
from sidecar.policy_state import STATE_NAME, PolicyState
from tests.support.daemon import read_status
from tests.support.pages import chain, namespace_of, packed
from tests.support.sidecar_process import SidecarProcess, sidecar_process

STATE = b"as learned"


class FakeStore:
    """What PolicyState asks of a store."""

    def __init__(self, *, learns: bool = True, requests: int = 0) -> None:
        self.learns = learns
        self.requests = requests
        self.imported: list[bytes] = []

    def statistics(self) -> Mapping[str, int]:
        return {"policy_requests": self.requests}

    def read_notes(self) -> None:
        """Those that clients have left since the last tick."""

    def export_policy(self) -> bytes:
        return STATE

    def import_policy(self, state: bytes) -> None:
        if state != STATE:
            raise InvalidArgumentError("the state of the eviction policy: it is damaged")
        self.imported.append(state)
        self.requests = 7


def state_of(store: FakeStore, directory: Path) -> PolicyState:
    return PolicyState(cast("ArenaStore", store), directory)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    state_of(FakeStore(requests=3), tmp_path).save()
    assert stat.S_IMODE((tmp_path / STATE_NAME).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [STATE_NAME]
    after = FakeStore()
    learned = state_of(after, tmp_path)
    learned.load()
    assert after.imported == [STATE]
    (tmp_path / STATE_NAME).unlink()
    learned.save()
    assert not (tmp_path / STATE_NAME).exists(), "nothing was learned since"
    after.requests += 1
    learned.save()
    assert (tmp_path / STATE_NAME).read_bytes() == STATE


def test_the_plain_policy_leaves_the_file_alone(tmp_path: Path) -> None:
    (tmp_path / STATE_NAME).write_bytes(b"of before")
    store = FakeStore(learns=False, requests=3)
    state_of(store, tmp_path).load()
    state_of(store, tmp_path).save()
    assert not store.imported
    assert (tmp_path / STATE_NAME).read_bytes() == b"of before"


@pytest.mark.parametrize("what", ["damaged", "empty", "large", "link", "directory", "pipe"])
def test_what_cannot_be_used_is_a_warning_and_a_fresh_start(tmp_path: Path, what: str) -> None:
    path = tmp_path / STATE_NAME
    if what == "link":
        (tmp_path / "else").write_bytes(STATE)
        path.symlink_to(tmp_path / "else")
    elif what == "directory":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes({"damaged": b"x", "empty": b"", "large": bytes(POLICY_STATE_BYTES_MAX + 1)}[what])
    store = FakeStore()
    with capture_logs() as logs:
        state_of(store, tmp_path).load()
    assert not store.imported
    (line,) = logs
    assert line["log_level"] == "warning"
    assert line["path"] == str(path)


def test_nothing_there_is_nothing_to_say(tmp_path: Path) -> None:
    store = FakeStore()
    with capture_logs() as logs:
        state_of(store, tmp_path).load()
    assert not logs


def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    store = FakeStore(requests=1)
    learned = state_of(store, tmp_path / "gone")
    with capture_logs() as logs:
        learned.save()
        store.requests += 1
        learned.save()
    assert [line["log_level"] for line in logs] == ["warning"]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / STATE_NAME
    write_whole(path, b"a" * 100)
    path.with_name(path.name + ".new").write_bytes(b"left by a sidecar that was killed")
    write_whole(path, b"b")
    assert path.read_bytes() == b"b"
    assert [one.name for one in tmp_path.iterdir()] == [STATE_NAME]


def look_up(daemon: SidecarProcess) -> None:
    """Have it learn from some requests."""
    keys = packed(chain(4))
    with Client.connect(daemon.runtime) as client:
        assert client.wait_ready(deadline_s=10)
        space = client.register(namespace_of("m"))
        for _ in range(30):
            client.lease(space, keys).release()


def test_a_restart_goes_on_with_what_was_learned() -> None:
    with sidecar_process(flags=("--no-l3",)) as daemon:
        look_up(daemon)
        assert daemon.terminate() == 0
        assert (daemon.runtime / STATE_NAME).stat().st_size <= POLICY_STATE_BYTES_MAX
        daemon.start()
        assert int(read_status(daemon.runtime)["arena"]["policy_requests"]) >= 30
        daemon.kill()
        (daemon.runtime / STATE_NAME).write_bytes(b"damaged")
        daemon.start()
        assert int(read_status(daemon.runtime)["arena"]["policy_requests"]) == 0
        assert "the eviction policy begins anew" in daemon.output()
