"""`--wait=drained` against a real sidecar and real workers: whoever holds it back is named, by the process to end."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kv_wire.channel import open_channel
from tests.support.daemon import ROOT, Daemon
from tests.support.node_command import Node
from tests.support.remote_store import RemoteStore

DRAINED = ("invalidate", "--model", "held", "--yes", "--wait=drained")
WORKER = """
import sys
from inference_worker.client import Client, ClientSettings
from tests.inference_worker.worlds import chain, namespace, pages_under
from tests.support.puts import put_fresh
client = Client.connect(sys.argv[1], settings=ClientSettings(name=sys.argv[2], deadline_s=10.0))
space = client.register(namespace("held"))
keys = chain(space.identified, 3)
put_fresh(client, space, keys, pages_under(keys, space.page_bytes))
if sys.argv[3] == "request":
    request = client.begin(space)
else:
    lease = client.lease(space, keys)
    assert lease.pages == 3
print("holds", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with (
        tempfile.TemporaryDirectory(prefix="skv-") as scratch,
        Daemon(Path(scratch) / "run", "--copy-kernel", "memcpy") as daemon,
    ):
        daemon.wait_ready()
        with open_channel(daemon.grpc_address) as channel:
            yield Node(daemon, RemoteStore(channel))


@contextmanager
def worker(node: Node, name: str, what: str) -> Iterator[int]:
    """A process that holds a request or a lease until the block is left; its process id."""
    command = [sys.executable, "-c", WORKER, str(node.daemon.runtime_dir), name, what]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "holds\n"
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("what", "why"),
    [("request", "a request of it began at view"), ("lease", "it leases a page that was hidden")],
)
def test_c36_whoever_holds_draining_back_is_named_and_its_end_drains(node: Node, what: str, why: str) -> None:
    with worker(node, "a worker", what) as pid:
        missed = node.run(*DRAINED, "--timeout", "1s", code=3)
        assert (missed["reason"], missed["why"]) == ("members", "members have not drained")
        (member,) = missed["missing"]
        assert member["acknowledged"] > member["drained"], "what is hidden is hidden"
        (held,) = member["note"]["held_back_by"]
        assert held.startswith(f"pid {pid} (a worker): {why}")
        (member,) = node.run("members")["members"]
        assert member["note"]["held_back_by"] == [held]
        status = node.store.status()
        assert list(status.log.draining_held_by) == [held]
        assert not status.log.held_by, "nobody holds back the acknowledgement"
        (client,) = [one for one in status.clients if one.pid == pid]
        told = client.oldest_view if what == "request" else client.oldest_hidden_view
        assert 0 < told < status.view
    assert node.run(*DRAINED, "--request-id", missed["request_id"])["confirmed"]
    assert not node.store.status().log.draining_held_by


def test_everybody_who_holds_draining_back_is_named(node: Node) -> None:
    with worker(node, "x", "request") as first, worker(node, "y", "lease") as second:
        missed = node.run(*DRAINED, "--timeout", "1s", code=3)
        (member,) = missed["missing"]
        told = " ".join(member["note"]["held_back_by"])
        assert f"pid {first} " in told
        assert f"pid {second} " in told
    assert node.run(*DRAINED, "--request-id", missed["request_id"])["confirmed"]
