"""Metrics: exact after scripted look-ups, bounded in series, and a server that nobody can hang."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cache_l2.attach_messages import Speeds
from cache_l2.reader import AttachedArena, Reserved
from cache_l2.store import NamespaceCounts
from cache_l2.tenants import EVERYBODY_ELSE, TenantFigures
from kv_types import limits
from kv_types.clock import BoottimeClock
from kv_types.ids import NamespaceId
from kv_types.outcomes import STORED, MissReason
from kv_types.page_keys import pack_keys
from kv_wire.channel import open_channel
from sidecar.arena_memory import MemoryPicture
from sidecar.log.metrics import NEVER_S
from sidecar.metrics import OTHER, Metrics, Snapshot, namespace_labels
from sidecar.metrics_server import MetricsServer
from sidecar.status_report import Addresses, StatusReport
from tests.support.daemon import Daemon
from tests.support.log_pictures import NO_L3, log_picture, log_state, no_l3
from tests.support.pages import namespace_of
from tests.support.polling import wait_until
from tests.support.remote_store import RemoteStore
from tests.support.spaces import fresh_chain, page_of, space_of
from tests.support.stores import add, make_store

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(address: str) -> Series:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return parse(answer.read().decode())


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, tuple(sorted(labels.items()))]


@pytest.fixture
def daemon(runtime_dir: Path) -> Iterator[Daemon]:
    with Daemon(runtime_dir) as running:
        yield running.wait_ready()


def _settled(address: str, *, gets: int) -> Series:
    """Scrape once all calls have ended on the server's side too, which may be after their callers have the answer."""

    def ended() -> bool:
        series = scrape(address)
        calls = series.get(
            ("stratakv_grpc_call_duration_seconds_count", (("code", "OK"), ("method", "Get"))), 0
        )
        return calls >= gets and value(series, "stratakv_leases") == 0

    wait_until(ended, what="the end of all calls")
    return scrape(address)


def test_c29_ten_scripted_look_ups_are_accounted_for_exactly(daemon: Daemon) -> None:
    with open_channel(daemon.grpc_address) as channel:
        store = RemoteStore(channel)
        space, other = space_of(1000, model="scripted"), space_of(500, model="other")
        store.register(space)
        store.register(other)
        keys, absent = fresh_chain(6), fresh_chain(6)
        assert (
            store.put(space.id, keys[:4], [page_of(key, 1000) for key in keys[:4]], stamp=store.stamp())
            == [STORED] * 4
        )
        into = [memoryview(bytearray(1000)) for _ in range(6)]
        script = [
            # chain, start: pages served before, by the caller's own tier
            (keys[:4], 0), (keys[:4], 2), (keys, 0), (keys, 3), (keys[:1], 0),
            (absent, 0), (absent[:2], 0), (keys[:2] + absent[2:4], 0), (keys[:4], 0), (keys[:5], 1),
        ]  # fmt: skip
        expected = {"requested": 0, "l1": 0, "l2": 0, "absent": 0}
        for chain, start in script:
            store.get(space.id, chain, into[: len(chain) - start], start=start)
            shared = sum(a == b for a, b in zip(chain, keys[:4], strict=False))
            expected["requested"] += len(chain)
            expected["l1"] += start
            expected["l2"] += shared - start
            expected["absent"] += len(chain) - shared
        status = store.status()
        series = _settled(status.metrics_address, gets=len(script))
        label = f"{space.model}@{space.id.hex()[:12]}"
        got = {
            "requested": value(series, "stratakv_pages_requested_total", namespace=label),
            "l1": value(series, "stratakv_pages_hit_total", namespace=label, tier="l1"),
            "l2": value(series, "stratakv_pages_hit_total", namespace=label, tier="l2"),
            "absent": value(series, "stratakv_pages_missed_total", namespace=label, reason="absent"),
        }
    assert got == expected
    missed = sum(
        number
        for (name, labels), number in series.items()
        if name == "stratakv_pages_missed_total" and dict(labels)["namespace"] == label
    )
    assert got["requested"] == got["l1"] + got["l2"] + missed
    assert value(series, "stratakv_look_ups_total", namespace=label) == len(script)
    assert (
        value(series, "stratakv_pages_requested_total", namespace=f"{other.model}@{other.id.hex()[:12]}") == 0
    )
    assert value(series, "stratakv_written_bytes_total", namespace=label) == 4000
    assert value(series, "stratakv_resident_pages", namespace=label) == 4
    assert value(series, "stratakv_resident_bytes", namespace=label) == 4000
    assert value(series, "stratakv_pages_put_total", outcome="stored") == 4
    assert value(series, "stratakv_grpc_call_duration_seconds_count", method="Get", code="OK") == len(script)
    assert value(series, "stratakv_grpc_call_duration_seconds_count", method="Put", code="OK") == 1
    assert value(series, "stratakv_clients", state="attached") == 0
    assert value(series, "stratakv_leases") == 0
    assert 0 < value(series, "stratakv_freshness_remaining_seconds") <= 3
    assert value(series, "stratakv_arena_bytes") == 64 * 2**20
    (row,) = (space_row for space_row in status.namespaces if space_row.namespace_id == space.id)
    assert (row.requested_pages, row.l1_pages, row.l2_pages) == tuple(
        expected[name] for name in ("requested", "l1", "l2")
    )
    assert dict(row.missed_pages) == {"absent": expected["absent"]}


