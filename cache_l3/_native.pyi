"""Types of the native data path: one thread that moves bytes between sockets and memory that Python lends it.

Times are CLOCK_BOOTTIME nanoseconds. Errors are ValueError (bad argument), RuntimeError (closed, or forked), OSError; the
callers in cache_l3 turn them into kv_types.errors. What is submitted returns a number, under which `drain` gives its end.
"""

from typing import Any, final

from typing_extensions import Buffer

def xxh3_64(data: Buffer, /) -> int:
    """XXH3-64 with seed 0 of contiguous memory, without the GIL when it is long."""

XXH3_KERNELS: tuple[str, ...]
"""Ways of hashing that this processor can do, the best first."""

def xxh3_64_by(kernel: int, cuts: list[int], data: Buffer, /) -> int:
    """The same, by one of XXH3_KERNELS, taken in up to each of `cuts` in turn as bytes arrive. For tests."""

def split_planes(numbers: Buffer, width: int, planes: Buffer, *, plain: bool = False) -> None:
    """Numbers of 1, 2, 4 or 8 bytes, turned left by one bit, as planes one after another; the GIL is released, as below.

    `plain`, here and below: by what every processor can do, for tests.
    """

def join_planes(planes: list[Buffer] | list[memoryview], numbers: Buffer, *, plain: bool = False) -> None:
    """The reverse: as many planes as a number has bytes, each of as many bytes as there are numbers."""

@final
class Quantiser:
    """Pages of one shape as one byte a number with scales. Arrays: (offset, rows, columns, rows a scale, by column)."""

    def __init__(
        self,
        *,
        code: int,
        number: int,
        page_bytes: int,
        arrays: list[tuple[int, int, int, int, bool]],
        plain: bool = False,
    ) -> None:
        """`code`: 0 fp8 e4m3, 1 int8. `number`: 0 bf16, 1 fp16, 2 fp32. ValueError unless the arrays lie one behind another."""
    @property
    def scales_bytes(self) -> int: ...
    @property
    def codes_bytes(self) -> int: ...
    @property
    def rest_bytes(self) -> int: ...
    def encode(self, page: Buffer, scales: Buffer, codes: Buffer, rest: Buffer) -> tuple[float, float] | None:
        """Errors (of the worst array, of the page) as Σ|x − x'| ÷ Σ|x|; None where a number is not finite."""
    def decode(self, scales: Buffer, codes: Buffer, rest: Buffer, page: Buffer) -> bool:
        """False: scales or codes that `encode` never writes; the page is unspecified then."""

@final
class Alarm:
    """A timer of CLOCK_BOOTTIME for an event loop, which knows no such clock."""

    def __init__(self) -> None: ...
    def fileno(self) -> int: ...
    def set(self, at_ns: int) -> None:
        """Readable from then on, until it is set again."""

@final
class Stored:
    """Bytes of a record that were received apart from their place; lends them by the buffer protocol."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Engine:
    """The thread, its connections and its queues. It holds the memory that it was lent until the end was drained."""

    def __init__(
        self,
        *,
        size_at: int,
        checksum_at: int,
        header_bytes_min: int,
        header_bytes_max: int,
        window: int,
        window_bytes: int,
        passed_over_max: int,
        line_bytes_max: int,
        reply_bytes_max: int,
    ) -> None: ...
    def fileno(self) -> int:
        """An eventfd that is readable while `drain` has something."""
    def open_shard(self) -> int: ...
    def close_shard(self, shard: int) -> None: ...
    def add_connection(self, shard: int, descriptor: int) -> int:
        """Owns the descriptor from now on, whatever happens; returns the connection's number."""
    def get(self, shard: int, request: bytes, place: Buffer, *, asking: bool, deadline_ns: int) -> int: ...
    def set(
        self,
        shard: int,
        before: bytes,
        header: bytes,
        payload: Buffer,
        after: bytes,
        *,
        asking: bool,
        deadline_ns: int,
    ) -> int: ...
    def ask(self, shard: int, request: bytes, replies: int, *, deadline_ns: int) -> int: ...
    def flush(self) -> None:
        """Wake the thread for what was submitted: once for many, since waking costs more than submitting."""
    def cancel(self, request: int) -> None: ...
    def drain(self) -> list[tuple[int, int, bool, Any]]:
        """What has ended: (number, status, was sent, value). Can be called after `close`.

        Status 0: of a GET (header, stored bytes, in place, Stored | None, checksum), of a SET None, of a question the list
        of its replies, each bytes, int, None or (error text,). Otherwise text; the numbers are those of `native_path`.
        Negative numbers are connections, ~connection, that have ended.
        """
    def statistics(self) -> dict[str, int]: ...
    def close(self) -> None:
        """Ends the thread; what was under way is in the next `drain`."""
