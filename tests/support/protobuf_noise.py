"""Protobuf messages filled at random, and encoded messages damaged at random, for tests of whoever reads them."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

DEPTH_MAX = 3
_SIGNED = {FieldDescriptor.CPPTYPE_INT32: 31, FieldDescriptor.CPPTYPE_INT64: 63}
_UNSIGNED = {FieldDescriptor.CPPTYPE_UINT32: 32, FieldDescriptor.CPPTYPE_UINT64: 64}


class Noise:
    """Draws messages. `known`: byte strings that mean something to the reader, such as ids and keys."""

    def __init__(self, draw: random.Random, known: list[bytes]) -> None:
        self._draw = draw
        self._known = known

    def fill(self, message: Message, *, depth: int = 0) -> Message:
        """Set about half of a message's fields, those of messages in it too; returns it."""
        for field in message.DESCRIPTOR.fields:
            if self._draw.random() < 0.4:
                continue
            if field.is_repeated:
                self._extend(getattr(message, field.name), field, depth)
            elif field.message_type is not None:
                if depth < DEPTH_MAX:
                    self.fill(getattr(message, field.name), depth=depth + 1)
                    getattr(message, field.name).SetInParent()
            else:
                setattr(message, field.name, self._value(field))
        return message

    def damage(self, data: bytes) -> bytes:
        """Change, cut, double or lengthen an encoded message."""
        damaged = bytearray(data)
        for _ in range(self._draw.randint(1, 4)):
            kind = self._draw.randrange(5)
            at = self._draw.randrange(len(damaged) + 1)
            if kind == 0:
                damaged[at:] = b""
            elif kind == 1:
                damaged[at:at] = self._draw.randbytes(self._draw.randint(1, 20))
            elif kind == 2:
                damaged[at:at] = damaged[:at]
            elif kind == 3:
                damaged[at:at] = b"\xff" * self._draw.randint(1, 10)
            elif at < len(damaged):
                damaged[at] ^= 1 << self._draw.randrange(8)
        return bytes(damaged[:100_000])

    def _extend(self, into: Any, field: Any, depth: int) -> None:
        for _ in range(self._draw.choice([1, 1, 2, 5, 300])):
            if field.message_type is None:
                into.append(self._value(field))
            elif depth < DEPTH_MAX:
                self.fill(into.add(), depth=depth + 1)

    def _value(self, field: Any) -> Any:
        draw, kind = self._draw, field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING and field.type == FieldDescriptor.TYPE_BYTES:
            return draw.choice(
                [b"", *self._known, *self._known, draw.randbytes(draw.choice([1, 16, 31, 32, 33, 64, 5000]))]
            )
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return draw.choice(["", "tiny", "a" * 5000, "\0", "é\u202e\x1b[31m"])
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return draw.random() < 0.5
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return draw.choice([0, 1, 2, 3, 100, -1, 2**31 - 1])
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return draw.choice([0.0, -1.0, float("nan"), float("inf")])
        bits = _UNSIGNED.get(kind) or _SIGNED[kind]
        low = 0 if kind in _UNSIGNED else -(2**bits)
        return draw.choice([0, 1, 2, 7, 2**bits - 1, low, draw.getrandbits(bits)])
