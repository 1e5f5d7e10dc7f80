"""The client's background thread: it attends to its host when it is poked, and hurries no attempt for that."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from inference_worker.session import BACKOFF_S_MIN, Session
from inference_worker.supervisor import Connection, Supervisor
from kv_types.errors import SidecarUnreachableError
from tests.support.polling import wait_until


class QuietConnection:
    """An arena whose sidecar never ends."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self.closed = False

    def fileno(self) -> int:
        return self._read

    def is_ending(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True
        os.close(self._read)
        os.close(self._write)


class Host:
    """Counts what the thread asks for. `there` False: every attempt fails."""

    def __init__(self, *, there: bool) -> None:
        self.there = there
        self.attempts: list[float] = []
        self.attended = 0
        self.connection: QuietConnection | None = None

    def attach(self) -> Connection:
        self.attempts.append(time.monotonic())
        if not self.there:
            raise SidecarUnreachableError("nobody is there")
        self.connection = QuietConnection()
        return self.connection

    def publish(self, connection: Connection) -> None: ...

    def withdraw(self, connection: Connection) -> None:
        connection.close()

    def use_remote(self) -> None: ...

    def attempted(self) -> None: ...

    def attend(self) -> None:
        self.attended += 1


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Host:
    return Host(there=request.param)


@pytest.fixture
def supervisor(host: Host) -> Iterator[Supervisor]:
    made = Supervisor(Session(reattach_s=1.0), host)
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize("host", [True], indirect=True)
def test_a_poke_is_attended_to_at_once(host: Host, supervisor: Supervisor) -> None:
    wait_until(lambda: host.attended > 0, what="the first attendance, when the arena serves")
    for _ in range(20):
        before = host.attended
        began = time.monotonic()
        supervisor.poke()
        wait_until(lambda before=before: host.attended > before, what="the poke to be seen")  # type: ignore[misc]
        if time.monotonic() - began < 0.1:
            break
    else:
        raise AssertionError("twenty pokes were seen no sooner than the thread looks by itself")
    supervisor.stop()
    supervisor.poke()
    assert host.connection is not None
    assert host.connection.closed


@pytest.mark.parametrize("host", [False], indirect=True)
def test_no_number_of_pokes_makes_the_next_attempt_come_sooner(host: Host, supervisor: Supervisor) -> None:
    def poked_long_enough() -> bool:
        supervisor.poke()
        return len(host.attempts) >= 6

    wait_until(poked_long_enough, what="some attempts")
    least = [BACKOFF_S_MIN * 2.0**failures / 2 for failures in range(5)]
    gaps = [after - before for before, after in zip(host.attempts, host.attempts[1:], strict=False)]
    assert all(gap >= shortest * 0.99 for gap, shortest in zip(gaps, least, strict=False)), gaps
    assert host.attended == 0, "nothing serves, so there is nothing to attend to"
