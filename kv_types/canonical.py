"""Canonical bytes: typed, length-prefixed fields, and the strict reading of them.

A value is (type tag u8 ‖ length u32 LE ‖ bytes). Numbers are fixed-width little-endian, floats IEEE-754 f64
bits, strings UTF-8 as given (no normalisation: two spellings are two names). None has a tag of its own, so it
never equals an empty value. There is one encoding of every value and one value of every encoding.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from itertools import pairwise

from kv_types.errors import InvalidArgumentError, LimitExceededError, ProtocolError
from kv_types.limits import NAME_BYTES_MAX, PARAMETER_NUMBERS_MAX, PARAMETERS_MAX

ParameterValue = int | float | str | bool | tuple[float, ...]
Parameters = tuple[tuple[str, ParameterValue], ...]
"""Named values in the order of their names' UTF-8 bytes, each name once."""

Value = None | bytes | str | int | float | bool | tuple[float, ...] | Parameters


class Tag(IntEnum):
    """Type of a value. Numbers are part of the encoding and never reused."""

    NONE = 0
    BYTES = 1
    TEXT = 2
    INTEGER = 3
    FLOAT = 4
    BOOLEAN = 5
    FLOATS = 6
    PARAMETERS = 7


_HEAD = struct.Struct("<BI")
_INTEGER = struct.Struct("<q")
_FLOAT = struct.Struct("<d")


class Cursor:
    """Reads a byte string from front to back; raises ProtocolError where it is too short."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._at

    def take(self, size: int, what: str) -> bytes:
        """Read `size` bytes of `what`."""
        if size > self.remaining:
            raise ProtocolError(f"{what}: {size} bytes announced, {self.remaining} left at offset {self._at}")
        self._at += size
        return self._data[self._at - size : self._at]


def parameters(values: Mapping[str, object] | Iterable[tuple[str, object]]) -> Parameters:
    """Put named values into canonical order; sequences of numbers become tuples of floats.

    Raises InvalidArgumentError on a value of another type, a name that is not UTF-8 text or occurs twice,
    NaN or an integer of more than 64 bits; LimitExceededError on too many or too long ones.
    """
    pairs = list(values.items()) if isinstance(values, Mapping) else list(values)
    if len(pairs) > PARAMETERS_MAX:
        raise LimitExceededError(f"{len(pairs)} parameters given; at most {PARAMETERS_MAX} are allowed")
    checked = [(name, _parameter_value(name, value)) for name, value in pairs]
    checked.sort(key=lambda pair: encode_text(pair[0], "parameter name"))
    for before, after in pairwise(checked):
        if before[0] == after[0]:
            raise InvalidArgumentError(f"parameter {before[0]!r} is given twice")
    return tuple(checked)


def _parameter_value(name: str, value: object) -> ParameterValue:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        encode_text(value, f"parameter {name!r}")
        return value
    if isinstance(value, int):
        encode_integer(value, f"parameter {name!r}")
        return value
    if isinstance(value, float):
        encode_float(value, f"parameter {name!r}")
        return value
    if isinstance(value, list | tuple) and all(
        isinstance(number, int | float) and not isinstance(number, bool) for number in value
    ):
        numbers = tuple(_as_float(number, name) for number in value)
        if len(numbers) > PARAMETER_NUMBERS_MAX:
            raise LimitExceededError(
                f"parameter {name!r} has {len(numbers)} numbers; at most {PARAMETER_NUMBERS_MAX} are allowed"
            )
        for number in numbers:
            encode_float(number, f"parameter {name!r}")
        return numbers
    raise InvalidArgumentError(
        f"parameter {name!r} is a {type(value).__name__}; use int, float, str, bool or a sequence of numbers"
    )


def _as_float(number: int | float, name: str) -> float:
    try:
        converted = float(number)
    except OverflowError as error:
        raise InvalidArgumentError(f"parameter {name!r} holds {number}, which no float can hold") from error
    if converted != number and not math.isnan(converted):
        raise InvalidArgumentError(f"parameter {name!r} holds {number}, which no float holds exactly")
    return converted


def encode_text(text: str, what: str) -> bytes:
    """UTF-8 bytes; raises InvalidArgumentError on surrogates, LimitExceededError beyond NAME_BYTES_MAX."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{what} must be a string; got {type(text).__name__}")
    try:
        encoded = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{what} {text!r} is not valid Unicode text ({error.reason})") from error
    if len(encoded) > NAME_BYTES_MAX:
        raise LimitExceededError(f"{what} has {len(encoded)} UTF-8 bytes; at most {NAME_BYTES_MAX} may be")
    return encoded


