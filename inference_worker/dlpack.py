"""Bytes of a CPU tensor through the DLPack protocol, without importing the tensor's library.

numpy.from_dlpack knows neither bfloat16 nor fp8, which is what KV caches are made of; here only the place and the
size of the memory matter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from kv_types.errors import BufferMismatchError

_CPU_DEVICES = frozenset({1, 3, 11})  # kDLCPU, kDLCUDAHost, kDLROCMHost
_CAPSULE_NAME = b"dltensor"


@runtime_checkable
class DLPackTensor(Protocol):
    """What numpy, torch and jax arrays have in common."""

    def __dlpack__(self, *, stream: Any = None) -> object:
        """Return a capsule named dltensor."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (device type, device number)."""
        ...


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("dimensions", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def tensor_bytes(tensor: DLPackTensor, what: str) -> memoryview:
    """View the memory of a contiguous CPU tensor as writable bytes; valid while the caller keeps `tensor`.

    `what` names the tensor in errors. Raises BufferMismatchError when it is on a device, not contiguous, or needs
    gradients.
    """
    try:
        kind, _ = tensor.__dlpack_device__()
        if kind not in _CPU_DEVICES:
            raise BufferMismatchError(
                f"{what} is on a device (DLPack device type {int(kind)}); copy it to host memory first"
            )
        # Kept until the return: the capsule owns the descriptor that is read below.
        capsule = tensor.__dlpack__()
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise BufferMismatchError(f"{what} does not hand out its memory: {error}") from error
    described = _Tensor.from_address(_capsule_pointer(capsule, _CAPSULE_NAME))
    shape = list(described.shape[: described.dimensions])
    strides = list(described.strides[: described.dimensions]) if described.strides else None
    if not _is_contiguous(shape, strides):
        raise BufferMismatchError(
            f"{what} is not contiguous (shape {shape}, strides {strides}); call .contiguous()"
        )
    count = 1
    for length in shape:
        count *= length
    size = count * described.dtype.bits * described.dtype.lanes // 8
    if size == 0:
        return memoryview(bytearray())
    address = described.data + described.byte_offset
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _is_contiguous(shape: Sequence[int], strides: Sequence[int] | None) -> bool:
    if strides is None:
        return True
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return 0 in shape
        expected *= length
    return True