def test_failed_calls_are_counted_by_their_code(daemon: Daemon) -> None:
    with open_channel(daemon.grpc_address) as channel:
        store = RemoteStore(channel)
        for _ in range(3):
            with pytest.raises(Exception, match="not registered"):
                store.look_up(space_of(100).id, fresh_chain(1))
        series = scrape(store.status().metrics_address)
    assert value(series, "stratakv_grpc_call_duration_seconds_count", method="LookUp", code="NOT_FOUND") == 3


def test_an_attached_worker_is_shown_by_its_name_and_timed(daemon: Daemon) -> None:
    space = space_of(4096)
    attached = AttachedArena.connect(str(daemon.runtime_dir / "attach.sock"), name="worker-7", deadline_s=10)
    with attached as arena, open_channel(daemon.grpc_address) as channel:
        store = RemoteStore(channel)
        registration = arena.register(space.canonical, 4096, deadline_s=10)
        keys = fresh_chain(3)
        reserved = arena.reserve(registration, None, pack_keys(keys), ttl_s=None, deadline_s=10)
        ids = [page.id for page in reserved if isinstance(page, Reserved)]
        assert len(ids) == 3
        status = store.status()
        (worker,) = (client for client in status.clients if client.state == "attached")
        assert (worker.name, worker.pid, worker.reservations) == ("worker-7", os.getpid(), 3)
        assert status.attach["processes"] == 1
        series = scrape(status.metrics_address)
        assert value(series, "stratakv_clients", state="attached") == 1
        assert value(series, "stratakv_reservations") == 3
        for request in ("register", "reserve"):
            name = "stratakv_attach_request_duration_seconds_count"
            assert value(series, name, request=request) == 1
        arena.abort(ids)
    with open_channel(daemon.grpc_address) as channel:
        store = RemoteStore(channel)
        wait_until(lambda: len(store.status().clients) == 1, what="the end of the worker's row")
        assert store.status().arena["reservations"] == 0


def snapshot(namespaces: int, counts: NamespaceCounts = NamespaceCounts()) -> Snapshot:  # noqa: B008 - frozen
    ids = [
        NamespaceId(hashlib.blake2b(bytes([n, n >> 8]), digest_size=32).digest()) for n in range(namespaces)
    ]
    return Snapshot(
        models={namespace: f"model-{index}" for index, namespace in enumerate(ids)},
        counts=dict.fromkeys(ids, counts),
        recycled=NamespaceCounts(),
        resident=dict.fromkeys(ids, (1, 10)),
        arena={"evictions_capacity": 5, "evictions_ttl": 2},
        clients={"attached": 3},
        attach={"connections": 2, "garbage": 1},
        arena_bytes=2**20,
        freshness_remaining_s=-1.5,
        log=log_state(),
        l3=NO_L3,
        tenants={},
        pins={},
        speeds={},
        calls_running=4,
        calls_refused=6,
    )


def rendered(taken: Snapshot) -> Series:
    from prometheus_client import generate_latest

    metrics = Metrics(version="1", life=b"l" * 16, snapshot=lambda: taken)
    return parse(generate_latest(metrics.registry).decode())