def encode_integer(number: int, what: str) -> bytes:
    """Eight bytes, signed, little-endian; raises InvalidArgumentError when the number needs more."""
    try:
        return _INTEGER.pack(number)
    except struct.error as error:
        raise InvalidArgumentError(f"{what} is {number}; it must fit 64 bits with a sign") from error


def encode_float(number: float, what: str) -> bytes:
    """Eight bytes of IEEE-754 f64, little-endian; raises InvalidArgumentError on NaN."""
    if math.isnan(number):
        raise InvalidArgumentError(f"{what} is NaN, which equals nothing and so identifies nothing")
    return _FLOAT.pack(number)


def encode_value(value: Value, what: str) -> bytes:
    """One tagged, length-prefixed value."""
    tag, body = _tagged(value, what)
    return _HEAD.pack(tag, len(body)) + body


def _tagged(value: Value, what: str) -> tuple[Tag, bytes]:  # noqa: PLR0911
    if value is None:
        return Tag.NONE, b""
    if isinstance(value, bytes):
        return Tag.BYTES, value
    if isinstance(value, str):
        return Tag.TEXT, encode_text(value, what)
    if isinstance(value, bool):  # before int: True is an int to Python
        return Tag.BOOLEAN, b"\x01" if value else b"\x00"
    if isinstance(value, int):
        return Tag.INTEGER, encode_integer(value, what)
    if isinstance(value, float):
        return Tag.FLOAT, encode_float(value, what)
    return Tag.FLOATS, b"".join(encode_float(number, what) for number in value)  # type: ignore[arg-type]


def encode_parameters(values: Parameters, what: str) -> bytes:
    """One tagged, length-prefixed list of (name, value); the caller made it with `parameters`."""
    body = b"".join(
        encode_value(name, what) + encode_value(value, f"{what}.{name}") for name, value in values
    )
    return _HEAD.pack(Tag.PARAMETERS, len(body)) + body


def decode_value(cursor: Cursor, what: str, *, nested: bool = False) -> Value:
    """Read one value; raises ProtocolError on an unknown tag, a wrong length or a value out of range.

    `nested` refuses parameters inside parameters: bytes from outside must not steer the depth of a recursion.
    """
    tag_number, size = _HEAD.unpack(cursor.take(_HEAD.size, f"head of {what}"))
    body = cursor.take(size, what)
    try:
        tag = Tag(tag_number)
    except ValueError as error:
        raise ProtocolError(f"{what} has type tag {tag_number}, which this version does not know") from error
    if tag is Tag.PARAMETERS:
        if nested:
            raise ProtocolError(f"{what}: parameters do not nest")
        return _decode_parameters(body, what)
    return _decode_scalar(tag, body, what)


def _decode_scalar(tag: Tag, body: bytes, what: str) -> Value:  # noqa: PLR0911
    size_wanted = {Tag.NONE: 0, Tag.INTEGER: 8, Tag.FLOAT: 8, Tag.BOOLEAN: 1}.get(tag)
    if size_wanted is not None and len(body) != size_wanted:
        raise ProtocolError(f"{what} is a {tag.name} of {len(body)} bytes; it must have {size_wanted}")
    if tag is Tag.NONE:
        return None
    if tag is Tag.BYTES:
        return body
    if tag is Tag.TEXT:
        try:
            return body.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"{what} is not UTF-8 ({error.reason} at byte {error.start})") from error
    if tag is Tag.INTEGER:
        return int(_INTEGER.unpack(body)[0])
    if tag is Tag.FLOAT:
        return float(_FLOAT.unpack(body)[0])
    if tag is Tag.BOOLEAN:
        if body not in {b"\x00", b"\x01"}:
            raise ProtocolError(f"{what} is a BOOLEAN of value {body[0]}; only 0 and 1 exist")
        return body == b"\x01"
    if len(body) % 8:
        raise ProtocolError(f"{what} is a FLOATS of {len(body)} bytes; it must be a multiple of 8")
    return tuple(number for (number,) in _FLOAT.iter_unpack(body))


def _decode_parameters(body: bytes, what: str) -> Parameters:
    cursor = Cursor(body)
    pairs: list[tuple[str, object]] = []
    while cursor.remaining:
        if len(pairs) == PARAMETERS_MAX:
            raise ProtocolError(f"{what} has more than {PARAMETERS_MAX} parameters")
        name = decode_value(cursor, f"parameter name in {what}", nested=True)
        if not isinstance(name, str):
            raise ProtocolError(f"{what} has a parameter whose name is not text")
        pairs.append((name, decode_value(cursor, f"{what}.{name}", nested=True)))
    try:
        ordered = parameters(pairs)
    except InvalidArgumentError as error:
        raise ProtocolError(f"{what}: {error}") from error
    if [name for name, _ in ordered] != [name for name, _ in pairs]:
        raise ProtocolError(f"{what}: parameters are not in the order of their names")
    return ordered
