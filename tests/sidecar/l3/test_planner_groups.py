"""What a group's page costs the planner does not grow with the rows of its group."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from kv_types.ids import NamespaceId, page_key
from kv_types.limits import LOAD_ROWS_MAX
from kv_types.outcomes import MissReason
from sidecar.l3 import plan
from sidecar.l3.plan_tables import FetchQueue
from sidecar.l3.planner import Planner

PAGES = 8
BOUNDS = plan.Bounds(
    requests=8, pages=4096, flights=64, flight_bytes=1 << 30, run_pages=32, probe_pages=512, absent_pages=64,
    absent_ns=1000, put_awaited_ns=1000, sent_ns=0,
)  # fmt: skip


def test_what_a_page_of_a_group_costs_does_not_grow_with_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    put = FetchQueue.put

    def counted(self: FetchQueue, *arguments: Any, **options: Any) -> None:
        looks.append(arguments)
        put(self, *arguments, **options)

    monkeypatch.setattr(FetchQueue, "put", counted)
    answers = _load_all(Planner(BOUNDS))
    assert [[row.pages for row in answer.rows] for answer in answers] == [[PAGES] * LOAD_ROWS_MAX]
    assert len(looks) < 4 * PAGES * LOAD_ROWS_MAX, f"{len(looks)} looks for {PAGES * LOAD_ROWS_MAX} pages"


def _load_all(planner: Planner) -> list[plan.Answer]:
    """Have a group of as many rows as may be loaded from an L3 that has all of them; returns the answers."""
    rows = tuple(
        plan.AskedRow(
            namespace=NamespaceId(bytes([row + 1]) * 32), parent=None, page_bytes=64, resident=0,
            keys=b"".join(page_key(bytes([row + 1, page + 1]) * 16) for page in range(PAGES)),
        )
        for row in range(LOAD_ROWS_MAX)
    )  # fmt: skip
    actions = deque(planner.step(plan.Asked(request=1, rows=rows, deadline_ns=1000, is_group=True, now_ns=1)))
    answers = []
    while actions:
        action = actions.popleft()
        events: list[plan.Event] = []
        match action:
            case plan.Probe(probe, pages):
                events = [plan.Probed(probe, (MissReason.NONE,) * len(pages), 2)]
            case plan.Fetch(flights=flights):
                events = [plan.Arrived(flight, MissReason.NONE, 3) for flight in flights]
            case plan.Publish(flight):
                events = [plan.Published(flight)]
            case plan.Answer():
                answers.append(action)
        for event in events:
            actions.extend(planner.step(event))
    return answers
