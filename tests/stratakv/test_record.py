"""Recording a sidecar's look-ups: a round trip from real clients to a replay, and how a recording begins and ends."""

from __future__ import annotations

import gzip
import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from typer.testing import CliRunner

from inference_worker.client import Client, ClientSettings, RegisteredNamespace
from kv_policy.replays import replay_named
from kv_types.ids import DIGEST_BYTES, KEY_BYTES
from kv_types.outcomes import MissReason
from kv_types.trace_limits import LOOKED_PAGES_MAX, RECORDINGS_MAX
from stratakv.cli import app
from stratakv.record import Salted
from stratakv.trace_files import read_traces
from tests.inference_worker.worlds import PAGE_TOKENS, all_stored, chain, namespace, pages_under, room_for
from tests.stratakv.conftest import Command
from tests.support.admin_site import AdminSite
from tests.support.daemon import Daemon, start_command
from tests.support.polling import wait_until

SPACE = namespace("recorded")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="skv-") as scratch, Daemon(Path(scratch) / "run") as running:
        yield running.wait_ready()


class Recording:
    """`stratakv record` in a process of its own, from when it has said that it records."""

    def __init__(self, daemon: Daemon, *words: str) -> None:
        self.process = start_command("record", *words, "--runtime-dir", str(daemon.runtime_dir))
        assert self.process.stderr is not None
        self.heard = self.process.stderr.readline()
        assert "recording" in self.heard, self.heard + self.process.stderr.read()

    def end(self) -> tuple[int, str]:
        """Exit code, and what it said at its end."""
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=30)


def _client(daemon: Daemon, *, shared_memory: bool = True) -> Client:
    settings = ClientSettings(name="recorded", shared_memory=shared_memory, deadline_s=10.0, prefault=False)
    client = Client.connect(daemon.runtime_dir, settings=settings)
    assert client.wait_ready(deadline_s=20.0)
    return client


