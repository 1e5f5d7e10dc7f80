"""The simulation's arena against the native one: the same calls, in any order, have the same answers."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kv_types.outcomes import MissReason, PutStatus
from tests.sim.arena import ModelArena
from tests.sim.arena_entries import OVERFLOW, U64_MAX
from tests.sim.arena_lease import ModelLease
from tests.sim.arena_reader import ModelReader
from tests.support.native_arena import FAR_NS, PAGE, NativeArena, chain, now_ns

CHAINS = [chain(name, 6) for name in ("a/x", "a/y", "b/x")]
ENTRIES = 9
NAMESPACES = (0, 0, 0, 1)
FIGURES = (
    "entries_visible", "entries_reserved", "entries_hidden_leased", "entries_quarantined", "loaded", "gave_way",
    "notes_read", "notes_lost",
)  # fmt: skip
MISSED = tuple(f"miss_{int(reason)}" for reason in MissReason)

selections = st.fixed_dictionaries(
    {
        "key": st.one_of(st.none(), st.sampled_from([key for one in CHAINS for key in one])),
        "namespaces": st.sampled_from([None, b"\x01", b"\x02", b"\x03", b""]),
        "provenances": st.sampled_from([None, None, b"\x02", b"\x06", b""]),
        "since_ms": st.sampled_from([0, 0, 15]),
        "until_ms": st.sampled_from([U64_MAX, U64_MAX, 15]),
        "since_revision": st.sampled_from([0, 0, 2]),
        "until_revision": st.sampled_from([U64_MAX, U64_MAX, 2]),
    }
)


class Held(NamedTuple):
    """A reservation as both arenas know it."""

    row: int
    model: int
    native: int
    gives_way: bool


class ArenaMachine(RuleBasedStateMachine):
    """Two rows that store, one that reads."""

    @initialize()
    def begin(self) -> None:
        self.native = NativeArena(entries=ENTRIES, rows=4)
        self.model = ModelArena(life=self.native.life, entries=ENTRIES, rows=4, now_ns=now_ns)
        self.model.publish_freshness(FAR_NS)
        assert self.model.open_row(os.getpid()) == self.native.row
        self.rows = [self._open(), self._open()]
        self.reader = ModelReader(self.model, self.native.row)
        self.held: list[Held] = []
        self.instances: dict[int, int] = {0: 0, U64_MAX: U64_MAX}
        self.leases: list[tuple[ModelLease, Any]] = []
        self.births: dict[int, int] = {}
        """What the native arena calls the births of the model's."""
        self.lines: dict[int, int] = {0: 0, U64_MAX: U64_MAX, 7: 7}
        """The same of lines, and one that no page has."""
        self.begun: list[tuple[int, int]] = []
        """Look-ups that wait to be completed: chain and start."""

    def _open(self) -> int:
        row = self.native.arena.open_row(7)
        assert self.model.open_row(7) == row
        return row

    @rule(
        row=st.integers(0, 1),
        of=st.sampled_from(range(len(CHAINS))),
        back=st.sampled_from([0, 0, 0, 0, 1, 2, -1]),
        pages=st.integers(1, 4),
        namespace=st.sampled_from(NAMESPACES),
        expiry_s=st.sampled_from([0, 0, 0, 1]),
        is_late=st.sampled_from([False, False, False, True]),
        gives_way=st.booleans(),
    )
    def reserve(
        self, row: int, of: int, back: int, pages: int, namespace: int, expiry_s: int, is_late: bool, gives_way: bool
    ) -> None:  # fmt: skip
        self._reserve(row, of, back, pages, namespace, expiry_s, is_late=is_late, gives_way=gives_way)

    def _reserve(
        self, row: int, of: int, back: int, pages: int, namespace: int = 0, expiry_s: int = 0, *,
        is_late: bool = False, gives_way: bool,
    ) -> list[Held]:  # fmt: skip
        """From about where the resident pages end."""
        keys = CHAINS[of]
        packed = b"".join(keys)
        resident = max(self.reader.match(packed, namespace=one)[0] for one in set(NAMESPACES))
        start = min(max(0, resident - back), len(keys) - 1)
        arguments: dict[str, Any] = {
            "row": self.rows[row], "namespace_slot": namespace, "parent": keys[start - 1] if start else None,
            "keys": b"".join(keys[start : start + pages]), "payload_bytes": PAGE, "expiry_s": expiry_s,
            "deadline_ns": 1 if is_late else FAR_NS, "now_ns": 0 if is_late else now_ns(),
            "gives_way": gives_way,
        }  # fmt: skip
        expected, got = self.model.reserve(**arguments), self.native.arena.reserve(**arguments)
        assert [one[:2] for one in expected] == [tuple(one[:2]) for one in got]
        held = [
            Held(self.rows[row], mine[2], theirs[2], gives_way)
            for mine, theirs in zip(expected, got, strict=True)
            if mine[0] == PutStatus.STORED
        ]
        self.held += held
        return held

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        revision=st.integers(1, 3),
        provenance=st.sampled_from([0, 1, 2, OVERFLOW]),
        times=st.sampled_from([(0, 0), (10, 12), (18, 20)]),
    )
    def commit(self, data: Any, revision: int, provenance: int, times: tuple[int, int]) -> None:
        picked = data.draw(st.lists(st.sampled_from(self.held), min_size=1, max_size=3, unique=True))
        row = picked[0].row
        self._commit(data, [one for one in picked if one.row == row], revision, provenance, times)

    @rule(
        data=st.data(), row=st.integers(0, 1), of=st.sampled_from(range(len(CHAINS))), pages=st.integers(1, 4)
    )
    def put(self, data: Any, row: int, of: int, pages: int) -> None:
        held = self._reserve(row, of, 0, pages, gives_way=False)
        self._commit(data, held, 1, 1, (10, 12))

    def _commit(
        self, data: Any, picked: list[Held], revision: int, provenance: int, times: tuple[int, int]
    ) -> None:
        row = picked[0].row if picked else self.rows[0]
        rests_on = data.draw(st.sampled_from(sorted(self.instances)))
        terms: dict[str, Any] = {
            "row": row, "incarnation": bytes(16), "revision": revision, "producer": provenance,
            "computed_from_ms": times[0], "computed_until_ms": times[1], "now_ns": now_ns(),
        }  # fmt: skip
        expected = self.model.commit(reservations=[one.model for one in picked], rests_on=rests_on, **terms)
        got = self.native.arena.commit(
            reservations=[one.native for one in picked], rests_on=self.instances[rests_on], **terms
        )
        assert expected == [tuple(one) for one in got]
        for one in picked:
            self.held.remove(one)
            self.instances[one.model + (1 << 32)] = one.native + (1 << 32)
            self._meet(one)

    def _meet(self, one: Held) -> None:
        """Note what each calls the birth of a page that both have published."""
        mine, theirs = self._described(one)
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert theirs["birth"] not in (0, U64_MAX)
            assert self.births.setdefault(mine["birth"], theirs["birth"]) == theirs["birth"]
            assert self.lines.setdefault(mine["line"], theirs["line"]) == theirs["line"]

    def _described(self, one: Held) -> tuple[Any, Any]:
        return (
            self.model.describe(one.model + (1 << 32)),
            self.native.arena.describe(one.native + (1 << 32)),
        )

    @precondition(lambda self: any(one.gives_way for one in self.held))
    @rule(data=st.data(), revision=st.integers(1, 3), birth=st.sampled_from([None, 7, 8]))
    def publish_loaded(self, data: Any, revision: int, birth: int | None) -> None:
        """A page of a birth that is known here already, or one from elsewhere, on any other."""
        self._publish_loaded(
            data, data.draw(st.sampled_from([one for one in self.held if one.gives_way])), revision, birth
        )

    @rule(
        data=st.data(), row=st.integers(0, 1), of=st.sampled_from(range(len(CHAINS))), pages=st.integers(1, 4)
    )
    def load(self, data: Any, row: int, of: int, pages: int) -> None:
        for one in self._reserve(row, of, 0, pages, gives_way=True):
            self._publish_loaded(data, one, 1, None)

    def _publish_loaded(self, data: Any, one: Held, revision: int, birth: int | None) -> None:
        if birth is None:
            birth = data.draw(st.sampled_from(list(self.births) or [7]))
        assert birth is not None
        self.births.setdefault(birth, birth)
        rests_on = data.draw(st.sampled_from(list(self.lines)))
        terms: dict[str, Any] = {
            "row": one.row, "incarnation": bytes(16), "revision": revision, "producer": 1, "computed_from_ms": 10,
            "computed_until_ms": 12, "expiry_s": data.draw(st.sampled_from([0, 0, now_ns() // 10**9 + 1000])), "now_ns": now_ns(),
        }  # fmt: skip
        asked = self.model.loaded_lineage_known(row=one.row, reservation=one.model, rests_on=rests_on)
        assert asked == self.native.arena.loaded_lineage_known(
            row=one.row, reservation=one.native, rests_on=self.lines[rests_on]
        )
        expected = self.model.publish_loaded(reservation=one.model, birth=birth, rests_on=rests_on, **terms)
        got = self.native.arena.publish_loaded(
            reservation=one.native, birth=self.births[birth], rests_on=self.lines[rests_on], **terms
        )
        assert expected == tuple(got)
        self.held.remove(one)
        self.instances[one.model + (1 << 32)] = one.native + (1 << 32)
        mine, theirs = self._described(one)
        assert (mine is None) == (theirs is None) == (expected[0] != PutStatus.STORED)
        if mine is not None:
            assert mine["lineage_unknown"] == theirs["lineage_unknown"] == (not asked)
            assert self.lines.setdefault(mine["line"], theirs["line"]) == theirs["line"]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        one = data.draw(st.sampled_from(self.held))
        self.model.abort(row=one.row, reservations=[one.model])
        self.native.arena.abort(row=one.row, reservations=[one.native])
        self.held.remove(one)

    @rule(selection=selections, work=st.integers(1, 30))
    def hide(self, selection: dict[str, Any], work: int) -> None:
        def all_steps(arena: Any) -> int:
            cursor, hidden = 0, 0
            while cursor >= 0:
                cursor, more = arena.hide_step(**selection, cursor=cursor, work_max=work)
                hidden += more
            return hidden

        assert all_steps(self.model) == all_steps(self.native.arena)

    @rule(selection=selections)
    def count(self, selection: dict[str, Any]) -> None:
        expected = self.model.count_step(**selection, cursor=0, work_max=10_000)
        assert expected == self.native.arena.count_step(**selection, cursor=0, work_max=10_000)

    @rule(row=st.integers(0, 1), orphan=st.booleans())
    def end(self, row: int, orphan: bool) -> None:
        number = self.rows[row]
        if orphan:
            self.model.orphan_row(number)
            self.native.arena.orphan_row(number)
            return
        self.model.end_row(number)
        self.native.arena.end_row(number)
        self.held = [one for one in self.held if one.row != number]
        self.rows[row] = self._open()

    @rule()
    def expire(self) -> None:
        moment_ns = now_ns()
        assert self.model.expire(moment_ns) == self.native.arena.expire(moment_ns)

    @rule(
        of=st.sampled_from(range(len(CHAINS))), start=st.integers(0, 3), namespace=st.sampled_from(NAMESPACES)
    )
    def lease(self, of: int, start: int, namespace: int) -> None:
        packed = b"".join(CHAINS[of])
        mine = self.reader.lease(0, packed, namespace=namespace, start=start)
        theirs = self.native.reader.lease(0, packed, namespace=namespace, start=start)
        assert (mine.pages, mine.reason) == (theirs.pages, theirs.reason)
        self.leases.append((mine, theirs))

    @rule(of=st.sampled_from(range(len(CHAINS))), start=st.integers(0, 3))
    def begin_look_up(self, of: int, start: int) -> None:
        packed = b"".join(CHAINS[of])
        mine = self.reader.lease(0, packed, namespace=0, start=start, may_load=True)
        theirs = self.native.reader.lease(0, packed, namespace=0, start=start, may_load=True)
        assert (mine.pages, mine.reason) == (theirs.pages, theirs.reason)
        self.leases.append((mine, theirs))
        if mine.reason == MissReason.ABSENT:
            self.begun.append((of, start))

    @precondition(lambda self: self.begun)
    @rule(
        l3_from=st.sampled_from([None, 0, 1, 2, 3, 9]),
        reason=st.sampled_from([0, int(MissReason.NO_ROOM), int(MissReason.L3_UNAVAILABLE)]),
    )
    def complete_look_up(self, l3_from: int | None, reason: int) -> None:
        of, start = self.begun.pop(0)
        packed = b"".join(CHAINS[of])
        terms: dict[str, Any] = {"namespace": 0, "start": start, "l3_from": l3_from, "reason": reason}
        mine = self.reader.complete_lease(0, packed, **terms)
        theirs = self.native.reader.complete_lease(0, packed, **terms)
        assert (mine.pages, mine.reason) == (theirs.pages, theirs.reason)
        self.leases.append((mine, theirs))

    @precondition(lambda self: self.begun)
    @rule(of=st.sampled_from(range(len(CHAINS))), start=st.integers(0, 3), data=st.data())
    def complete_get(self, of: int, start: int, data: Any) -> None:
        of, _ = self.begun.pop(0)
        packed = b"".join(CHAINS[of])
        terms: dict[str, Any] = {
            "namespace": 0, "start": start, "page_bytes": PAGE, "l1": data.draw(st.integers(0, start)),
            "l3_from": data.draw(st.integers(0, 6)), "reason": int(MissReason.DEADLINE),
        }  # fmt: skip
        into = bytearray((6 - start) * PAGE)
        mine = self.reader.complete_get(0, packed, into, **terms)
        theirs = self.native.reader.complete_get(0, packed, into, **terms)
        assert mine[:2] == tuple(theirs)[:2]

    @rule(data=st.data())
    def pin(self, data: Any) -> None:
        instance = data.draw(st.sampled_from(sorted(self.instances)))
        mine, theirs = self.reader.pin(instance), self.native.reader.pin(self.instances[instance])
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert theirs.instances() == [self.instances[instance]]
            self.leases.append((mine, theirs))

    @precondition(lambda self: self.leases)
    @rule()
    def release(self) -> None:
        for lease in self.leases.pop(0):
            lease.release()

    @rule(revision=st.integers(0, 9), events=st.integers(1, 20))
    def publish(self, revision: int, events: int) -> None:
        before = self.model.view
        for _ in range(events):
            event: dict[str, Any] = {
                "incarnation": bytes(16),
                "revision": revision,
                "kind": 2,
                "payload": b"abc",
            }
            assert self.model.publish_event(**event) == self.native.arena.publish_event(**event)
        assert self.reader.stamp() == tuple(self.native.reader.stamp())
        for view in (before, max(0, before - 3)):
            theirs = self.native.reader.events_since(view)
            mine = self.reader.events_since(view)
            assert (mine is None) == (theirs is None or len(theirs) > len(self.model.ring))
            if mine is not None and theirs is not None:
                assert mine == [tuple(one) for one in theirs]

    @invariant()
    def the_same_pages_are_there(self) -> None:
        for keys in CHAINS:
            packed = b"".join(keys)
            for one in set(NAMESPACES):
                mine_found = self.reader.match(packed, namespace=one)
                assert mine_found == tuple(self.native.reader.match(packed, namespace=one))
            for key in keys:
                assert self.model.chain(key, pages_max=3) == self.native.arena.chain(key, pages_max=3)
                mine, theirs = self.model.find(key), self.native.arena.find(key)
                assert (mine is None) == (theirs is None)
                if mine is not None and theirs is not None:
                    for name in ("revision", "producer", "lineage_unknown", "namespace_slot"):
                        assert mine[name] == theirs[name]
                    assert self.births[int(mine["birth"])] == theirs["birth"]
                    assert self.lines[int(mine["line"])] == theirs["line"]
                    assert self.lines[int(mine["rests_on"])] == theirs["rests_on"]

    @invariant()
    def the_same_pages_are_used(self) -> None:
        used = [_used_keys(arena) for arena in (self.model, self.native.arena)]
        assert used[0] == used[1]

    @invariant()
    def the_figures_are_the_same(self) -> None:
        mine, theirs = self.model.statistics(), self.native.arena.statistics()
        assert {name: mine[name] for name in FIGURES} == {name: theirs[name] for name in FIGURES}
        assert bool(mine["oldest_hidden_view"]) == bool(theirs["oldest_hidden_view"])
        counted, native = self.reader.counts(0), self.native.reader.counts(0)
        for name in ("begun", "requested", "l1", "l2", "l3", *MISSED):
            assert counted[name] == native[name]

    def teardown(self) -> None:
        if hasattr(self, "native"):
            for _, theirs in self.leases:
                theirs.release()
            self.native.reader.close()
            self.native.arena.close()


def _used_keys(arena: Any) -> set[bytes]:
    """Keys of used pages; of those the cold ones are some, where nothing is in use or on its way above them."""
    _, used = arena.used_pages(begin=0, count=65_536)
    told = [arena.describe(one) for one in used]
    assert {*arena.cold_used_pages(turn=0, count=65_536)} <= {*used}
    return {one["key"] for one in told}


ArenaMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, phases=(Phase.generate,)
)
TestArenaModel = ArenaMachine.TestCase
