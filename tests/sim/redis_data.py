"""A Redis keyspace in memory: the commands that the product uses, with their replies and errors. Without a clock of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.support.lua_redis import ErrorReply, Reply, Status

OK = Status(b"OK")
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"

Id = tuple[int, int]


class Stream:
    """Entries in order of their ids; the last id outlives trimming."""

    __slots__ = ("entries", "last")

    def __init__(self) -> None:
        self.entries: list[tuple[Id, list[bytes]]] = []
        self.last: Id = (0, 0)


class Text(NamedTuple):
    """A string that ends at a time (Unix ms of the server's wall clock)."""

    value: bytes
    ends_ms: int


Value = bytes | Text | dict[bytes, bytes] | Stream


class Keyspace:
    """Keys of one server. `dirty` counts changes."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.values: dict[bytes, Any] = {}
        self.dirty = 0
        self._now_ms = now_ms
        self.reads = {name: getattr(self, name.decode().lower()) for name in _READING}
        self.writes = {name: getattr(self, name.decode().lower()) for name in _WRITING if name != b"DEL"}
        self.writes[b"DEL"] = self.unlink

    def snapshot(self) -> dict[bytes, Any]:
        """Copy of everything, as a dump holds it."""
        return copy.deepcopy(self.values)

    def execute(self, name: bytes, arguments: tuple[bytes, ...]) -> Reply:
        """Run one command; raises ErrorReply."""
        run = self.reads.get(name) or self.writes.get(name)
        if run is None:
            raise ErrorReply(f"ERR unknown command '{name.decode()}'")
        return run(*arguments)

    # --- keys ---

    def unlink(self, *keys: bytes) -> Reply:
        gone = sum(self._living(key) is not None and self.values.pop(key, None) is not None for key in keys)
        self.dirty += gone
        return gone

    def exists(self, *keys: bytes) -> Reply:
        return sum(self._living(key) is not None for key in keys)

    def flushall(self, *_: bytes) -> Reply:
        self.values.clear()
        self.dirty += 1
        return OK

    def _living(self, key: bytes) -> Any:
        """What is under a key, unless its time is over: then it goes."""
        value = self.values.get(key)
        if value.__class__ is Text and value.ends_ms <= self._now_ms():
            del self.values[key]
            return None
        return value

    # --- strings ---

    def get(self, key: bytes) -> Reply:
        value = self._living(key)
        if value.__class__ is Text:
            return value.value
        if value is not None and not isinstance(value, bytes):
            raise ErrorReply(WRONG_TYPE)
        return value

    def getrange(self, key: bytes, first: bytes, last: bytes) -> Reply:
        value, begin, end = self.get(key) or b"", int(first), int(last)
        if begin < 0 or end < 0:
            raise ErrorReply("ERR this model's ranges count from the start")
        return value[begin : end + 1]

    def strlen(self, key: bytes) -> Reply:
        return len(self.get(key) or b"")

    def set(self, key: bytes, value: bytes, *options: bytes) -> Reply:
        ends_ms = self._ends_ms(*options) if options else 0
        self.values[key] = Text(value, ends_ms) if ends_ms else value
        self.dirty += 1
        return OK

    def _ends_ms(self, unit: bytes, length: bytes, *more: bytes) -> int:
        number = int(length)
        made = {b"EX": lambda: self._now_ms() + 1000 * number, b"PXAT": lambda: number}.get(unit.upper())
        if made is None or more:
            raise ErrorReply("ERR this model's SET knows EX and PXAT alone")
        if number <= 0:
            raise ErrorReply("ERR invalid expire time in 'set' command")
        return made()

    def expire(self, key: bytes, seconds: bytes) -> Reply:
        return self.pexpireat(key, b"%d" % (self._now_ms() + 1000 * int(seconds)))

    def pexpireat(self, key: bytes, ends_ms: bytes) -> Reply:
        value = self._living(key)
        if value is None:
            return 0
        if not isinstance(value, bytes | Text):
            raise ErrorReply("ERR this model ends strings alone")
        self.values[key] = Text(value.value if isinstance(value, Text) else value, int(ends_ms))
        self.dirty += 1
        return 1

    def ttl(self, key: bytes) -> Reply:
        value = self._living(key)
        if value is None:
            return -2
        return (value.ends_ms - self._now_ms() + 500) // 1000 if isinstance(value, Text) else -1

    def as_sent_on(self, name: bytes, arguments: tuple[bytes, ...]) -> tuple[bytes, tuple[bytes, ...]]:
        """A command that was carried out, as replicas get it: with times that mean the same whenever they come."""
        if name == b"EXPIRE" or (name == b"SET" and len(arguments) > 2):
            value = self.values.get(arguments[0])
            if isinstance(value, Text):
                ends_ms = b"%d" % value.ends_ms
                key = arguments[0]
                return (b"PEXPIREAT", (key, ends_ms)) if name == b"EXPIRE" else (
                    b"SET", (key, value.value, b"PXAT", ends_ms),
                )  # fmt: skip
        return name, arguments

    # --- hashes ---

    def _hash(self, key: bytes) -> dict[bytes, bytes] | None:
        value = self.values.get(key)
        if value is not None and value.__class__ is not dict:
            raise ErrorReply(WRONG_TYPE)
        return value

    def hget(self, key: bytes, field: bytes) -> Reply:
        found = self._hash(key)
        return None if found is None else found.get(field)

    def hmget(self, key: bytes, *fields: bytes) -> Reply:
        found = self._hash(key) or {}
        return [found.get(field) for field in fields]

    def hset(self, key: bytes, *pairs: bytes) -> Reply:
        if not pairs or len(pairs) % 2:
            raise ErrorReply("ERR wrong number of arguments for 'hset' command")
        found = self._hash(key)
        if found is None:
            found = self.values[key] = {}
        before = len(found)
        found.update(zip(pairs[::2], pairs[1::2], strict=True))
        self.dirty += 1
        return len(found) - before

    def hdel(self, key: bytes, *fields: bytes) -> Reply:
        found = self._hash(key)
        if found is None:
            return 0
        gone = 0
        for field in fields:
            gone += found.pop(field, None) is not None
        if not found:
            del self.values[key]
        self.dirty += gone
        return gone

    def hgetall(self, key: bytes) -> Reply:
        return [part for pair in (self._hash(key) or {}).items() for part in pair]

    def hkeys(self, key: bytes) -> Reply:
        return list(self._hash(key) or {})

    def hvals(self, key: bytes) -> Reply:
        return list((self._hash(key) or {}).values())

    def hlen(self, key: bytes) -> Reply:
        return len(self._hash(key) or ())

    def hexists(self, key: bytes, field: bytes) -> Reply:
        return int(field in (self._hash(key) or ()))

    def hincrby(self, key: bytes, field: bytes, step: bytes) -> Reply:
        value = int(self.hget(key, field) or b"0") + int(step)
        self.hset(key, field, b"%d" % value)
        return value

    # --- streams ---

    def _stream(self, key: bytes) -> Stream | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, Stream):
            raise ErrorReply(WRONG_TYPE)
        return value

    def xadd(self, key: bytes, name: bytes, *pairs: bytes) -> Reply:
        if name == b"*" or not pairs or len(pairs) % 2:
            raise ErrorReply("ERR this model's XADD takes an explicit id and pairs, no options")
        stream = self._stream(key)
        entry = _id(name)
        last = (0, 0) if stream is None else stream.last
        if entry == (0, 0):
            raise ErrorReply("ERR The ID specified in XADD must be greater than 0-0")
        if entry <= last:
            raise ErrorReply(
                "ERR The ID specified in XADD is equal or smaller than the target stream top item"
            )
        if stream is None:
            stream = self.values[key] = Stream()
        stream.entries.append((entry, list(pairs)))
        stream.last = entry
        self.dirty += 1
        return b"%d-%d" % entry

    def xlen(self, key: bytes) -> Reply:
        stream = self._stream(key)
        return 0 if stream is None else len(stream.entries)

    def xrange(self, key: bytes, start: bytes, end: bytes, *options: bytes) -> Reply:
        stream = self._stream(key)
        if stream is None:
            return []
        first = (0, 0) if start == b"-" else _id(start)
        last = (1 << 64, 0) if end == b"+" else _id(end, default=(1 << 64) - 1)
        count = int(options[1]) if options and options[0].upper() == b"COUNT" else len(stream.entries)
        if not count:
            return None  # as a real server answers, though not for a key that is absent
        found: list[Reply] = []
        for entry, pairs in stream.entries:
            if len(found) >= count:
                break
            if first <= entry <= last:
                found.append([b"%d-%d" % entry, list(pairs)])
        return found

    def xtrim(self, key: bytes, strategy: bytes, threshold: bytes) -> Reply:
        if threshold == b"~":
            raise ErrorReply("ERR this model trims exactly or not at all")
        stream = self._stream(key)
        if stream is None:
            return 0
        before = len(stream.entries)
        if strategy.upper() == b"MAXLEN":
            stream.entries = stream.entries[max(0, before - int(threshold)) :]
        else:
            stream.entries = [entry for entry in stream.entries if entry[0] >= _id(threshold)]
        self.dirty += before - len(stream.entries)
        return before - len(stream.entries)

    def xdel(self, key: bytes, *names: bytes) -> Reply:
        stream = self._stream(key)
        if stream is None:
            return 0
        gone = {_id(name) for name in names}
        before = len(stream.entries)
        stream.entries = [entry for entry in stream.entries if entry[0] not in gone]
        self.dirty += before - len(stream.entries)
        return before - len(stream.entries)


def _id(name: bytes, *, default: int = 0) -> Id:
    milliseconds, _, sequence = name.partition(b"-")
    try:
        return int(milliseconds), int(sequence) if sequence else default
    except ValueError as error:
        raise ErrorReply("ERR Invalid stream ID specified as stream command argument") from error


_WRITING = b"UNLINK DEL FLUSHALL SET EXPIRE PEXPIREAT HSET HDEL HINCRBY XADD XTRIM XDEL".split()
_READING = b"EXISTS GET GETRANGE STRLEN TTL HGET HMGET HGETALL HKEYS HVALS HLEN HEXISTS XLEN XRANGE".split()
SHRINKING = frozenset(b"UNLINK DEL FLUSHALL EXPIRE PEXPIREAT HDEL XTRIM XDEL".split())
"""What a full server still carries out."""
