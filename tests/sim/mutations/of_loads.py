"""Breaches of what loads from L3 and stores into it promise. The first two have numbers, in the order of the whole list."""

from __future__ import annotations

from tests.sim.mutations.mutation import LIVENESS, Edit, Mutation

_INTAKE = "cache_l2/intake.py"
_WRITE_BEHIND = "sidecar/l3/write_behind.py"
_ARENA = "tests/sim/arena.py"
_BYTES = "tests/sim/byte_engine.py"

OF_LOADS = (
    Mutation(
        "5", "a load is checked when it is fetched, not when it is published",
        (
            Edit(
                _INTAKE,
                "        reason = self._judge_loaded(reservation, pending, page)\n",
                "        reason = RefuseReason.NONE\n",
            ),
        ),
        profile=13,
    ),
    Mutation(
        "7", "a page that L3 knows, though invalid, is not sent again",
        (
            Edit(
                _WRITE_BEHIND,
                "            if isinstance(there, RecordHeader) and await self._is_known(page, there.page):\n",
                "            if isinstance(there, RecordHeader):\n",
            ),
        ),
        profile=13,
        breaks=LIVENESS,
    ),
    Mutation(
        "F", "what a loaded page rests on is taken for what is there, without a look at its line (of the arena: its model)",
        (
            Edit(
                _INTAKE,
                "            is_lineage_known=lambda: self._arena.loaded_lineage_known(\n"
                "                row=self.own_row, reservation=reservation, rests_on=page.rests_on\n            ),\n",
                "            is_lineage_known=lambda: True,\n",
            ),
            Edit(
                _ARENA,
                "        entry.lineage_unknown = not stands_on_line(entry, rests_on)\n",
                "        entry.lineage_unknown = False\n",
            ),
        ),
        profile=13,
    ),
    Mutation(
        "G", "a record says that its page rests on nothing",
        (
            Edit(
                "cache_l2/descriptions.py",
                '        rests_on=entry_number(entry, "rests_on"),\n',
                "        rests_on=0,\n",
            ),
        ),
        profile=13,
    ),
    Mutation(
        "H", "a load is judged by its own key, not over its chain",
        (
            Edit(
                _INTAKE,
                "            self._judge.judge_loaded, chain_of(self._arena), self._namespaces, vetted=self._loads_vetted\n",
                "            self._judge.judge_loaded, lambda key, pages_max: b'', self._namespaces, vetted=Vetted()\n",
            ),
            Edit(
                _INTAKE,
                "        chain = probed_chain(self._arena, parent, [page.key for page in pages])\n",
                "        chain = lambda key, pages_max: b''\n",
            ),
        ),
        profile=13,
    ),
    Mutation(
        "I", "a load is answered with what was hoped for",
        (
            Edit(
                "sidecar/l3/residency.py",
                "    pages, reason = resident(store, row)\n    if reason is MissReason.ABSENT and pages >=",
                "    pages, reason = max(planned.pages + planned.pending, resident(store, row)[0]), planned.reason\n"
                "    pages = len(row.keys) // KEY_BYTES if planned.reason is MissReason.DEADLINE else pages\n"
                "    if reason is MissReason.ABSENT and pages >=",
            ),
        ),
        profile=14,
    ),
    Mutation(
        "K", "the place of a load that gave way to a put is given away while its bytes may come (in the model of the arena)",
        (
            Edit(
                _ARENA,
                "            if gives or now_ns > entry.deadline_ns:\n                self._quarantine(entry)\n",
                "            if gives:\n                self._end_reservation(entry)\n"
                "            elif now_ns > entry.deadline_ns:\n                self._quarantine(entry)\n",
            ),
        ),
        profile=14,
    ),
    Mutation(
        "L", "the reply to a request that was late is taken for that of the next (in the model of the native engine)",
        (
            Edit(
                _BYTES,
                '            self._close(connection, f"a request of its window was not answered in time: {why}", LOST)\n',
                "            connection.in_flight.remove(request)\n            self._send_next(connection.shard)\n",
            ),
        ),
        profile=14,
    ),
    Mutation(
        "M", "a page that is being stored in L3 is pinned until it was asked to be, not until its bytes have left",
        (
            Edit(
                _WRITE_BEHIND,
                "        self._bytes_sending += queued.size\n        future.add_done_callback(",
                "        self._bytes_sending += queued.size\n        lease.release()\n        future.add_done_callback(",
            ),
        ),
        profile=13,
    ),
    Mutation(
        "N", "nobody looks at the deadlines of loads",
        (
            Edit(
                "sidecar/l3/loader.py",
                "            self._timer, self._timer_ns = self._later(delay_s, self._time_came), due_ns\n",
                "            self._timer, self._timer_ns = self._later(delay_s + 60, self._time_came), due_ns\n",
            ),
        ),
        profile=14,
        breaks=LIVENESS,
    ),
    Mutation(
        "R", "pages are left to be computed where loading them takes less time",
        (
            Edit(
                "kv_policy/load_or_recompute.py",
                "        return self.estimate.seconds(pages * page_bytes) <= cost.seconds(pages) * margin\n",
                "        return self.estimate.seconds(pages * page_bytes) > cost.seconds(pages) * margin\n",
            ),
        ),
        profile=17,
    ),
    Mutation(
        "S", "a worker that says nothing of its speed is taken for a fast one",
        (
            Edit(
                "sidecar/l3/loader.py",
                "                is_group=group, compute=compute if self._weighs else None, now_ns=now_ns,\n",
                "                is_group=group, compute=compute or ComputeCost(1e-6), now_ns=now_ns,\n",
            ),
        ),
        profile=17,
    ),
    Mutation(
        "O", "a server of L3 that has failed is never tried again",
        (
            Edit(
                "cache_l3/breaker.py",
                "        if self.state is not BreakerState.OPEN or now_ns < self._due_ns:\n",
                "        if True:\n",
            ),
        ),
        profile=14,
        breaks=LIVENESS,
    ),
)  # fmt: skip
