"""The parts of docs/benchmarks.md on fleets: how soon invalidations are final, what storms cost, what Redis has to bear."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import invalidate, log_load
from benchmarks.fleet_worker import RESIDENT_PAGES, ROUND_PACE_S
from benchmarks.storm import RECORDS_PER_S, SLICE_S

MEMBERS = 1000
LOAD_ROUNDS = 5


def measure(console: Console) -> list[str]:
    """Measure how soon an invalidation is final, some minutes; returns the part as lines of Markdown."""
    load_average = os.getloadavg()[0]
    figures = invalidate.measure(console)
    console.print(invalidate.table(figures))
    return [*fleet_lines(figures), "", circumstances(load_average)]


def measure_redis(console: Console) -> list[str]:
    """Measure the Redis of a log under many members with 0 and 1 replicas; returns the part as lines of Markdown."""
    load_average = os.getloadavg()[0]
    log_load.allow_files(MEMBERS * log_load.FILES_PER_MEMBER + 256)
    loads = [
        asyncio.run(log_load.measure(members=MEMBERS, rounds=LOAD_ROUNDS, replicas=replicas))
        for replicas in (0, 1)
    ]
    console.print(log_load.table(loads))
    return [*redis_lines(loads), "", circumstances(load_average)]


def circumstances(load_average: float) -> str:
    """What else the machine did: it falls on the slowest of all samples."""
    told = f"Load average when it began: {load_average:.1f}."
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        told += " Run with real-time priority (`chrt -r 5`), so that it had the processors to itself."
    group = Path("/proc/self/autogroup")
    if group.exists() and not group.read_text().strip().endswith("nice 0"):
        told += f" Run as a group of processes with {group.read_text().split(maxsplit=1)[1].strip()} beside others."
    return told


def fleet_lines(figures: Mapping[str, float]) -> list[str]:
    """What `stratakv bench invalidate` measured."""
    samples = {
        name: int(figures[f"{name}_ms_samples"]) for name in ("invalidate_l1", "invalidate_l2", "fence")
    }
    told = [
        "## How soon an invalidation is final",
        "",
        f"`stratakv bench invalidate`: {invalidate.NODES} sidecars, {invalidate.NODES * invalidate.WORKERS_PER_NODE} workers and "
        "one Redis, each a process, all on this machine.",
        "In a round all workers have the same pages, half of them in an L1, and look them up every "
        f"{ROUND_PACE_S * 1e3:g} ms until they are gone.",
        "Times are of one boot clock; that of publishing is read just before it. They end with the answer to the first look-up",
        "without a page, so that they hold a worker's own pause and its wait for a processor.",
        "",
        "| what | p50 | p99 | budget | |",
        "|---|---:|---:|---:|---|",
    ]
    for key, what, unit, budget in invalidate.BUDGETS:
        if not key.endswith("_p99"):
            continue
        median, value = figures[key.replace("_p99", "_p50")], figures[key]
        told.append(
            f"| {what} (`{key}`) | {median:.1f} {unit} | {value:.1f} {unit} | "
            f"{'' if budget is None else f'{budget:g}'} | {_verdict(value, budget)} |"
        )
    slowdown = figures["storm_match_slowdown"]
    budget = {key: most for key, _, _, most in invalidate.BUDGETS}["storm_match_slowdown"]
    told += [
        "",
        f"Samples: {samples['invalidate_l1']} of L1, {samples['invalidate_l2']} of L2, {samples['fence']} fences.",
        "",
        f"A storm of {RECORDS_PER_S:,} records a second (reached: {figures['storm_records_per_s']:,.0f}), each naming "
        f"a prefix, in {figures['storm_slices']:.0f} slices of {SLICE_S:g} s between",
        f"calm ones, costs a worker with an L1 that looks up {RESIDENT_PAGES} pages without a pause {slowdown:.1%} of a "
        "processor of its own",
        f"(`storm_match_slowdown`; budget {budget:.0%}: {_verdict(slowdown, budget)}). Its sidecar takes "
        f"{figures['storm_sidecar_cores']:.1%} of a processor meanwhile ({figures['storm_calm_sidecar_cores']:.1%} without",
        f"a storm). Of look-ups of pages that nobody named, {figures['storm_look_ups_not_served']:.0f} were not served.",
    ]
    return told


def redis_lines(loads: Sequence[Mapping[str, float]]) -> list[str]:
    """What `python -m benchmarks.log_load` measured, without and with a replica."""
    told = [
        "## What a fleet costs the Redis of its log",
        "",
        f"`python -m benchmarks.log_load`: {int(loads[0]['members']):,} members, each with connections of its own, renew by "
        "turns; then records are",
        "appended, each until every member has acknowledged it. Processor time is the server's, as it tells it.",
        "",
        "| what | " + " | ".join(_replicas(load) for load in loads) + " |",
        "|---|" + "---:|" * len(loads),
    ]
    for key, what, unit in log_load.ROWS:
        scale = 100.0 if unit == "%" else 1.0
        told.append(f"| {what} | " + " | ".join(f"{load[key] * scale:,.1f} {unit}" for load in loads) + " |")
    return told


def _replicas(load: Mapping[str, float]) -> str:
    return "one replica confirms" if load["replicas"] else "no replica"


def _verdict(value: float, budget: float | None) -> str:
    if budget is None:
        return ""
    return "met" if value <= budget else "**missed**"
