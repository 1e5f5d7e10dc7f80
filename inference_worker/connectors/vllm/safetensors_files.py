"""Headers of safetensors files, read without any library and without trust: where each tensor's bytes lie."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kv_types.errors import StrataError
from kv_types.limits import WEIGHTS_HEADER_BYTES_MAX, WEIGHTS_TENSOR_RANK_MAX

_LENGTH = struct.Struct("<Q")
_METADATA = "__metadata__"
# Bits of one number. A dtype that isn't listed is taken by its name, and only its size goes unchecked.
_DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
}


class WeightsFilesError(StrataError):
    """Files of weights or of an adapter are missing, malformed, or were changed while they were read."""

    code = "weights_files"


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One tensor of a file: what it is called, and where its bytes lie in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


def read_header(descriptor: int, name: str) -> list[TensorPlace]:
    """Read where an open file's tensors lie, in no particular order. `name` is for errors.

    Tensors must lie one after another from the header's end to the file's, as the format demands, so that no byte is
    told by two of them or by none. Raises WeightsFilesError.
    """
    file_bytes = os.fstat(descriptor).st_size
    head = os.pread(descriptor, _LENGTH.size, 0)
    if len(head) < _LENGTH.size:
        raise WeightsFilesError(f"{name} has {len(head)} bytes, too few for a safetensors file")
    (header_bytes,) = _LENGTH.unpack(head)
    begin = _LENGTH.size + header_bytes
    if header_bytes > WEIGHTS_HEADER_BYTES_MAX or begin > file_bytes:
        raise WeightsFilesError(
            f"{name} announces a header of {header_bytes} bytes; it has {file_bytes} bytes, and a header at most "
            f"{WEIGHTS_HEADER_BYTES_MAX}: is it a safetensors file?"
        )
    entries = parse_json(os.pread(descriptor, header_bytes, _LENGTH.size), f"the header of {name}")
    places = [
        _place(entry, tensor, begin=begin, name=name)
        for tensor, entry in entries.items()
        if tensor != _METADATA
    ]
    end = begin
    for place in sorted(places, key=lambda place: (place.offset, place.size_bytes)):
        if place.offset != end:
            raise WeightsFilesError(f"{name}: tensor {place.name!r} overlaps another one or leaves a gap")
        end += place.size_bytes
    if end != file_bytes:
        raise WeightsFilesError(f"{name} has {file_bytes} bytes, and its header tells of {end}")
    return places


def parse_json(data: bytes, what: str) -> Mapping[str, Any]:
    """Decode a JSON object in which no name stands twice. Raises WeightsFilesError."""
    try:
        decoded = json.loads(data.decode("utf-8"), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise WeightsFilesError(f"{what} is no JSON that could be read: {error}") from error
    if not isinstance(decoded, dict):
        raise WeightsFilesError(f"{what} is a JSON {type(decoded).__name__}, not an object")
    return decoded


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return values


def _place(entry: object, tensor: str, *, begin: int, name: str) -> TensorPlace:
    what = f"{name}: tensor {tensor!r}"
    if not isinstance(entry, dict):
        raise WeightsFilesError(f"{what} is described by a {type(entry).__name__}, not an object")
    dtype, shape, offsets = entry.get("dtype"), _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or len(shape) > WEIGHTS_TENSOR_RANK_MAX:
        raise WeightsFilesError(f"{what} has dtype {dtype!r:.80} and shape {entry.get('shape')!r:.80}")
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        told = entry.get("data_offsets")
        raise WeightsFilesError(f"{what} has data_offsets {told!r:.80}; two rising integers must stand there")
    size = offsets[1] - offsets[0]
    bits = _DTYPE_BITS.get(dtype)
    if bits is not None and math.prod(shape) * bits != size * 8:
        raise WeightsFilesError(f"{what} of dtype {dtype} and shape {shape!r:.80} can't take {size} bytes")
    return TensorPlace(tensor, dtype, shape, begin + offsets[0], size)


def _sizes(values: object) -> tuple[int, ...] | None:
    if isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values):
        return tuple(values)
    return None
