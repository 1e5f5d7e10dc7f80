"""What one process may take of the attach socket: it is told when it is enough, and the others are served."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from cache_l2.attach_messages import (
    ChainToLoad,
    ClientMessage,
    Commit,
    Load,
    Refusal,
    Refused,
    Register,
    Reserve,
    ReservedPages,
    SidecarMessage,
    Welcome,
)
from cache_l2.attach_socket import send_datagram
from cache_l2.attach_wire import WELCOME_DESCRIPTORS, encode_message
from kv_types.limits import (
    ATTACH_HANDSHAKES_MAX,
    BATCH_PAGES_MAX,
    CLIENT_ROWS_PER_PROCESS_MAX,
    LOAD_KEYS_MAX,
    NAMESPACES_MAX,
    NAMESPACES_PER_CLIENT_MAX,
    TAGS_PER_RECORD_MAX,
)
from tests.support.attach_raw import attach_raw, dial, greet, hear, hello, rows_in_use, still_serves
from tests.support.attach_site import AttachSite, register
from tests.support.attach_worker import Worker
from tests.support.pages import chain, namespace_of, packed
from tests.support.polling import wait_until

ROWS = 2 * CLIENT_ROWS_PER_PROCESS_MAX


def test_half_open_connections_of_one_process_keep_no_other_one_out(site: AttachSite) -> None:
    with Worker("crowds", site.path, "", 2 * ATTACH_HANDSHAKES_MAX) as crowd:
        crowd.hear()
        wait_until(
            lambda: site.statistic("server.shed") > 2 * ATTACH_HANDSHAKES_MAX, what="the crowd to be shed"
        )
        for _ in range(20):
            with site.attach() as arena:
                assert arena.ping(deadline_s=5.0)
        assert site.statistic("server.connections") <= ATTACH_HANDSHAKES_MAX + 1
    wait_until(lambda: site.statistic("server.connections") == 0, what="the crowd to be gone")
    assert rows_in_use(site) == 1, "the sidecar's own"


def test_one_process_takes_its_rows_and_no_more(tmp_path: Path) -> None:
    """Those of connections that broke count: it may still touch the memory, until it says that it doesn't."""
    with AttachSite(tmp_path, client_rows=ROWS) as site:
        gone = []
        for _ in range(CLIENT_ROWS_PER_PROCESS_MAX):
            connection = dial(site)
            greet(connection, hello())
            welcome = hear(connection, descriptors=WELCOME_DESCRIPTORS)
            assert isinstance(welcome, Welcome)
            gone.append(welcome.attachment)
            connection.close()
        with dial(site) as one_more:
            greet(one_more, hello())
            refused = hear(one_more)
        assert isinstance(refused, Refused)
        assert refused.code == Refusal.ROWS_FULL
        assert "share a client, or close some" in refused.text
        with Worker("gets", site.path, "00" * 32, 1) as other:
            assert other.hear() == {"pages": 0}
        with dial(site) as again:
            greet(again, hello(gone=tuple(gone)))
            assert isinstance(hear(again, descriptors=WELCOME_DESCRIPTORS), Welcome)
            assert rows_in_use(site) == 2
        attach_raw(site).close()


def test_who_attaches_again_and_again_with_other_namespaces_fills_no_table(site: AttachSite) -> None:
    for visit in range(NAMESPACES_MAX // NAMESPACES_PER_CLIENT_MAX + 2):
        with site.attach() as arena:
            for number in range(NAMESPACES_PER_CLIENT_MAX):
                register(arena, namespace_of(f"{visit}/{number}"))
    assert site.statistic("namespaces") == NAMESPACES_MAX
    assert site.statistic("namespaces_recycled") > 0
    still_serves(site)


def test_c39_no_messages_of_a_client_keep_the_event_loop_for_20_ms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest ones, as many as go into its socket at once; processor time of the loop's longest step, round by round.

    The collector of a process full of tests can spoil a round; what the code itself costs shows in every one.
    """
    steps: list[float] = []
    longest: list[float] = []
    plain = asyncio.Handle._run

    def measured(self: asyncio.Handle) -> None:
        began_s = time.thread_time()
        plain(self)
        steps.append(time.thread_time() - began_s)

    with AttachSite(tmp_path, arena_bytes=32 << 20, pages_max=8192) as site, attach_raw(site) as client:
        namespace = namespace_of()
        _ask(client, Register(namespace.canonical, 4096))
        monkeypatch.setattr(asyncio.Handle, "_run", measured)
        for _ in range(5):
            steps.clear()
            reserves = [
                Reserve(namespace_number=0, parent=None, keys=packed(chain(BATCH_PAGES_MAX)), ttl_s=None)
                for _ in range(3)
            ]
            reserved = _ask(client, *reserves)
            ids = [one.reservations for one in reserved if isinstance(one, ReservedPages)]
            assert len(ids) == 3
            stamp = site.call(lambda store: store.stamp())
            tags = tuple(b"%d" % number for number in range(TAGS_PER_RECORD_MAX))
            _ask(client, *(Commit(reservations=one, stamp=stamp, producer=b"p", tags=tags) for one in ids))
            wanted = ChainToLoad(namespace_number=0, parent=None, keys=packed(chain(LOAD_KEYS_MAX // 2)))
            _ask(client, Load((wanted, wanted), 10, False))
            assert len(steps) > 5
            longest.append(max(steps))
        monkeypatch.undo()
    assert min(longest) < 0.020, f"the longest steps took {longest} s"


def _ask(client: socket.socket, *messages: ClientMessage) -> list[SidecarMessage | None]:
    """Send all at once, then hear the answers."""
    for number, message in enumerate(messages):
        send_datagram(client, encode_message(message, number))
    return [hear(client) for _ in messages]