def _serve(
    client: Client, space: RegisteredNamespace, keys: bytes, *, by: str = "lease", start: int = 0
) -> None:
    """As a worker does: look up, compute the rest, store."""
    with client.begin(space) as request:
        if by == "lease":
            with request.lease(keys, start=start) as lease:
                found = start + lease.pages
        else:
            outcome = request.get(keys, room_for(keys[start * KEY_BYTES :], space.page_bytes), start=start)
            found = start + getattr(outcome, "pages", 0)
        rest = keys[found * KEY_BYTES :]
        if rest:
            assert all_stored(request.put(keys, pages_under(rest, space.page_bytes), start=found))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_replay_of_what_was_recorded_hits_as_the_run_did(daemon: Daemon, tmp_path: Path) -> None:
    """Two clients in shared memory and one over gRPC; the arena holds everything, and so does the replay's cache."""
    out = tmp_path / "run.jsonl"
    prompts = [
        chain(SPACE, pages, seed=seed)
        for seed, pages in [(1, 5), (2, 3), (1, 5), (1, 9), (3, 2), (2, 7), (1, 2), (3, 2), (1, 9), (4, 1)]
    ]
    with (
        Recording(daemon, str(out), "--requests", str(len(prompts))) as recording,
        _client(daemon) as first, _client(daemon) as second, _client(daemon, shared_memory=False) as remote,
    ):  # fmt: skip
        workers = [(client, client.register(SPACE)) for client in (first, second, remote)]
        for at, keys in enumerate(prompts):
            client, space = workers[at % 3]
            _serve(client, space, keys, by="get" if at % 2 else "lease")
        code, said = recording.end()
        hit = sum(int(client.statistics()["l2_pages"]) for client, _ in workers)
    assert (code, "none was lost" in said) == (0, True), said
    told = _lines(out)
    assert [len(one["hash_ids"]) for one in told] == [len(keys) // KEY_BYTES for keys in prompts]
    assert [one["input_length"] for one in told] == [PAGE_TOKENS * len(one["hash_ids"]) for one in told]
    assert all(one["output_length"] == 0 for one in told)
    (trace,) = read_traces([str(out)], merge=False)
    assert (trace.requests, trace.block_tokens) == (len(prompts), PAGE_TOKENS)
    for policy in ("lru", "learned", "belady"):
        assert replay_named(policy, trace, trace.distinct).hit == hit == trace.reused
    shown = CliRunner().invoke(app, ["simulate", str(out), "--json", "-"])
    assert json.loads(shown.stdout)["traces"][0]["achievable_ratio"] == hit / len(trace.blocks)


def test_a_recording_tells_nothing_of_a_prompt(daemon: Daemon, tmp_path: Path) -> None:
    """Ids are neither keys nor parts of them, and differ from one recording to the next; within one they are the same."""
    keys = chain(SPACE, 4, seed=9)
    parts = {keys[at : at + DIGEST_BYTES] for at in range(0, len(keys), DIGEST_BYTES)}
    ids = []
    with _client(daemon) as client:
        space = client.register(SPACE)
        for number in range(2):
            out = tmp_path / f"{number}.jsonl"
            with Recording(daemon, str(out), "--requests", "2") as recording:
                for _ in range(2):
                    _serve(client, space, keys)
                assert recording.end()[0] == 0
            first, second = (one["hash_ids"] for one in _lines(out))
            assert first == second
            assert not parts & {one.to_bytes(8, order) for one in first for order in ("little", "big")}
            ids.append(first)
    assert not set(ids[0]) & set(ids[1])


def test_what_another_process_has_counted_is_not_recorded_twice(daemon: Daemon, tmp_path: Path) -> None:
    out = tmp_path / "once.jsonl"
    keys, other = chain(SPACE, 3, seed=20), chain(SPACE, 2, seed=21)
    with Recording(daemon, str(out), "--requests", "2") as recording, _client(daemon) as client:
        space = client.register(SPACE)
        _serve(client, space, keys)
        with client.lease(space, keys, counted=False) as lease:
            assert lease.pages == 3
        client.match(space, keys)
        client.lease(space, [*(keys[at : at + 32] for at in range(0, 64, 32))]).release()  # type: ignore[list-item]
        code, _ = recording.end()
        _serve(client, space, other)
    assert code == 0
    assert [len(one["hash_ids"]) for one in _lines(out)] == [3, 2]


def test_pages_of_the_callers_own_cache_belong_to_the_chain(daemon: Daemon, tmp_path: Path) -> None:
    out = tmp_path / "l1.jsonl"
    keys = chain(SPACE, 6, seed=30)
    with Recording(daemon, str(out), "--requests", "2") as recording, _client(daemon) as client:
        space = client.register(SPACE)
        _serve(client, space, keys)
        _serve(client, space, keys, start=4)
        recording.end()
    first, second = _lines(out)
    assert first["hash_ids"] == second["hash_ids"]


def test_a_look_up_whose_rest_is_computed_is_recorded_too(daemon: Daemon, tmp_path: Path) -> None:
    keys = chain(SPACE, 4, seed=31)
    out = tmp_path / "left.jsonl"
    with Recording(daemon, str(out), "--requests", "1") as recording, _client(daemon) as client:
        space = client.register(SPACE)
        client.lease(space, keys, counted=False).release()  # makes it known
        with client.lease(space, keys, deadline_s=0.0, missed=MissReason.COMPUTE_IS_FASTER) as lease:
            assert lease.reason is MissReason.COMPUTE_IS_FASTER
        recording.end()
    assert [len(one["hash_ids"]) for one in _lines(out)] == [4]


def test_a_chain_too_long_to_tell_is_counted(daemon: Daemon, tmp_path: Path) -> None:
    out = tmp_path / "long.jsonl"
    with Recording(daemon, str(out), "--requests", "1") as recording, _client(daemon) as client:
        space = client.register(SPACE)
        client.lease(space, bytes(KEY_BYTES * (LOOKED_PAGES_MAX + 1)), deadline_s=5.0).release()
        client.lease(space, chain(SPACE, 2, seed=40)).release()
        code, said = recording.end()
    assert code == 0
    assert "1 more were lost" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_recording_that_is_ended_is_whole(daemon: Daemon, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "ended.jsonl.gz"
    keys = chain(SPACE, 2, seed=50)
    with Recording(daemon, str(out)) as recording:
        recording.process.send_signal(number)
        code, said = recording.end()
    assert (code, "0 look-ups" in said) == (0, True), said
    assert gzip.decompress(out.read_bytes()) == b""
    with _client(daemon) as client:  # who is recorded no more has not noticed
        _serve(client, client.register(SPACE), keys)


def test_a_recording_lasts_as_long_as_is_said(daemon: Daemon, tmp_path: Path) -> None:
    out = tmp_path / "short.jsonl.zst"
    with Recording(daemon, str(out), "--for", "300ms") as recording:
        assert recording.end()[0] == 0
    assert zstandard.ZstdDecompressor().decompressobj().decompress(out.read_bytes()) == b""


def test_a_reader_that_dies_ends_its_recording(daemon: Daemon, tmp_path: Path) -> None:
    """As many as may be, again and again: none that is dead keeps the place of another."""
    for _ in range(2):
        under_way = [Recording(daemon, str(tmp_path / f"{number}.jsonl")) for number in range(RECORDINGS_MAX)]
        refused = CliRunner().invoke(
            app, ["record", str(tmp_path / "more.jsonl"), "--runtime-dir", str(daemon.runtime_dir)]
        )
        assert refused.exit_code == 1
        assert "are under way" in refused.stderr
        assert not (tmp_path / "more.jsonl").exists()
        for recording in under_way:
            recording.process.kill()
            recording.process.communicate(timeout=30)
        for number in range(RECORDINGS_MAX):
            (tmp_path / f"{number}.jsonl").unlink()

        def is_free() -> bool:
            words = ["record", str(tmp_path / "free.jsonl"), "--for", "100ms"]
            done = CliRunner().invoke(app, [*words, "--runtime-dir", str(daemon.runtime_dir)])
            (tmp_path / "free.jsonl").unlink(missing_ok=True)
            return done.exit_code == 0

        wait_until(is_free, what="an end of dead recordings")


def test_the_sidecars_end_ends_it_and_keeps_what_came(tmp_path: Path) -> None:
    out = tmp_path / "kept.jsonl"
    with tempfile.TemporaryDirectory(prefix="skv-") as scratch, Daemon(Path(scratch) / "run") as daemon:
        daemon.wait_ready()
        with Recording(daemon, str(out)) as recording:
            with _client(daemon) as client:
                space = client.register(SPACE)
                for _ in range(3):
                    _serve(client, space, chain(SPACE, 2, seed=60))
            daemon.stop()
            code, said = recording.end()
    assert code == 1
    assert "ended the recording" in said
    assert len(_lines(out)) == 3


def test_a_file_that_exists_stays(site: AdminSite, stratakv: Command, tmp_path: Path) -> None:
    out = tmp_path / "there.jsonl"
    out.write_text("precious")
    refused = stratakv("record", str(out))
    assert refused.exit_code == 2
    assert "exists" in refused.stderr
    assert out.read_text() == "precious"
    assert stratakv("record", str(tmp_path / "no" / "such.jsonl")).exit_code == 2
    assert stratakv("record", str(tmp_path / "a.jsonl"), "--for", "soon").exit_code == 2
    wait_until(lambda: site.recorder.recordings == 0, what="an end of what was refused")


def test_without_a_sidecar_there_is_no_file(tmp_path: Path) -> None:
    out = tmp_path / "none.jsonl"
    result = CliRunner().invoke(app, ["record", str(out), "--runtime-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "no sidecar answers" in result.stderr
    assert not out.exists()


def test_salted_ids_differ_by_salt_and_page() -> None:
    digests = b"".join(number.to_bytes(8, "little") for number in range(100))
    one, other = Salted(bytes(32)).ids(digests), Salted(b"\x01" * 32).ids(digests)
    assert len(set(one) | set(other)) == 200
    assert Salted(bytes(32)).ids(digests) == one
    assert all(0 <= number < 2**64 for number in one)
