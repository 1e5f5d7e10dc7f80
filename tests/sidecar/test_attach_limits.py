"""What one process may take of the attach socket: it is told when it is enough, and the others are served."""

from __future__ import annotations

from pathlib import Path

from cache_l2.attach_messages import Refusal, Refused, Welcome
from kv_types.limits import ATTACH_HANDSHAKES_MAX, CLIENT_ROWS_PER_PROCESS_MAX
from tests.support.attach_raw import attach_raw, dial, greet, hear, hello, rows_in_use
from tests.support.attach_site import AttachSite
from tests.support.attach_worker import Worker
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
            welcome = hear(connection, descriptors=3)
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
            assert isinstance(hear(again, descriptors=3), Welcome)
            assert rows_in_use(site) == 2
        attach_raw(site).close()