def test_workers_are_shown_by_row_as_far_as_they_tell_their_speed_and_no_more_than_so_many() -> None:
    most = limits.METRIC_WORKERS_MAX
    speeds = {row: Speeds(100.0 * row, 0.001, 2.0 * row) for row in range(1, most + 4)}
    speeds[2] = Speeds()
    series = rendered(replace(snapshot(1), speeds=speeds))
    prefill = "stratakv_worker_prefill_tokens_per_second"
    shown = {dict(labels)["row"] for name, labels in series if name == prefill}
    assert shown == {str(row) for row in range(1, most + 2) if row != 2} | {OTHER}
    assert value(series, prefill, row="3") == 300.0
    assert value(series, prefill, row=OTHER) == 100.0 * (most + 2.5)
    assert value(series, "stratakv_worker_copy_latency_seconds", row="1") == 0.001
    assert value(series, "stratakv_worker_copy_bytes_per_second", row=OTHER) == 2.0 * (most + 2.5)


def test_namespaces_beyond_the_limit_share_one_label_and_nothing_is_lost() -> None:
    many = limits.METRIC_NAMESPACES_MAX + 40
    missed = tuple(7 if reason is MissReason.STALE else 0 for reason in MissReason)
    series = rendered(snapshot(many, NamespaceCounts(requested=10, l1=1, l2=2, missed=missed)))
    labels = {
        dict(labels)["namespace"] for name, labels in series if name == "stratakv_pages_requested_total"
    }
    assert len(labels) == limits.METRIC_NAMESPACES_MAX + 1
    assert value(series, "stratakv_pages_requested_total", namespace=OTHER) == 400
    assert value(series, "stratakv_pages_missed_total", namespace=OTHER, reason="stale") == 280
    assert value(series, "stratakv_resident_pages", namespace=OTHER) == 40
    total = sum(number for (name, _), number in series.items() if name == "stratakv_pages_requested_total")
    assert total == 10 * many


def test_what_forgotten_namespaces_counted_stays_with_the_others() -> None:
    taken = snapshot(limits.METRIC_NAMESPACES_MAX + 1, NamespaceCounts(requested=10, l2=10))
    series = rendered(replace(taken, recycled=NamespaceCounts(requested=5, l1=5)))
    assert value(series, "stratakv_pages_requested_total", namespace=OTHER) == 15
    assert value(series, "stratakv_pages_hit_total", namespace=OTHER, tier="l1") == 5


def test_a_label_outlives_its_namespaces_registration_and_no_counter_steps_back() -> None:
    store = make_store()
    report = StatusReport(
        store,
        log_picture,
        no_l3,
        MemoryPicture(store).message,
        version="1",
        clock=BoottimeClock(),
        addresses=Addresses(),
    )

    def requested() -> dict[str, float]:
        series = rendered(report.snapshot(attach={}, speeds={}, calls_running=0, calls_refused=0))
        counted = {
            dict(labels)["namespace"]: number for (name, labels), number in series.items()
            if name == "stratakv_pages_requested_total"
        }  # fmt: skip
        assert sum(counted.values()) == store.statistics()["requested_pages"]
        return counted

    before: dict[str, float] = {}
    for number in range(2 * limits.NAMESPACES_MAX):
        record = add(store, namespace_of(f"m{number}"))
        store.get(record.id, fresh_chain(1), [memoryview(bytearray(record.page_bytes))])
        if number % 100 == 99:
            now = requested()
            assert all(now[label] >= count for label, count in before.items())
            before = now
    assert len(before) == limits.METRIC_NAMESPACES_MAX + 1
    assert before[OTHER] > limits.NAMESPACES_MAX
    store.close()


def test_labels_do_not_change_when_more_namespaces_come() -> None:
    few, many = namespace_labels(snapshot(10)), namespace_labels(snapshot(200))
    assert few.items() <= many.items()


def test_what_the_arena_and_the_daemon_count_is_shown() -> None:
    series = rendered(snapshot(1))
    assert value(series, "stratakv_evictions_total", cause="capacity") == 5
    assert value(series, "stratakv_evictions_total", cause="ttl") == 2
    assert value(series, "stratakv_clients", state="attached") == 3
    assert value(series, "stratakv_attach_connections") == 2
    assert value(series, "stratakv_attach_events_total", event="garbage") == 1
    assert value(series, "stratakv_freshness_remaining_seconds") == -1.5
    assert value(series, "stratakv_grpc_calls_running") == 4
    assert value(series, "stratakv_grpc_calls_overloaded_total") == 6


