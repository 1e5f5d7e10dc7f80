"""Metrics of an L1: what its statistics say, under names that a Prometheus reads."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from cache_l1.metrics import L1Collector
from tests.cache_l1.bench import SIZE, Bench, chain


def scraped(registry: CollectorRegistry) -> dict[str, float]:
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_what_happens_in_l1_is_scraped() -> None:
    bench = Bench(4)
    registry = CollectorRegistry()
    registry.register(L1Collector(bench.cache.statistics, labels={"model": "m"}))
    assert scraped(registry)['stratakv_l1_hit_pages_total{model="m"}'] == 0.0
    bench.insert(chain(3))
    bench.found(chain(5))
    bench.insert(chain(3, root=1))
    seen = scraped(registry)
    wanted = {
        'stratakv_l1_pages{model="m",state="capacity"}': 4,
        'stratakv_l1_pages{model="m",state="resident"}': 4,
        'stratakv_l1_pages{model="m",state="free"}': 0,
        'stratakv_l1_page_bytes{model="m"}': SIZE,
        'stratakv_l1_requested_pages_total{model="m"}': 5,
        'stratakv_l1_hit_pages_total{model="m"}': 3,
        'stratakv_l1_missed_pages_total{model="m",reason="absent"}': 2,
        'stratakv_l1_inserted_pages_total{model="m"}': 6,
        'stratakv_l1_lost_pages_total{model="m",why="evicted"}': 2,
        'stratakv_l1_copied_pages_total{direction="out",model="m"}': 3,
    }
    assert {name: seen[name] for name in wanted} == wanted
    counts = bench.cache.statistics()
    shown = sum(name.startswith("stratakv_l1_pages{") for name in seen)
    assert shown == 6
    assert counts["evicted_pages"] == 2


def test_while_there_is_no_l1_nothing_is_told() -> None:
    registry = CollectorRegistry()
    registry.register(L1Collector(dict))
    assert scraped(registry) == {}
