"""The table of calls under way against a model of threads: nobody is forgotten, whatever order things happen in."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cache_l2.attach_calls import Call, CallTable
from cache_l2.attach_messages import Done, ReservedPages, SidecarMessage
from kv_types.outcomes import PutStatus

CALLS_MAX = 3
LATE_MAX = 3


class Threads(RuleBasedStateMachine):
    """Calls of threads that begin, look, sleep, are woken and leave, in any order; replies come in any order too.

    What the channel does under its lock is one rule here. A woken thread looks again when it comes to it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = CallTable(calls_max=CALLS_MAX, late_max=LATE_MAX)
        self.requests = itertools.count(1)
        self.present: list[Call] = []
        self.asleep: set[Call] = set()
        self.due: list[int] = []
        """Requests that the sidecar has and has not answered."""
        self.owed: set[int] = set()
        """Requests whose callers left before the reply."""
        self.unwanted: list[int] = []

    def wake(self, calls: object) -> None:
        for call in calls:  # type: ignore[attr-defined]
            assert call in self.asleep, "who is awake can't be woken: its lock is free"
            assert not call.is_asleep
            self.asleep.discard(call)

    @rule()
    def begin(self) -> None:
        call = Call(next(self.requests))
        self.table.begin(call)
        self.table.lead(call)
        self.present.append(call)

    @precondition(lambda self: any(self.unsent()))
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.unsent()))
        call.is_sent = True
        self.due.append(call.request)

    def unsent(self) -> list[Call]:
        return [one for one in self.present if one.is_admitted and not one.is_sent and one not in self.asleep]

    @precondition(lambda self: any(self.lookers()))
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        """A thread that is awake takes its reply, receives, or falls asleep."""
        call = data.draw(st.sampled_from(self.lookers()))
        if call.reply is not None:
            call.is_taken = True
            self.go(call)
        elif not call.is_sent or not self.table.lead(call):
            call.is_asleep = True
            self.asleep.add(call)

    def lookers(self) -> list[Call]:
        waits = [one for one in self.present if one.is_sent or not one.is_admitted]
        return [one for one in waits if one not in self.asleep and self.table.receiver is not one]

    @precondition(lambda self: self.table.receiver is not None and self.due)
    @rule(data=st.data(), reserved=st.booleans())
    def receive(self, data: st.DataObject, reserved: bool) -> None:
        receiver = self.table.receiver
        request = self.due.pop(data.draw(st.integers(0, len(self.due) - 1)))
        reply: SidecarMessage = Done()
        if reserved:
            reply = ReservedPages(
                bytes([PutStatus.STORED, PutStatus.REFUSED]), bytes(2), (request, 0), (0, 0)
            )
        if request in self.owed:
            self.owed.discard(request)
            self.unwanted += [request] if reserved else []
        self.wake(self.table.arrived(request, reply))
        if receiver is not None and receiver.reply is not None:
            receiver.is_taken = True
            self.go(receiver)

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """A deadline passes, or a signal handler raises, wherever the thread is."""
        call = data.draw(st.sampled_from(self.present))
        self.asleep.discard(call)
        call.is_asleep = False
        if call.is_sent and call.reply is None:
            self.owed.add(call.request)
        elif isinstance(call.reply, ReservedPages):
            self.unwanted.append(call.request)
        self.go(call)

    @precondition(lambda self: self.unwanted)
    @rule()
    def give_back(self) -> None:
        taken = self.table.take_unwanted()
        assert sorted(taken) == sorted(self.unwanted)
        self.unwanted = []

    @rule()
    def break_off(self) -> None:
        """Everybody who sleeps is woken, and none twice."""
        sleeping = set(self.asleep)
        woken = self.table.everybody()
        assert set(woken) == sleeping
        assert len(woken) == len(sleeping)
        self.wake(woken)

    def go(self, call: Call) -> None:
        self.present.remove(call)
        self.wake(self.table.leave(call))

    @invariant()
    def somebody_receives_or_was_woken_to(self) -> None:
        waiting = [one for one in self.asleep if one.is_admitted]
        if waiting:
            awake = [one for one in self.present if one not in self.asleep]
            assert self.table.receiver is not None or awake

    @invariant()
    def nobody_sleeps_on_what_is_there(self) -> None:
        assert all(one.reply is None for one in self.asleep)
        free = sum(one.is_admitted and one.reply is None for one in self.present) < CALLS_MAX
        assert not free or all(one.is_admitted for one in self.present)

    @invariant()
    def the_receiver_is_present(self) -> None:
        assert self.table.receiver is None or self.table.receiver in self.present
        assert self.table.receiver not in self.asleep

    @invariant()
    def accounts_agree(self) -> None:
        assert self.table.late == self.owed
        assert self.table.owes_too_much == (len(self.owed) >= LATE_MAX)
        assert self.table.under_way == sum(one.reply is None for one in self.present)
        assert self.table.expects_leftovers == bool(self.owed or self.unwanted)


TestThreads = Threads.TestCase
TestThreads.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
