"""Streams of a device: a side stream that is ordered with whatever streams its engine has, and streams that share memory.

An engine's stream is the current one of the thread that calls, and besides the one that was followed last. Both may change
between any two calls. What a stream was given before such a change is waited for then, once, by an event, so that nothing has
to be kept of streams that the engine has left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from kv_types.engine_limits import L1_STREAMS_MAX


class Event(Protocol):
    """A point in the work of a stream."""

    def synchronize(self) -> None:
        """Wait on the host until all work before it is done."""
        ...


class Stream(Protocol):
    """Of torch.cuda.Stream what is needed. Two are equal when they are one stream of the device."""

    def record_event(self) -> Any:
        """The point behind all that it was given so far."""
        ...

    def wait_event(self, event: Any) -> None:
        """What it is given from now on comes behind that point; the host doesn't wait."""
        ...


class Streams(Protocol):
    """A device that has streams."""

    def make(self) -> Stream:
        """A new one."""
        ...

    def current(self) -> Stream:
        """What the calling thread gives work to now."""
        ...

    def using(self, stream: Stream) -> AbstractContextManager[object]:
        """The calling thread gives work to this stream inside the block."""
        ...

    def staging(self, size_bytes: int) -> torch.Tensor:
        """New host memory that the device reads and writes by itself: uint8 [size_bytes]."""
        ...


class Side(Protocol):
    """A stream beside the engine's, and memory that its device reads and writes by itself. Thread-safe."""

    def staging(self, size_bytes: int) -> torch.Tensor:
        """New host memory: uint8 [size_bytes]."""
        ...

    def follow_engine(self) -> None:
        """The engine's stream is the one that the calling thread has now, for calls of other threads too."""
        ...

    def wait_for_engine(self) -> None:
        """Work that is submitted from now on comes behind all that the engine's streams were given before."""
        ...

    def submit(self, work: Callable[[], None]) -> None:
        """Give the stream work: it is begun in order, and may be done long after this returns."""
        ...

    def record(self) -> Event:
        """The point behind all work submitted so far."""
        ...

    def engine_waits(self, event: Event) -> None:
        """What the engine is given from now on comes behind this point of the stream; the host doesn't wait."""
        ...


class StreamSide:
    """A stream of a device beside those of its engine."""

    def __init__(self, streams: Streams) -> None:
        """The engine's stream is that of the calling thread, until `follow_engine` is called by another."""
        self._streams = streams
        self._stream = streams.make()
        self._lock = threading.Lock()
        self._followed = streams.current()
        self._awaited: Event | None = None
        """What the engine was told to wait for last: a stream that it changes to has to wait for it too."""

    def staging(self, size_bytes: int) -> torch.Tensor:
        """See Side."""
        return self._streams.staging(size_bytes)

    def follow_engine(self) -> None:
        """See Side. What the stream before was given up to now is waited for, whatever the engine does with it later."""
        current = self._streams.current()
        with self._lock:
            if current == self._followed:
                return
            self._stream.wait_event(self._followed.record_event())
            self._followed = current
            if self._awaited is not None:
                current.wait_event(self._awaited)

    def wait_for_engine(self) -> None:
        """See Side."""
        current = self._streams.current()
        with self._lock:
            followed = self._followed
            self._stream.wait_event(followed.record_event())
            if current not in (followed, self._stream):
                self._stream.wait_event(current.record_event())

    def submit(self, work: Callable[[], None]) -> None:
        """Tensors that the work allocates are of this stream, so that its memory is not another stream's too soon."""
        with self._streams.using(self._stream):
            work()

    def record(self) -> Event:
        """See Side."""
        event: Event = self._stream.record_event()
        return event

    def engine_waits(self, event: Event) -> None:
        """See Side. Points are told in the order of the stream."""
        current = self._streams.current()
        with self._lock:
            followed, self._awaited = self._followed, event
            followed.wait_event(event)
            if current not in (followed, self._stream):
                current.wait_event(event)


class HostSide:
    """No stream: work is done when it is submitted."""

    def staging(self, size_bytes: int) -> torch.Tensor:
        """Ordinary memory."""
        return torch.empty(size_bytes, dtype=torch.uint8)

    def follow_engine(self) -> None:
        """Nothing: the engine's thread has done what it has begun."""

    def wait_for_engine(self) -> None:
        """Nothing, likewise."""

    def submit(self, work: Callable[[], None]) -> None:
        """Do it."""
        work()

    def record(self) -> Event:
        """See Side."""
        return REACHED

    def engine_waits(self, event: Event) -> None:
        """Nothing."""


class StreamOrder:
    """Memory that work of several streams reads and writes: who comes to it comes behind all who have left it. Thread-safe.

    Whoever has given its stream work on the memory calls `leave` before it lets others have that memory; whoever gets it calls
    `enter` before it gives its own stream work on it. Between calls of one stream nothing is done.
    """

    def __init__(self, streams: Streams | None) -> None:
        """None: a device without streams, where work is done when it is given."""
        self._streams = streams
        self._lock = threading.Lock()
        self._left: list[tuple[Stream, Any]] = []
        """The last point of each stream that has left, the one that left longest ago first."""

    def leave(self) -> None:
        """The calling thread's stream was given all its work on what others may now have."""
        if self._streams is None:
            return
        current = self._streams.current()
        with self._lock:
            event = current.record_event()
            self._left = [one for one in self._left if one[0] != current]
            if len(self._left) == L1_STREAMS_MAX:
                (_, oldest), *self._left = self._left
                # The point that is kept of this stream then stands for that one too.
                current.wait_event(oldest)
                event = current.record_event()
            self._left.append((current, event))

    def enter(self) -> None:
        """What the calling thread's stream is given from now on comes behind what all others were given when they left."""
        if self._streams is None:
            return
        current = self._streams.current()
        with self._lock:
            for stream, event in self._left:
                if stream != current:
                    current.wait_event(event)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter, and leave at the end of the block."""
        self.enter()
        try:
            yield
        finally:
            self.leave()


class CudaStreams:
    """Those of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def make(self) -> Stream:
        """See Streams."""
        make_stream: Any = torch.cuda.Stream
        stream: Stream = make_stream(device=self._device)
        return stream

    def current(self) -> Stream:
        """See Streams."""
        return torch.cuda.current_stream(self._device)

    def using(self, stream: Any) -> AbstractContextManager[object]:
        """See Streams."""
        return torch.cuda.stream(stream)

    def staging(self, size_bytes: int) -> torch.Tensor:
        """Pinned."""
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)


def streams_of(device: torch.device) -> Streams | None:
    """A device's streams; None where it has none."""
    return CudaStreams(device) if device.type == "cuda" else None


def side_of(device: torch.device) -> Side:
    """A side stream of a device that has streams, else none."""
    streams = streams_of(device)
    return HostSide() if streams is None else StreamSide(streams)


class _Reached:
    """A point that is always reached."""

    def synchronize(self) -> None:
        """At once."""


REACHED: Event = _Reached()
"""Where nothing is under way."""
