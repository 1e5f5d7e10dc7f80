"""Images and the like in prompts: a full digest of each item's processed content, and what pages carry of it."""

from __future__ import annotations

import struct
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from kv_types.computation import DIGEST_BYTES
from kv_types.limits import (
    EXTRA_DIGESTS_PER_PAGE_MAX,
    MULTIMODAL_ITEMS_MAX,
    MULTIMODAL_ITEMS_REMEMBERED_MAX,
)
from kv_types.namespace import Uncacheable, UncacheableReason
from kv_types.page_keys import Extras

_SCHEMA = b"stratakv-item-1"
_PLACE = struct.Struct("<qQ")
_LENGTH = struct.Struct("<Q")
_DEPTH_MOST = 8


class UnnamedItemError(ValueError):
    """An item whose content can't be told; never leaves this connector."""


class ItemDigests:
    """Digests of multimodal items, and which content each identifier of the engine stands for. Thread-safe.

    The engine keeps an item's encoded form by an identifier. That is a hash of the content, or whatever a client gave as
    the item's uuid, and neither its look nor anything else tells which. So the identifier names nothing here: the tensors
    do that the model gets. And an identifier that comes with a second content is refused from then on, since the engine
    may compute with what it has encoded for the first. For that, every request has to be shown, before the engine runs it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self._read: dict[int, tuple[weakref.ref[Any], bytes]] = {}

    def digests_of(self, features: Sequence[Any]) -> list[bytes] | Uncacheable:
        """Digest of each item of a request, in its order."""
        problem = ""
        digests: list[bytes] = []
        with self._lock:
            for feature in features:  # each is taken note of, also when another one has no name
                try:
                    digests.append(self._digest_of(feature))
                except UnnamedItemError as error:
                    problem = f"item {feature.modality!r:.40}: {error}"
        if len(features) > MULTIMODAL_ITEMS_MAX:
            problem = f"the prompt has {len(features)} items; at most {MULTIMODAL_ITEMS_MAX} are named"
        return _unnamed(problem) if problem else digests

    def _digest_of(self, feature: Any) -> bytes:
        identifier = str(feature.identifier)
        try:
            content = self._content_of(feature)
        except UnnamedItemError:
            self._note(identifier, b"")
            raise
        known = self._note(identifier, content)
        if known != content:
            raise UnnamedItemError("its identifier stood for another content before")
        told = getattr(feature, "mm_hash", None)
        if told is not None and told != identifier:
            raise UnnamedItemError("an adapter takes part in encoding it")
        mask = getattr(feature.mm_position, "is_embed", None)
        state = blake2b(_SCHEMA, digest_size=DIGEST_BYTES)
        for part in (str(feature.modality).encode(), content, _digest(mask)):
            state.update(_LENGTH.pack(len(part)) + part)
        return state.digest()

    def _note(self, identifier: str, content: bytes) -> bytes:
        """Remember what an identifier stands for; returns its content, empty when it stands for more than one."""
        known = self._contents.setdefault(identifier, content)
        if known != content:
            known = self._contents[identifier] = b""
        self._contents.move_to_end(identifier)
        while len(self._contents) > MULTIMODAL_ITEMS_REMEMBERED_MAX:
            self._contents.popitem(last=False)
        return known

    def _content_of(self, feature: Any) -> bytes:
        if feature.data is None:
            raise UnnamedItemError("its content isn't at hand")
        number = id(feature.data)
        known = self._read.get(number)
        if known is not None and known[0]() is feature.data:
            return known[1]
        digest = _digest(feature.data)
        # By place and not by hash: the engine's items are mappings, which have none. They live in its cache for long.
        self._read[number] = (weakref.ref(feature.data, lambda _: self._read.pop(number, None)), digest)
        return digest


def extras_of(features: Sequence[Any], digests: Sequence[bytes], page_tokens: int) -> Extras | Uncacheable:
    """What each page that overlaps an item carries: its digest, where it begins relative to the page, and its length."""
    extras: dict[int, list[bytes]] = {}
    for feature, digest in zip(features, digests, strict=True):
        offset, length = int(feature.mm_position.offset), int(feature.mm_position.length)
        if length < 1 or offset < 0:
            continue
        for page in range(offset // page_tokens, (offset + length - 1) // page_tokens + 1):
            extras.setdefault(page, []).append(digest + _PLACE.pack(offset - page * page_tokens, length))
    most = max(map(len, extras.values()), default=0)
    if most > EXTRA_DIGESTS_PER_PAGE_MAX:
        return _unnamed(
            f"a page overlaps {most} items; at most {EXTRA_DIGESTS_PER_PAGE_MAX} have a place in its key"
        )
    return extras


def _digest(value: Any) -> bytes:
    state = blake2b(digest_size=DIGEST_BYTES)
    _absorb(state.update, value, _DEPTH_MOST)
    return state.digest()


def _absorb(update: Any, value: Any, depth: int) -> None:
    """Take in a value so that no two different ones give the same bytes."""
    if depth == 0:
        raise UnnamedItemError("its content is nested too deeply")
    if value is None or isinstance(value, bool | int | float | str | bytes):
        data = value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")
        update(_head(type(value).__name__, len(data)) + data)
    elif isinstance(value, Mapping):
        update(_head("mapping", len(value)))
        for name in sorted(value, key=str):
            _absorb(update, str(name), depth - 1)
            _absorb(update, value[name], depth - 1)
    elif isinstance(value, list | tuple):
        update(_head("sequence", len(value)))
        for item in value:
            _absorb(update, item, depth - 1)
    elif hasattr(value, "data_ptr"):
        _absorb_tensor(update, value)
    elif hasattr(value, "field") and hasattr(value, "data"):
        update(_head(type(value.field).__name__, 0))
        _absorb(update, value.data, depth - 1)
    else:
        raise UnnamedItemError(f"its content has a {type(value).__name__}, whose bytes can't be told")


def _absorb_tensor(update: Any, tensor: Any) -> None:
    if tensor.device.type != "cpu":
        raise UnnamedItemError(f"its content lies on a {tensor.device.type}")
    flat = tensor.detach().contiguous().reshape(-1)
    data = memoryview(flat.view(_bytes_dtype()).numpy())
    update(_head(f"{tensor.dtype}{tuple(tensor.shape)}", data.nbytes))
    update(data)


def _bytes_dtype() -> Any:
    import torch  # noqa: PLC0415 - whoever hands over a tensor has imported it; nobody else needs it

    return torch.uint8


def _head(kind: str, size: int) -> bytes:
    name = kind.encode()
    return _LENGTH.pack(len(name)) + name + _LENGTH.pack(size)


def _unnamed(detail: str) -> Uncacheable:
    return Uncacheable(UncacheableReason.INPUT_UNNAMED, detail)
