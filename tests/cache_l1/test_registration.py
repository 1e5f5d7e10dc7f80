"""Memory registered with a device: used only while it is, given back before it goes, and no trouble where that fails."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from cache_l1.transfer_registration import RegisteredMemory, address_of, host_tensor
from tests.support.polling import wait_until

SIZE = 4096


@dataclass
class FakeRuntime:
    """Notes what is registered. `answer` other than 0: an error. A register waits while `gate` is shut."""

    answer: int = 0
    registered: dict[int, int] = field(default_factory=dict)
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def register(self, address: int, size_bytes: int) -> int:
        assert self.gate.wait(30)
        if not self.answer:
            self.registered[address] = size_bytes
        return self.answer

    def unregister(self, address: int) -> int:
        del self.registered[address]
        return 0


def is_reached(memory: RegisteredMemory, *views: memoryview) -> bool:
    with memory.held(views) as reached:
        return reached


def test_what_lies_within_is_reached_until_it_is_unregistered() -> None:
    runtime, arena = FakeRuntime(), np.zeros(SIZE, dtype=np.uint8)
    memory = RegisteredMemory(runtime)
    unregister = memory.register(arena.ctypes.data, SIZE)
    wait_until(lambda: is_reached(memory, arena[:64].data), what="the memory is registered")
    assert is_reached(memory, arena.data, arena[SIZE - 1 :].data)
    elsewhere = np.zeros(64, dtype=np.uint8)
    assert not is_reached(memory, arena[:64].data, elsewhere.data)
    assert not is_reached(memory)
    unregister()
    assert not is_reached(memory, arena.data)
    assert runtime.registered == {}


def test_it_is_not_reached_before_it_is_registered() -> None:
    runtime, arena = FakeRuntime(), np.zeros(SIZE, dtype=np.uint8)
    runtime.gate.clear()
    memory = RegisteredMemory(runtime)
    unregister = memory.register(arena.ctypes.data, SIZE)
    assert not is_reached(memory, arena.data)
    runtime.gate.set()
    unregister()
    assert runtime.registered == {}, "what was under way is awaited, then given back"


def test_unregistering_waits_for_those_who_use_it_and_lets_in_no_others() -> None:
    runtime, arena = FakeRuntime(), np.zeros(SIZE, dtype=np.uint8)
    memory = RegisteredMemory(runtime)
    unregister = memory.register(arena.ctypes.data, SIZE)
    wait_until(lambda: is_reached(memory, arena.data), what="the memory is registered")
    leaving = threading.Thread(target=unregister)
    with memory.held([arena.data]) as reached:
        assert reached
        leaving.start()
        wait_until(lambda: not is_reached(memory, arena.data), what="nobody else is let in")
        assert runtime.registered, "it is still read"
    leaving.join(timeout=30)
    assert not leaving.is_alive()
    assert runtime.registered == {}


def test_a_failure_is_told_once_and_copies_are_staged(caplog: pytest.LogCaptureFixture) -> None:
    runtime = FakeRuntime(answer=801)
    memory = RegisteredMemory(runtime)
    arenas = [np.zeros(SIZE, dtype=np.uint8) for _ in range(3)]
    with caplog.at_level(logging.WARNING, "stratakv.l1"):
        for arena in arenas:
            memory.register(arena.ctypes.data, SIZE)()
            assert not is_reached(memory, arena.data)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "801" in caplog.text


def test_a_forked_child_gives_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, arena = FakeRuntime(), np.zeros(SIZE, dtype=np.uint8)
    memory = RegisteredMemory(runtime)
    unregister = memory.register(arena.ctypes.data, SIZE)
    wait_until(lambda: is_reached(memory, arena.data), what="the memory is registered")
    with monkeypatch.context() as child:
        child.setattr("os.getpid", lambda: 1)
        unregister()
        assert runtime.registered
    unregister()
    assert runtime.registered == {}


def test_a_read_only_buffer_is_a_tensor_of_its_memory() -> None:
    numbers = np.arange(32, dtype=np.uint8)
    view = numbers[4:20].data.toreadonly()
    assert address_of(view) == numbers.ctypes.data + 4
    tensor = host_tensor(view)
    assert tensor.tolist() == list(range(4, 20))
    numbers[4] = 99
    assert tensor[0] == 99
