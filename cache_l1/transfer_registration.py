"""The arena's memory registered with a CUDA device, which then reads it by itself: no staging, no copy by the processor."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

_log = logging.getLogger("stratakv.l1")

_PORTABLE = 1
"""cudaHostRegisterPortable: for all devices of this process."""


class Runtime(Protocol):
    """What of the CUDA runtime is needed; 0 means that it went well."""

    def register(self, address: int, size_bytes: int) -> int:
        """Pin this memory, and let the device reach it. Takes a second or so for some GB."""
        ...

    def unregister(self, address: int) -> int:
        """The reverse."""
        ...


class CudaRuntime:
    """The runtime that torch has loaded."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def register(self, address: int, size_bytes: int) -> int:
        """See Runtime."""
        cuda: Any = torch.cuda
        with torch.cuda.device(self._device):
            return int(cuda.cudart().cudaHostRegister(address, size_bytes, _PORTABLE))

    def unregister(self, address: int) -> int:
        """See Runtime."""
        cuda: Any = torch.cuda
        with torch.cuda.device(self._device):
            return int(cuda.cudart().cudaHostUnregister(address))


@dataclass(slots=True)
class _Memory:
    address: int
    size_bytes: int
    thread: threading.Thread | None = None
    is_registered: bool = False
    is_leaving: bool = False
    users: int = 0
    pid: int = field(default_factory=os.getpid)


class RegisteredMemory:
    """Memory of one process that its device may read. Thread-safe. Where registering fails, nothing is: copies are staged."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._change = threading.Condition()
        self._memories: list[_Memory] = []
        self._has_failed = False

    def register(self, address: int, size_bytes: int) -> Callable[[], None]:
        """Begin to register, on a thread of its own; returns what must be called before the memory is unmapped.

        That waits until nobody uses it, and does nothing in a forked child, which has neither the mapping nor the device.
        """
        memory = _Memory(address, size_bytes)
        memory.thread = threading.Thread(
            target=self._register, args=(memory,), name="stratakv-register", daemon=True
        )
        memory.thread.start()
        return lambda: self._unregister(memory)

    @contextmanager
    def held(self, views: Sequence[memoryview]) -> Iterator[bool]:
        """Whether all these buffers lie in registered memory, which stays so until the block is left."""
        with self._change:
            found = [self._of(view) for view in views]
            memories = [one for one in found if one is not None]
            is_reached = len(memories) == len(found) > 0
            if is_reached:
                for one in memories:
                    one.users += 1
        try:
            yield is_reached
        finally:
            if is_reached:
                with self._change:
                    for one in memories:
                        one.users -= 1
                    self._change.notify_all()

    def _of(self, view: memoryview) -> _Memory | None:
        address = address_of(view)
        for one in self._memories:
            if one.address <= address and address + view.nbytes <= one.address + one.size_bytes:
                return None if one.is_leaving else one
        return None

    def _register(self, memory: _Memory) -> None:
        error = self._runtime.register(memory.address, memory.size_bytes)
        with self._change:
            if error:
                if not self._has_failed:
                    _log.warning(
                        "the arena's memory could not be registered with the device (CUDA error %d): copies go through "
                        "pinned staging memory, which costs the processor a copy of each page",
                        error,
                    )
                self._has_failed = True
                return
            memory.is_registered = True
            self._memories.append(memory)

    def _unregister(self, memory: _Memory) -> None:
        if memory.pid != os.getpid():
            return
        if memory.thread is not None:
            memory.thread.join()
        with self._change:
            memory.is_leaving = True
            self._change.wait_for(lambda: memory.users == 0)
            if not memory.is_registered:
                return
            self._memories.remove(memory)
            memory.is_registered = False
        error = self._runtime.unregister(memory.address)
        if error:
            _log.warning("the arena's memory stays registered with the device (CUDA error %d)", error)


def address_of(view: memoryview) -> int:
    """Where a buffer begins."""
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)


def host_tensor(view: memoryview) -> torch.Tensor:
    """A buffer as uint8 [n], to be read only: torch has no tensors that may not be written. The caller keeps the memory."""
    memory = (ctypes.c_uint8 * view.nbytes).from_address(address_of(view))
    return torch.frombuffer(memory, dtype=torch.uint8)


def registered_memory(device: torch.device) -> RegisteredMemory | None:
    """What registers memory with a device; None for one that has no memory of its own."""
    return RegisteredMemory(CudaRuntime(device)) if device.type == "cuda" else None
