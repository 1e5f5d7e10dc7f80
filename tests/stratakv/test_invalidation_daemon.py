"""The administrator's verbs against a real sidecar, on a local log and on a Redis: what goes, what stays, and when."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_worker.client import Client
from kv_types.namespace import Weights
from kv_types.outcomes import STORED, Refused, RefuseReason
from kv_types.page_layout import PageLayout
from kv_wire.channel import open_channel
from tests.kv_types.samples import namespace
from tests.support.daemon import Daemon
from tests.support.node_command import Node
from tests.support.pages_put import Chain
from tests.support.polling import wait_until
from tests.support.remote_store import RemoteStore
from tests.support.spaces import page_of

HOUR_MS = 3_600_000
IN_FLIGHT = [Refused(RefuseReason.INVALIDATED), Refused(RefuseReason.PARENT_ABSENT)]
"""What two pages get whose request began before their invalidation: without the first nobody could reach the second."""


@pytest.fixture(scope="module", params=["local", "private"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    flags = ["--copy-kernel", "memcpy", *(["--no-l3"] if request.param == "local" else [])]
    with (
        tempfile.TemporaryDirectory(prefix="skv-") as scratch,
        Daemon(Path(scratch) / "run", *flags) as daemon,
    ):
        daemon.wait_ready()
        assert daemon.line("ready")["log"].startswith("local" if "--no-l3" in flags else "unix:"), (
            daemon.line("ready")
        )
        with open_channel(daemon.grpc_address) as channel:
            yield Node(daemon, RemoteStore(channel))


def chain(*tokens: int, **fields: Any) -> Chain:
    return Chain(namespace(**{"page_tokens": 2, **fields}), tokens)


def stored(node: Node, *chains: Chain, **terms: Any) -> None:
    for one in chains:
        outcomes = one.put(node.store, **terms)
        assert outcomes == [STORED] * len(outcomes), outcomes
        assert one.resident(node.store) == len(outcomes)


def goes(node: Node, *words: str) -> int:
    """Invalidate; the dry run before must have counted exactly what then went. Returns the pages."""
    told = node.run("invalidate", *words, "--dry-run")
    (tier,) = told["tiers"]
    before = node.pages()
    assert node.run("invalidate", *words)["confirmed"]
    assert before - node.pages() == tier["pages"], "the dry run counted something else"
    return int(tier["pages"])


@pytest.fixture(autouse=True)
def empty(node: Node) -> None:
    node.run("invalidate", "--all", "--yes")
    assert node.pages() == 0


def test_c40_purging_one_prefix_leaves_all_else(node: Node, tmp_path: Path) -> None:
    ours, fork, other = chain(1, 2, 3, 4, 5, 6), chain(1, 2, 7, 8), chain(9, 9, 3, 4)
    elsewhere = chain(1, 2, 3, 4, 5, 6, model="another")
    stored(node, ours, other, elsewhere)
    fork.put(node.store)
    file = tmp_path / "prefix"
    file.write_text("[1, 2, 3, 4, 5]")
    assert goes(node, "--prefix-tokens", str(file), "--namespace", ours.space.id.hex()) == 2
    assert [one.resident(node.store) for one in (ours, fork, other, elsewhere)] == [1, 2, 2, 3]
    assert node.run("invalidate", "--prefix-tokens", str(file), "--yes")["namespaces"] != []
    assert [one.resident(node.store) for one in (ours, fork, other, elsewhere)] == [1, 2, 2, 1]


def test_c40_purging_one_producers_pages_of_the_last_ten_minutes_leaves_all_else(node: Node) -> None:
    bad, old, good = chain(1, 2, 3, 4), chain(5, 6), chain(7, 8, 9, 10)
    stored(node, bad, producer=b"node-1")
    stored(node, old, producer=b"node-1", computed_ms_ago=HOUR_MS)
    stored(node, good, producer=b"node-2")
    assert goes(node, "--producer", "node-1", "--since", "10m ago", "--yes") == 2
    assert [one.resident(node.store) for one in (bad, old, good)] == [0, 1, 2]


def test_c40_purging_one_tenant_leaves_all_else(node: Node) -> None:
    alice, bob, nobody = (chain(1, 2, 3, 4, tenant=tenant) for tenant in ("alice", "bob", ""))
    stored(node, alice, bob, nobody)
    assert goes(node, "--tenant", "alice", "--yes") == 2
    assert [one.resident(node.store) for one in (alice, bob, nobody)] == [0, 2, 2]
    assert goes(node, "--tenant", "", "--yes") == 2
    assert [one.resident(node.store) for one in (alice, bob, nobody)] == [0, 2, 0]


def test_c40_purging_one_tag_takes_what_was_computed_on_it_along(node: Node) -> None:
    base, longer, other = chain(1, 2), chain(1, 2, 3, 4), chain(5, 6)
    stored(node, base, tags=[b"suspect"])
    stored(node, other, tags=[b"fine"])
    longer.put(node.store)
    assert longer.resident(node.store) == 2
    assert goes(node, "--tag", "suspect", "--yes") == 2
    assert [one.resident(node.store) for one in (longer, other)] == [0, 1]


def test_c36_a_put_in_flight_is_refused_and_the_same_prompt_can_be_stored_again(node: Node) -> None:
    ours, other = chain(1, 2, 3, 4), chain(5, 6)
    before = node.store.stamp()
    node.run("invalidate", "--namespace", ours.space.id.hex())
    assert ours.put(node.store, stamp=before) == IN_FLIGHT
    assert ours.resident(node.store) == 0
    stored(node, ours, other)


def test_c36_leased_pages_are_hidden_at_once_and_drained_waits_for_their_release(node: Node) -> None:
    """A worker in shared memory: what it holds stays readable to it, and is found by nobody else."""
    ours, other = chain(1, 2, 3, 4), chain(5, 6)
    stored(node, ours, other)
    size = PageLayout.of(ours.space).page_bytes
    with Client.connect(node.daemon.runtime_dir) as client:
        space = client.register(ours.space)
        with client.begin(space) as request, request.lease(ours.keys) as held:
            assert len(held) == 2
            assert node.run("invalidate", "--namespace", ours.space.id.hex())["confirmed"]
            with client.begin(space) as later, later.lease(ours.keys) as found:
                assert len(found) == 0
            assert [bytes(view) for view in held] == [bytes(page_of(key, size)) for key in ours.keys]
            missed = node.run("invalidate", "--all", "--yes", "--wait=drained", "--timeout", "300ms", code=3)
            (member,) = missed["missing"]
            assert member["is_self"], "this sidecar's own client is in the way"
        drained = node.run(
            "invalidate", "--all", "--yes", "--wait=drained", "--request-id", missed["request_id"]
        )
        assert drained["confirmed"]
    assert node.store.status().arena["leased_bytes"] == 0


def test_c15_c16_weights_change_under_load(node: Node) -> None:
    """After the command says so, no look-up gets a page of the old weights, and no put that was in flight gets in.

    The old version was never announced here, and nobody says what it is called.
    """
    old = chain(1, 2, 3, 4, model="llm", weights=Weights(version="1"))
    new = Chain(namespace(model="llm", weights=Weights(version="2"), page_tokens=2), old.tokens)
    begun = node.store.stamp()
    swapped, fenced, stop = threading.Event(), threading.Event(), threading.Event()
    rounds: list[bool] = []
    wrong: list[int] = []

    def load() -> None:
        """Until the weights are swapped each request is new; after that, those that began before it come to their end."""
        with open_channel(node.daemon.grpc_address) as channel:
            store = RemoteStore(channel)
            while not stop.is_set():
                is_over = fenced.is_set()
                old.put(store, stamp=begun if swapped.is_set() else store.stamp())
                if (pages := old.resident(store)) and is_over:
                    wrong.append(pages)
                rounds.append(is_over)

    old.put(node.store)
    worker = threading.Thread(target=load)
    worker.start()
    try:
        wait_until(lambda: old.resident(node.store) == 2, what="pages of the old weights")
        swapped.set()
        told = node.run("weights", "set-version", "2", "--model", "llm")
        fenced.set()
        assert old.resident(node.store) == 0
        assert (told["confirmed"], told["invalidated_version"]) == (True, None)
        stored(node, new)
        wait_until(lambda: rounds.count(True) > 20, what="load after the fence")
    finally:
        stop.set()
        worker.join()
    assert wrong == []
    assert old.put(node.store, stamp=begun) == IN_FLIGHT
    assert dict(node.store.status().weights_versions)["llm"] == "2"


def test_inspect_tells_of_real_pages(node: Node, tmp_path: Path) -> None:
    ours = chain(1, 2, 3, 4)
    stored(node, ours, producer=b"node-1", tags=[b"t"])
    file = tmp_path / "tokens"
    file.write_text("1 2 3 4 5 6")
    (told,) = node.run("inspect", "--prefix-tokens", str(file), "--namespace", ours.space.id.hex())["chains"]
    assert [page["servable"] for page in told["pages"]] == [True, True, False]
    header = told["pages"][1]["header"]
    assert (header["producer"], header["tags"], header["parent"]) == ("node-1", ["t"], ours.keys[0].hex())
    assert header["lineage_known"] is True
    node.run("invalidate", "--key", ours.keys[1].hex())
    (told,) = node.run("inspect", "--prefix-tokens", str(file), "--namespace", ours.space.id.hex())["chains"]
    assert [page["servable"] for page in told["pages"]] == [True, False, False]
    assert "selects" in told["pages"][1]["why"]


def test_the_log_members_and_namespaces_are_those_of_this_sidecar(node: Node) -> None:
    stored(node, chain(1, 2, model="listed"))
    told = node.run("members")
    (member,) = told["members"]
    assert member["is_self"] is True
    assert member["note"]["pid"] == node.daemon.pid
    assert told["settled"] is True
    assert "listed" in {one["model"] for one in node.run("namespaces")["namespaces"]}
    drained = node.run("invalidate", "--all", "--yes", "--wait=drained")
    assert drained["confirmed"]
    assert node.log()[-1]["revision"] == drained["appended"][0]["revision"]


def test_replicas_that_this_log_can_not_have_are_refused(node: Node) -> None:
    for words in (("1",), ("1", "--force")):
        refused = node.fails("replicas", "set", *words, code=2)
        assert "has no replicas" in refused
    assert node.run("replicas", "set", "0") == {"replicas": 0}
    assert node.run("members")["replicas"] == 0
