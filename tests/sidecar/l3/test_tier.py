"""Which L3 a sidecar has by its settings, and what it tells of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from pydantic import ValidationError
from rich.console import Console

from cache_l3.lossy import PageError
from cache_l3.lossy_tally import LossyFigures, LossyTally
from cache_l3.page_codecs import KeptExact, Packed
from cache_l3.record_store import L3Picture, ServerPicture
from kv_policy.losing_cost import LosingCosts
from kv_types import limits
from kv_types.clock import ManualClock
from kv_types.ids import NamespaceId
from kv_types.limits import METRIC_NAMESPACES_MAX
from kv_types.loading import ComputeCost
from kv_types.outcomes import MissReason
from kv_types.record import Codec
from kv_wire.gen import cache_pb2
from sidecar.config import Settings, shown
from sidecar.l3 import reports
from sidecar.l3.choice import OFF_BY_SETTING, OFF_WITHOUT_URL, ChosenL3, bounds, choose_l3
from sidecar.l3.loads import LoadRow, RowLoaded
from sidecar.l3.metrics import l3_metrics, outcome_of
from sidecar.l3.tier import L3State, L3Tier
from stratakv.l3_status import render_l3, where_l3
from tests.support.l3_node import fresh, nodes
from tests.support.manual_time import until
from tests.support.memory_records import MemoryRecords, MemoryShelf
from tests.support.pages import packed


def settings(**given: Any) -> Settings:
    return Settings(runtime_dir=Path("/tmp/nowhere"), **given)


def test_without_a_url_there_is_no_l3_and_that_is_said() -> None:
    assert choose_l3(settings(), log_candidates=()) == ChosenL3(None, OFF_WITHOUT_URL)
    assert choose_l3(settings(l3=False), log_candidates=()) == ChosenL3(None, OFF_BY_SETTING)


def test_it_is_known_whether_the_log_lies_on_the_same_servers() -> None:
    together = settings(l3_url="redis://a:1,redis://b:2", log_replicas=1)
    assert choose_l3(together, log_candidates=["redis://b:2"]).holds_log
    assert not choose_l3(together, log_candidates=["redis://c:2"]).holds_log


@pytest.mark.parametrize(
    "given",
    [
        {"l3_url": "redis+cluster://a:1/3", "log_url": "redis://b"},
        {"l3_url": "http://a:1"},
        {"log_url": "redis+cluster://a:1/3"},
        {"log_url": "redis://a,redis+cluster://b:1"},
        {"l3_ttl": "0"},
        {"l3_codec": "gzip"},
        {"l3_error_limit": 0},
        {"l3_error_limit": 1.5},
        {"l3_connections": 0},
        {"l3_reserve": 0.9},
        {"l3_connections": 1000},
        {"l3_deadline": "2h"},
        {"l3_queue": "1KiB"},
    ],
)
def test_settings_of_l3_that_make_no_sense_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings(**given)


def test_one_url_of_a_cluster_is_enough_for_pages_and_log() -> None:
    made = settings(l3_url="redis+cluster://a:1,b:2")
    assert choose_l3(made, log_candidates=["redis://b:2"]).holds_log
    apart = settings(l3_url="redis+cluster://a:1,b:2", log_url="redis+cluster://c:3")
    assert not choose_l3(apart, log_candidates=["redis://c:3"]).holds_log


def test_passwords_of_a_cluster_are_not_shown() -> None:
    urls = "rediss+cluster://user:secret@a:1,b:2"
    made = settings(l3_url=urls, log_url="redis://log")
    assert "secret" not in shown("l3_url", made.l3_url)
    assert choose_l3(made, log_candidates=["redis://log:6379"]).servers is not None


def test_bounds_follow_the_arena() -> None:
    assert bounds(settings(arena_size="1GiB")).flight_bytes == 2**28


@pytest.mark.asyncio
async def test_a_sidecar_without_l3_tells_what_is_here() -> None:
    async with nodes() as (node,):
        tier = L3Tier(
            node.store, node.store.validity, ChosenL3(None, OFF_WITHOUT_URL), settings(), clock=node.time
        )
        await tier.start()
        keys = fresh(5)
        node.put(keys[:3])
        row = LoadRow(node.record.id, None, packed(keys))
        assert not tier.loads.is_available
        load = tier.loads.begin([row], deadline_ns=0)
        assert await load.wait() == load.so_far() == [RowLoaded(3, 3, MissReason.ABSENT)]
        load.cancel()
        assert tier.state() == L3State(why_off=OFF_WITHOUT_URL)
        await tier.drain(1)
        await tier.close()


@pytest.mark.asyncio
async def test_a_tier_lives_and_ends_with_all_its_parts() -> None:
    async with nodes() as (node,):
        shelf = MemoryShelf(clock=node.time)
        records = MemoryRecords(shelf, clock=node.time)
        tier = L3Tier(
            node.store, node.store.validity, ChosenL3(None), settings(), clock=node.time, records=records
        )
        await tier.start()
        keys = fresh(4)
        node.put(keys)
        await tier.drain(10)
        assert len(shelf.names()) == 4
        assert tier.state().stores["stored"] == 4
        await tier.close()
        await tier.close()
        assert tier.state().why_off


@pytest.mark.asyncio
@pytest.mark.parametrize(("is_down", "elsewhere"), [(False, 0.5), (True, 1.0)])
async def test_what_l3_holds_costs_less_to_lose_while_it_is_in_reach(
    is_down: bool, elsewhere: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes() as (node,):
        told: list[LosingCosts] = []
        monkeypatch.setattr(node.store, "set_losing_costs", told.append)
        records = MemoryRecords(MemoryShelf(clock=node.time), clock=node.time)
        if is_down:
            records.stop()
        tier = L3Tier(
            node.store, node.store.validity, ChosenL3(None), settings(), clock=node.time, records=records
        )
        row = LoadRow(node.record.id, None, packed(fresh(2)))
        for parent in (None, fresh(1)[0]):  # the cost of a chain's first page is known of its root alone
            cost = ComputeCost(0.01, 0.00001 if parent is None else 0.00002)
            tier.loads.begin([replace(row, parent=parent)], deadline_ns=0, compute=cost).cancel()
        await tier.start()
        await until(lambda: bool(told), what="a look at L3")
        assert told[0] == LosingCosts(elsewhere, 1000)
        await tier.close()


@pytest.mark.asyncio
async def test_a_look_that_fails_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[LosingCosts] = []

    def fail_once(costs: LosingCosts) -> None:
        told.append(costs)
        if len(told) == 1:
            raise RuntimeError("no such thing")

    async with nodes() as (node,):
        monkeypatch.setattr(node.store, "set_losing_costs", fail_once)
        monkeypatch.setattr("sidecar.l3.tier.LOOK_S", 0.0)
        monkeypatch.setattr(limits, "L3_REPORT_S", 0.0)
        records = MemoryRecords(MemoryShelf(clock=node.time), clock=node.time)
        tier = L3Tier(
            node.store, node.store.validity, ChosenL3(None), settings(), clock=node.time, records=records
        )
        await tier.start()
        await until(lambda: len(told) == 2, what="the look after the one that failed")
        await tier.close()


PICTURE = L3Picture(
    "cluster",
    (
        ServerPicture("redis://a:1", "closed", 4, "", "yes"),
        ServerPicture(
            "redis://b:2", "open", 0, "it does not answer", "full", last_error_ms_ago=1500, refused=("SET",)
        ),
    ),
    trouble="no server answers",
)
STATE = L3State(
    picture=PICTURE,
    loads={"requests": 2, "flights": 3, "flight_bytes": 12, "loaded": 5},
    stores={"offered": 9, "stored": 4, "known": 1, "gone": 2, "dropped_queue_full": 1, "refused_full": 1,
            "queued_pages": 7, "queued_bytes": 70, "in_flight": 1, "oldest_ms": 1500},
    records={"loaded": 6, "loaded_bytes": 60, "corrupt": 1, "load_missed_deadline": 2, "probe_missed_absent": 8},
    choices={"chose_load": 3.0, "chose_compute": 2.0, "latency_seconds": 0.5, "bytes_per_second": 1e6, "error_factor": 1.5,
             "sureness": 4.0, "samples": 5.0, "expected_seconds": 6.0, "measured_seconds": 7.0},
)  # fmt: skip


LABELS: dict[NamespaceId | None, str] = {
    NamespaceId(b"a" * 32): "model@a", NamespaceId(b"b" * 32): "other", None: "other"
}  # fmt: skip


def rendered(state: L3State) -> str:
    class Once(Collector):
        def collect(self) -> list[Metric]:
            return list(l3_metrics(state, LABELS.__getitem__))

    registry = CollectorRegistry()
    registry.register(Once())
    return generate_latest(registry).decode()


def test_metrics_tell_what_is_loaded_stored_and_lost_and_which_servers_answer() -> None:
    text = rendered(STATE)
    for line in (
        "stratakv_l3_enabled 1.0",
        'stratakv_l3_server_available{server="redis://a:1"} 1.0',
        'stratakv_l3_server_available{server="redis://b:2"} 0.0',
        'stratakv_l3_server_writable{server="redis://b:2"} 0.0',
        "stratakv_l3_loaded_pages_total 6.0",
        "stratakv_l3_corrupt_records_total 1.0",
        'stratakv_l3_load_misses_total{reason="deadline"} 2.0',
        'stratakv_l3_probe_misses_total{reason="absent"} 8.0',
        'stratakv_l3_lost_pages_total{reason="dropped_queue_full"} 1.0',
        'stratakv_l3_lost_pages_total{reason="gone"} 2.0',
        'stratakv_l3_lost_pages_total{reason="dropped_too_old"} 0.0',
        "stratakv_l3_queued_pages 7.0",
        "stratakv_l3_queue_age_seconds 1.5",
        "stratakv_l3_flights 3.0",
        'stratakv_l3_load_decisions_total{choice="load"} 3.0',
        'stratakv_l3_load_decisions_total{choice="stopped"} 0.0',
        "stratakv_l3_estimate_latency_seconds 0.5",
        "stratakv_l3_estimate_bytes_per_second 1e+06",
        "stratakv_l3_estimate_sureness 4.0",
        "stratakv_l3_estimate_error_factor 1.5",
        "stratakv_l3_estimate_expected_seconds_total 6.0",
        "stratakv_l3_estimate_measured_seconds_total 7.0",
    ):
        assert line in text.splitlines(), line
    assert rendered(L3State(why_off="off")).splitlines()[-1] == "stratakv_l3_enabled 0.0"


def test_metrics_tell_what_lossy_pages_have_lost() -> None:
    tally = LossyTally()
    first, second, _ = LABELS
    assert first is not None
    assert second is not None
    lossy = Packed(Codec.FP8_E4M3, memoryview(b""), PageError(mean=0.02, worst=0.025))
    for namespace in (first, first, second):
        tally.count(namespace, lossy)
    tally.count(first, Packed(Codec.RAW, memoryview(b""), PageError(0.1, 0.4), KeptExact.ERROR_LIMIT))
    tally.count(second, Packed(Codec.RAW, memoryview(b""), None, KeptExact.NOT_FINITE))
    text = rendered(replace(STATE, lossy={**tally.read(), None: LossyFigures(largest=0.9)}))
    for line in (
        'stratakv_l3_lossy_pages_total{namespace="model@a",outcome="lossy"} 2.0',
        'stratakv_l3_lossy_pages_total{namespace="model@a",outcome="error_limit"} 1.0',
        'stratakv_l3_lossy_pages_total{namespace="model@a",outcome="not_finite"} 0.0',
        'stratakv_l3_lossy_pages_total{namespace="other",outcome="not_finite"} 1.0',
        'stratakv_l3_lossy_error_mean_bucket{le="0.01",namespace="model@a"} 0.0',
        'stratakv_l3_lossy_error_mean_bucket{le="0.02",namespace="model@a"} 2.0',
        'stratakv_l3_lossy_error_worst_bucket{le="0.02",namespace="model@a"} 0.0',
        'stratakv_l3_lossy_error_worst_bucket{le="+Inf",namespace="model@a"} 2.0',
        'stratakv_l3_lossy_error_worst_sum{namespace="model@a"} 0.05',
        'stratakv_l3_lossy_error_largest{namespace="model@a"} 0.4',
        'stratakv_l3_lossy_error_largest{namespace="other"} 0.9',
    ):
        assert line in text.splitlines(), line


def test_series_of_lossy_pages_are_bounded() -> None:
    tally = LossyTally()
    page = Packed(Codec.INT8, memoryview(b""), PageError(0.01, 0.01))
    for number in range(METRIC_NAMESPACES_MAX + 5):
        tally.count(NamespaceId(bytes([number]) * 32), page)
    figures = tally.read()
    assert len(figures) == METRIC_NAMESPACES_MAX + 1
    assert figures[None].pages["lossy"] == 5


def test_a_server_that_may_not_be_read_is_not_available() -> None:
    servers = tuple(replace(PICTURE.servers[0], refused=(command,)) for command in ("GET", "EXPIRE"))
    for server, available in zip(servers, ("0.0", "1.0"), strict=True):
        state = replace(STATE, picture=L3Picture("single", (server,)))
        assert (
            f'stratakv_l3_server_available{{server="redis://a:1"}} {available}'
            in rendered(state).splitlines()
        )


@pytest.mark.parametrize(
    ("rows", "outcome"),
    [
        ([RowLoaded(3, 1, MissReason.NONE)], "whole"),
        ([RowLoaded(3, 1, MissReason.ABSENT), RowLoaded(2, 2, MissReason.NONE)], "part"),
        ([RowLoaded(2, 2, MissReason.ABSENT)], "nothing"),
        ([RowLoaded(2, 1, MissReason.NONE), RowLoaded(0, 0, MissReason.DEADLINE)], "late"),
    ],
)
def test_loads_are_timed_by_what_came_of_them(rows: list[RowLoaded], outcome: str) -> None:
    assert outcome_of(rows) == outcome


def test_status_shows_servers_pages_and_what_is_wrong() -> None:
    told = cache_pb2.L3Status(
        kind="cluster", trouble="no server answers", loads=dict(STATE.loads), stores=dict(STATE.stores),
        records=dict(STATE.records),
        servers=[
            cache_pb2.L3ServerStatus(
                server=one.server, breaker=one.breaker, connections=one.connections, last_error=one.last_error,
                writes=one.writes, last_error_ms_ago=one.last_error_ms_ago, refused=one.refused,
            )
            for one in PICTURE.servers
        ],
    )  # fmt: skip
    console = Console(width=200, record=True)
    for part in render_l3(told):
        console.print(part)
    text = console.export_text()
    for word in (
        "redis://b:2",
        "open",
        "refuses SET; 1.5 s ago: it does not answer",
        "full 1",
        "gone 2",
        "absent 8",
        "no server answers",
    ):
        assert word in text, word
    assert where_l3(told) == "redis://a:1, redis://b:2 (cluster)"
    assert where_l3(cache_pb2.L3Status(kind="cluster")) == "no server of it is known yet (cluster)"
    off = cache_pb2.L3Status(why_off=OFF_WITHOUT_URL)
    assert where_l3(off) == f"off: {OFF_WITHOUT_URL}"
    assert render_l3(off) == []


def test_changes_of_servers_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, str]] = []

    class Lines:
        def warning(self, event: str, **fields: object) -> None:
            said.append(("warning", f"{event} {fields}"))

        def info(self, event: str, **fields: object) -> None:
            said.append(("info", f"{event} {fields}"))

    monkeypatch.setattr(reports, "_log", Lines())
    clock = ManualClock()
    told = reports.L3Reports(clock)
    well = replace(PICTURE.servers[1], breaker="closed", writes="yes", refused=())
    down = replace(PICTURE.servers[1], refused=())
    for _ in range(3):
        told.look(replace(PICTURE, servers=(PICTURE.servers[0], down)))
    assert [(severity, "redis://b:2" in text) for severity, text in said] == [
        ("warning", True), ("warning", True), ("warning", False),
    ]  # fmt: skip
    said.clear()
    told.look(L3Picture("cluster", (PICTURE.servers[0], well)))
    assert [text.split(" {")[0] for _, text in said] == ["a server of L3 has room again", "L3 works again"]
    said.clear()
    clock.advance(31 * 10**9)
    for _ in range(2):
        told.look(L3Picture("cluster", (PICTURE.servers[0], well)))
    assert [text.split(" {")[0] for _, text in said] == ["a server of L3 answers again"]
    told.look(L3Picture("cluster", ()))
    said.clear()
    refusing = replace(well, refused=("SET",), last_error="NOPERM")
    for server in (refusing, refusing, well, refusing):  # said once, however often it comes and goes
        told.look(L3Picture("cluster", (server,)))
    assert [severity for severity, text in said if "SET" in text and "NOPERM" in text] == ["warning"]
    clock.advance(31 * 10**9)
    for refused in (("GET", "SET"), ("GET", "SET"), ()):
        told.look(L3Picture("cluster", (replace(refusing, refused=refused),)))
    assert [severity for severity, text in said if "GET" in text] == ["warning"]
    said.clear()
    clock.advance(31 * 10**9)
    told.look(L3Picture("cluster", (well,)))
    assert [text.split(" {")[0] for _, text in said] == ["a server of L3 refuses nothing any more"]


@pytest.mark.asyncio
async def test_an_end_may_overtake_the_draining() -> None:
    async with nodes() as (node,):
        records = MemoryRecords(MemoryShelf(clock=node.time), clock=node.time, pause=node.time.pause)
        tier = L3Tier(
            node.store, node.store.validity, ChosenL3(None, ""), settings(), clock=node.time, records=records
        )
        await tier.start()
        held = records.hold("probe")
        node.put(fresh(2))
        draining = asyncio.create_task(tier.drain(1000.0))
        await held.reached.wait()
        held.release()
        await tier.close()
        await draining
