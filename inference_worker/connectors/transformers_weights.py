"""Content of a Transformers model's weights: its digest, and a mark that tells when it must be taken anew."""

from __future__ import annotations

import hashlib
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from kv_types.namespace import Uncacheable, UncacheableReason

_CHUNK_BYTES = 64 * 1024 * 1024
_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})


@dataclass(frozen=True, slots=True)
class ContentMark:
    """Where the weights lie and how often they were edited; equal to another one while they are the same.

    `held` keeps a storage that was freed from coming back as another one under its old address.
    """

    places: tuple[tuple[int, int, int], ...]
    merged: tuple[str, ...]
    held: tuple[Any, ...] = field(compare=False, repr=False)


def content_mark(modules: Sequence[Any]) -> ContentMark:
    """Return a mark of a model's modules that changes when a parameter or buffer is replaced or edited in place.

    Edits through `tensor.data`, and of tensors made in inference mode, leave no trace in PyTorch and are not
    seen; of those, merging an adapter is.
    """
    tensors = tensors_of(modules)
    held = tuple(map(_hold, tensors))
    return ContentMark(tuple(map(_place, tensors)), merged_adapters(modules), held)


def weights_digest(model: Any) -> bytes | Uncacheable:
    """BLAKE2b-256 over names, dtypes, shapes and bytes of all parameters and buffers, whole, in name order.

    Remembered per model object for as long as `content_mark` stays. About 1 GB/s; give an explicit version
    where that is too slow. Uncacheable when bytes are not at hand (meta device, sparse) or are not all
    of what the model computes with (quantised layers that keep scales elsewhere).
    """
    mark = content_mark(list(model.modules()))
    known = _digests.get(model)
    if known is not None and known[0] == mark:
        return known[1]
    for name, kind in _opaque(model):
        return Uncacheable(
            UncacheableReason.WEIGHTS_UNNAMED,
            f"{name} is a {kind}, whose content is not in plain tensors that could be digested: "
            "give weights=Weights(version=…)",
        )
    state = hashlib.blake2b(digest_size=32)
    names: dict[int, str] = {}
    for name, tensor in sorted(_named_tensors(model), key=lambda item: item[0]):
        if tensor.is_meta or tensor.layout is not torch.strided:
            return Uncacheable(
                UncacheableReason.WEIGHTS_UNNAMED,
                f"the bytes of {name} are not in memory, so the weights have no digest: "
                "give weights=Weights(version=…)",
            )
        first = names.setdefault(id(tensor), name)
        if first == name:
            _absorb(state.update, name, tensor)
        else:  # which tensors are one says as much as their bytes
            _absorb_head(state.update, f"{name}\0same as\0{first}", 0)
    digest = state.digest()
    _digests[model] = (mark, digest)
    return digest


def forget_digest(model: Any) -> None:
    """Take the digest anew at its next use, though the content mark stays."""
    _digests.pop(model, None)


_digests: weakref.WeakKeyDictionary[Any, tuple[ContentMark, bytes]] = weakref.WeakKeyDictionary()


def _named_tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter and buffer under each of its names."""
    return chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))


def tensors_of(modules: Sequence[Any]) -> list[torch.Tensor]:
    """Parameters and buffers of a model's modules; one walk over those is all that a call can afford."""
    groups = (group for module in modules for group in (module._parameters, module._buffers))
    return [tensor for group in groups for tensor in group.values() if tensor is not None]


def opaque_module(kind: type) -> bool:
    """Whether modules of a class keep more than plain tensors, as quantised layers do."""
    plain = torch.nn.Module
    own = (plain._save_to_state_dict, plain.get_extra_state)
    return (kind._save_to_state_dict, kind.get_extra_state) != own  # type: ignore[attr-defined]


def opaque_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is more than the bytes that it shows."""
    return type(tensor) not in _PLAIN_TENSORS or tensor.is_quantized


def _opaque(model: Any) -> Iterator[tuple[str, str]]:
    """Name and kind of whatever no digest of plain tensors tells."""
    yield from ((n, type(m).__name__) for n, m in model.named_modules() if opaque_module(type(m)))
    yield from ((n, type(t).__name__) for n, t in _named_tensors(model) if opaque_tensor(t))


def merged_adapters(modules: Sequence[Any]) -> tuple[str, ...]:
    """Adapters whose weights are added to those of the layers below them now."""
    layers = adapter_layers(modules)
    return tuple(sorted({name for layer in layers for name in getattr(layer, "merged_adapters", ())}))


def adapter_layers(modules: Sequence[Any]) -> list[Any]:
    """Layers that apply adapters, as PEFT makes them."""
    marker = "_disable_adapters"
    return [m for m in modules if hasattr(type(m), marker) or marker in vars(m)]


def _hold(tensor: torch.Tensor) -> Any:
    try:
        return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    except RuntimeError:  # sparse, or a kind of tensor without a storage of its own
        return weakref.ref(tensor)


def _place(tensor: torch.Tensor) -> tuple[int, int, int]:
    version = -1 if tensor.is_inference() else tensor._version
    try:
        return tensor.untyped_storage()._cdata, tensor.data_ptr(), version
    except RuntimeError:
        return id(tensor), 0, version


def _absorb(update: Callable[[Any], None], name: str, tensor: torch.Tensor) -> None:
    _absorb_head(
        update, f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}", tensor.numel() * tensor.element_size()
    )
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    for piece in torch.split(flat, _CHUNK_BYTES) if flat.numel() else ():
        update(piece.cpu().numpy())


def _absorb_head(update: Callable[[Any], None], text: str, size: int) -> None:
    head = text.encode()
    update(struct.pack("<IQ", len(head), size))
    update(head)
