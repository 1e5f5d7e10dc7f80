"""The session machine: each transition by hand, then every order of events against what must always hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference_worker.session import (
    BACKOFF_S_MIN,
    Action,
    Attached,
    AttachFailed,
    BeginAttach,
    CloseRequested,
    Discard,
    Event,
    Finish,
    Lost,
    Phase,
    Publish,
    Session,
    Started,
    UseRemote,
    Wait,
    WaitElapsed,
    Withdraw,
)
from kv_types.limits import RECONNECT_BACKOFF_S_MAX

REATTACH_S = 30.0
JITTER = st.floats(0.0, 1.0, exclude_max=True)


def session(*events: Event) -> Session:
    machine = Session(reattach_s=REATTACH_S)
    for event in events:
        machine.step(event)
    return machine


def absent(jitter: float = 0.5) -> AttachFailed:
    return AttachFailed("no socket", refused=False, jitter=jitter)


def test_start_attach_publish() -> None:
    machine = session()
    assert machine.step(Started()) == (BeginAttach(),)
    assert machine.step(Attached()) == (Publish(),)
    assert (machine.phase, machine.attaches, machine.reason) == (Phase.ATTACHED, 1, "")


def test_loss_withdraws_before_it_waits_and_then_attaches_again() -> None:
    machine = session(Started(), Attached())
    withdraw, wait = machine.step(Lost("hung up", jitter=0.0))
    assert withdraw == Withdraw()
    assert wait == Wait(BACKOFF_S_MIN / 2)
    assert (machine.phase, machine.reason) == (Phase.BACKING_OFF, "hung up")
    assert machine.step(WaitElapsed()) == (BeginAttach(),)
    assert machine.step(Attached()) == (Publish(),)
    assert (machine.attaches, machine.losses) == (2, 1)


def test_refused_shared_memory_serves_over_grpc_and_asks_again_slowly() -> None:
    machine = session(Started())
    remote, wait = machine.step(AttachFailed("foreign time namespace", refused=True, jitter=0.999))
    assert remote == UseRemote("foreign time namespace")
    assert isinstance(wait, Wait)
    assert REATTACH_S / 2 <= wait.delay_s <= REATTACH_S
    assert machine.step(WaitElapsed()) == (BeginAttach(),)


def test_backoff_doubles_and_starts_over_after_a_success() -> None:
    machine = session(Started())
    delays = []
    for _ in range(12):
        (wait,) = machine.step(absent(jitter=0.0))
        assert isinstance(wait, Wait)
        delays.append(wait.delay_s)
        machine.step(WaitElapsed())
    assert delays[:3] == [BACKOFF_S_MIN / 2, BACKOFF_S_MIN, BACKOFF_S_MIN * 2]
    assert delays == sorted(delays)
    assert delays[-1] == RECONNECT_BACKOFF_S_MAX / 2
    machine.step(Attached())
    assert machine.step(Lost("again", jitter=0.0))[1] == Wait(BACKOFF_S_MIN / 2)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((), (Finish(),)),
        ((Started(),), (Finish(),)),
        ((Started(), Attached()), (Withdraw(), Finish())),
        ((Started(), absent()), (Finish(),)),
    ],
)
def test_close_from_every_phase(events: tuple[Event, ...], expected: tuple[Action, ...]) -> None:
    machine = session(*events)
    assert machine.step(CloseRequested()) == expected
    assert machine.step(CloseRequested()) == ()


def test_an_arena_that_arrives_after_the_end_is_discarded() -> None:
    assert session(Started(), CloseRequested()).step(Attached()) == (Discard(),)


@given(failures=st.integers(0, 10_000), jitter=JITTER)
def test_backoff_is_bounded(failures: int, jitter: float) -> None:
    delay_s = Session(reattach_s=REATTACH_S).backoff_s(failures=failures, jitter=jitter)
    assert BACKOFF_S_MIN / 2 <= delay_s <= RECONNECT_BACKOFF_S_MAX


EVENTS = st.one_of(
    st.just(Started()),
    st.just(Attached()),
    st.builds(AttachFailed, st.text(max_size=3), refused=st.booleans(), jitter=JITTER),
    st.builds(Lost, st.text(max_size=3), jitter=JITTER),
    st.just(WaitElapsed()),
)


class AnyOrder(RuleBasedStateMachine):
    """Feeds any events, late and senseless ones too, and follows what a shell would have done."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Session(reattach_s=REATTACH_S)
        self.attempting = False
        self.published = False
        self.waiting = False
        self.finished = 0

    @rule(event=EVENTS)
    def step(self, event: Event) -> None:
        self.execute(event, self.machine.step(event))

    @precondition(lambda self: not self.finished)
    @rule()
    def close(self) -> None:
        self.execute(CloseRequested(), self.machine.step(CloseRequested()))
        assert self.finished == 1
        assert not self.published, "what was published is withdrawn before the end"

    @precondition(lambda self: self.attempting)
    @rule(event=st.sampled_from([Attached(), absent()]))
    def answer(self, event: Event) -> None:
        self.execute(event, self.machine.step(event))

    def execute(self, event: Event, actions: tuple[Action, ...]) -> None:
        is_answer = isinstance(event, Attached | AttachFailed)
        was_attempting = self.attempting
        for action in actions:
            match action:
                case BeginAttach():
                    assert not self.attempting, "one attempt at a time"
                    assert not self.finished, "no attempt after the end"
                    self.attempting, self.waiting = True, False
                case Publish():
                    assert was_attempting, "only what an attempt brought is published"
                    assert not self.published, "one arena at a time"
                    self.attempting, self.published = False, True
                case Withdraw():
                    assert self.published, "only what is published is withdrawn"
                    self.published = False
                case Wait(delay_s):
                    assert 0 < delay_s <= REATTACH_S
                    self.waiting, self.attempting = True, False
                case UseRemote():
                    assert is_answer
                    assert not self.published
                case Discard():
                    assert self.finished
                case Finish():
                    self.finished += 1

    @invariant()
    def phase_tells_what_was_done(self) -> None:
        assert self.published == (self.machine.phase is Phase.ATTACHED)
        if not self.finished:
            assert self.waiting == (self.machine.phase is Phase.BACKING_OFF) or self.published
            assert self.attempting == (self.machine.phase is Phase.CONNECTING)


TestAnyOrder = AnyOrder.TestCase