def test_how_the_log_is_followed_is_shown() -> None:
    series = rendered(snapshot(1))
    assert value(series, "stratakv_log_phase", phase="following") == 1
    assert value(series, "stratakv_log_phase", phase="unreachable") == 0
    assert sum(number for (name, _), number in series.items() if name == "stratakv_log_phase") == 1
    assert value(series, "stratakv_log_applied_revision") == 41
    assert value(series, "stratakv_log_acknowledged_revision") == 40
    assert value(series, "stratakv_log_drained_revision") == 39
    assert value(series, "stratakv_log_tip_lag_records") == 3
    assert value(series, "stratakv_log_confirmed_ago_seconds") == 0.5
    assert value(series, "stratakv_log_renewals_total", outcome="ok") == 3
    assert value(series, "stratakv_log_table_entries", where="here", table="tombstones") == 7
    assert value(series, "stratakv_log_table_entries", where="log", table="records") == 44
    assert value(series, "stratakv_pages_hidden_total") == 5
    where = log_state(
        candidates=("redis://a:6379", "redis://b:6379"), server="redis://b:6379", server_warnings=("w", "v")
    )
    series = rendered(replace(snapshot(1), log=where))
    assert value(series, "stratakv_log_server", server="redis://a:6379") == 0
    assert value(series, "stratakv_log_server", server="redis://b:6379") == 1
    assert value(series, "stratakv_log_server_faults", severity="error") == 0
    assert value(series, "stratakv_log_server_faults", severity="warning") == 2
    never = rendered(replace(snapshot(1), log=log_state(confirmed_ago_s=None, position=None, tip=0)))
    assert value(never, "stratakv_log_confirmed_ago_seconds") == NEVER_S
    assert value(never, "stratakv_log_tip_lag_records") == 0


def test_names_carry_units_and_counters_end_in_total() -> None:
    for name, _ in rendered(snapshot(1)):
        assert name.startswith("stratakv_")
        assert not name.endswith(("_ms", "_us", "_mb", "_gib")), name


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"\xff\xfe\x00\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", b"400"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /metrics?x=y HTTP/1.0\r\nAccept: */*\r\n\r\n", b"200"),
    ],
)
def test_bad_requests_are_answered_and_hurt_nobody(
    daemon: Daemon, request_bytes: bytes, status: bytes
) -> None:
    host, _, port = (
        daemon.line("ready")["metrics"].removeprefix("http://").removesuffix("/metrics").partition(":")
    )
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(request_bytes)
        raw.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while data := raw.recv(65536):
                answer += data
        except ConnectionResetError:  # the rest of a too long request was not read
            pass
    assert answer.split(b" ")[1] == status
    if request_bytes.startswith(b"HEAD"):
        assert answer.endswith(b"\r\n\r\n")
    with open_channel(daemon.grpc_address) as channel:
        assert RemoteStore(channel).status().serving


def test_silent_connections_are_closed_and_too_many_are_refused() -> None:
    async def script() -> None:
        metrics = Metrics(version="1", life=b"l" * 16, snapshot=lambda: snapshot(1))
        server = MetricsServer(metrics.registry, request_s_max=0.3)
        await server.start(0)
        host, _, port = server.address.partition(":")
        silent = [
            await asyncio.open_connection(host, int(port)) for _ in range(limits.METRICS_CONNECTIONS_MAX)
        ]
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(10):
            assert b"503" in await reader.read(100)
            writer.close()
            for silent_reader, silent_writer in silent:
                assert await silent_reader.read() == b""
                silent_writer.close()
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert b"stratakv_build_info" in await reader.read()
            writer.close()
        await server.stop()

    asyncio.run(script())


def test_tenants_are_labelled_by_their_names_and_everybody_else_by_none() -> None:
    figures = TenantFigures(
        share_bytes=5, used_bytes=4, evictions_own=3, evictions_caused=2, evictions_suffered=1
    )
    taken = replace(
        snapshot(0), tenants={EVERYBODY_ELSE: figures, "anna": figures}, pins={"pins": 2, "beyond_quota": 7}
    )
    series = rendered(taken)
    for tenant in ("", "anna"):
        assert value(series, "stratakv_tenant_share_bytes", tenant=tenant) == 5
        assert value(series, "stratakv_tenant_used_bytes", tenant=tenant) == 4
        for side, pages in (("own", 3), ("caused", 2), ("suffered", 1)):
            assert value(series, "stratakv_tenant_evictions_total", tenant=tenant, side=side) == pages
    assert value(series, "stratakv_pins") == 2
    assert value(series, "stratakv_pinned_beyond_quota_total") == 7
