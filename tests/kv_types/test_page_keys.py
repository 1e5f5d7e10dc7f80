"""Page keys: a function of bytes alone, the same in batch and token by token, from any kind of integer array."""

from __future__ import annotations

import struct
import subprocess
import sys
from array import array
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kv_types.errors import InvalidArgumentError, InvalidIdentifierError, LimitExceededError
from kv_types.ids import NamespaceId, PageKey
from kv_types.limits import CHAIN_PAGES_MAX, EXTRA_DIGESTS_PER_PAGE_MAX, LOOK_UP_ROWS_MAX
from kv_types.page_keys import KeyChain, pack_keys, page_keys, page_keys_batch, unpack_keys

SPACE = NamespaceId(bytes(range(32)))
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=60)


def reference(tokens: list[int], page_tokens: int) -> bytes:
    """The definition, in three lines."""
    packed, parent = b"", bytes(SPACE)
    for start in range(0, len(tokens) - page_tokens + 1, page_tokens):
        data = struct.pack(f"<{page_tokens}I", *tokens[start : start + page_tokens])
        parent = blake2b(parent + data, digest_size=32).digest()
        packed += parent
    return packed


@given(TOKENS, st.integers(1, 9))
def test_keys_follow_the_definition(tokens: list[int], page_tokens: int) -> None:
    assert page_keys(SPACE, tokens, page_tokens=page_tokens) == reference(tokens, page_tokens)


@given(TOKENS, st.integers(1, 9), st.lists(st.integers(0, 60), max_size=6))
def test_a_chain_extended_in_any_steps_equals_the_batch(
    tokens: list[int], page_tokens: int, cuts: list[int]
) -> None:
    chain = KeyChain(SPACE, page_tokens)
    bounds = [0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]
    full = sum(
        chain.extend(tokens[begin:end]) for begin, end in pairwise(bounds)
    )  # pages that each step completed
    assert chain.packed == page_keys(SPACE, tokens, page_tokens=page_tokens)
    assert chain.keys == unpack_keys(chain.packed)
    assert (chain.pages, chain.tokens) == (full, len(tokens))
    assert full == len(tokens) // page_tokens


def test_decode_token_by_token_extends_the_prefill() -> None:
    tokens = [(7 * n) % 1000 for n in range(100)]
    chain = KeyChain(SPACE, 16)
    assert chain.extend(np.array(tokens[:50])) == 3
    completed = [chain.extend([token]) for token in tokens[50:]]
    assert sum(completed) == 3
    assert completed.index(1) == 13
    assert chain.packed == page_keys(SPACE, tokens, page_tokens=16)


def test_a_copy_continues_on_its_own() -> None:
    chain = KeyChain(SPACE, 2)
    chain.extend([1, 2, 3], extras={1: [b"image"], 2: [b"later"]})
    twin = chain.copy()
    chain.extend([4, 5, 6])
    twin.extend([9, 5, 6])
    assert chain.packed == page_keys(
        SPACE, [1, 2, 3, 4, 5, 6], page_tokens=2, extras={1: [b"image"], 2: [b"later"]}
    )
    assert twin.packed == page_keys(
        SPACE, [1, 2, 3, 9, 5, 6], page_tokens=2, extras={1: [b"image"], 2: [b"later"]}
    )
    assert chain.keys[0] == twin.keys[0]
    assert chain.keys[1] != twin.keys[1]


class _OnlyArray:
    """What has `__array__` and no buffer, as torch tensors do."""

    def __init__(self, values: list[int]) -> None:
        self._values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self._values, dtype=dtype)


IDS = [5, 0, 65_535, 1_234_567, 2**31 - 1, 17, 3, 99]
SMALL_IDS = [5, 0, 120, 7, 1, 17, 3, 99]
KINDS: list[Any] = [
    list, tuple, _OnlyArray,
    lambda ids: array("I", ids), lambda ids: array("q", ids), lambda ids: array("Q", ids), lambda ids: array("i", ids),
    lambda ids: np.array(ids, dtype=np.int64), lambda ids: np.array(ids, dtype=np.uint64),
    lambda ids: np.array(ids, dtype=np.int32), lambda ids: np.array(ids, dtype=np.uint32),
    lambda ids: np.repeat(np.array(ids, dtype=np.int64), 3)[::3],
    lambda ids: np.repeat(np.array(ids, dtype=np.uint32), 3)[::3],
    lambda ids: memoryview(array("q", ids)),
    lambda ids: [np.int64(one) for one in ids],
    lambda ids: (one for one in ids),
    torch.tensor, lambda ids: torch.tensor(ids, dtype=torch.int32),
]  # fmt: skip
SMALL_KINDS: list[Any] = [
    lambda ids: np.array(ids, dtype=np.int8), lambda ids: np.array(ids, dtype=np.uint8),
    lambda ids: np.array(ids, dtype=np.int16), lambda ids: np.array(ids, dtype=np.uint16),
    lambda ids: array("h", ids), lambda ids: torch.tensor(ids, dtype=torch.uint8),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_any_integer_array_gives_the_same_keys(kind: Any) -> None:
    assert page_keys(SPACE, kind(IDS), page_tokens=4) == reference(IDS, 4)


@pytest.mark.parametrize(
    "empty", [[], (), array("I"), np.array([], dtype=np.int64), torch.tensor([], dtype=torch.int64)]
)
def test_no_tokens_have_no_keys(empty: Any) -> None:
    assert page_keys(SPACE, empty, page_tokens=4) == b""
    assert KeyChain(SPACE, 4).extend(empty) == 0


@pytest.mark.parametrize("kind", SMALL_KINDS)
def test_narrow_integer_arrays_give_the_same_keys(kind: Any) -> None:
    assert page_keys(SPACE, kind(SMALL_IDS), page_tokens=4) == reference(SMALL_IDS, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        [1, 2, -1, 4],
        [1, 2, 2**32, 4],
        [1, 2, 2**70, 4],
        [1, 2, 3.0, 4],
        [1, 2, True, 4],
        [1, 2, "3", 4],
        [1, 2, None, 4],
        [[1, 2], [3, 4]],
        b"\x01\x02\x03\x04",
        bytearray(8),
        "1234",
        None,
        7,
        {1.5: 2},
        np.array([1, 2, -1, 4]),
        np.array([1, 2, -1, 4], dtype=np.int32),
        np.array([1, 2, -1, 4], dtype=np.int8),
        np.array([1, 2, 2**32, 4]),
        np.array([1, 2, 2**63, 4], dtype=np.uint64),
        np.array([1.0, 2.0]),
        np.array([True, False]),
        np.array([[1, 2], [3, 4]]),
        np.array([1, 2, 3, 4], dtype=">u4"),
        np.array(["a"]),
        np.array([object()]),
        np.array(5),
        array("d", [1.0]),
        array("q", [1, 2, -1, 4]),
        _OnlyArray([1, 2, -1, 4]),
        torch.tensor([1.0, 2.0]),
        torch.tensor([1, -2]),
        torch.empty(4, device="meta"),
        torch.tensor([[1, 2]]),
    ],
    ids=lambda wrong: type(wrong).__name__,
)
def test_what_is_no_token_id_is_refused(wrong: Any) -> None:
    chain = KeyChain(SPACE, 2)
    chain.extend([1])
    with pytest.raises(InvalidArgumentError):
        page_keys(SPACE, wrong, page_tokens=2)
    with pytest.raises(InvalidArgumentError):
        chain.extend(wrong)
    assert (chain.pages, chain.tokens) == (0, 1), "a refused call changes nothing"
    chain.extend([2])
    assert chain.packed == reference([1, 2], 2)


def test_the_message_names_the_pad() -> None:
    with pytest.raises(InvalidArgumentError, match=r"token id -100 at index 2 .* remove pads"):
        page_keys(SPACE, np.array([1, 2, -100, 4]), page_tokens=2)


def test_keys_need_no_numpy() -> None:
    script = (
        "import sys; from array import array; from kv_types.page_keys import page_keys;"
        "print(page_keys(bytes(range(32)), array('q', [5, 0, 65535, 1234567]), page_tokens=4).hex());"
        "assert 'numpy' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, check=True, timeout=60, cwd=Path(__file__).parent.parent.parent,
    )  # fmt: skip
    assert done.stdout.strip() == reference(IDS[:4], 4).hex()


# --- extras ---


def test_extras_shape_their_page_and_all_after_it() -> None:
    tokens = list(range(12))
    plain = unpack_keys(page_keys(SPACE, tokens, page_tokens=4))
    image = unpack_keys(page_keys(SPACE, tokens, page_tokens=4, extras={1: [b"image"]}))
    assert image[0] == plain[0]
    assert image[1] != plain[1]
    assert image[2] != plain[2]


def test_extras_do_not_run_into_each_other() -> None:
    digests = [[b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"c", b"ab"], [b"a", b"b", b"c"], [b"ab"]]
    keys = {page_keys(SPACE, [1, 2], page_tokens=2, extras={0: one}) for one in digests}
    assert len(keys) == len(digests)


def test_no_extras_are_as_none() -> None:
    assert page_keys(SPACE, [1, 2], page_tokens=2, extras={0: []}) == page_keys(SPACE, [1, 2], page_tokens=2)
    assert page_keys(SPACE, [1, 2], page_tokens=2, extras={5: [b"x"]}) == page_keys(
        SPACE, [1, 2], page_tokens=2
    )


def test_extras_may_come_in_parts_before_their_page_is_full() -> None:
    chain = KeyChain(SPACE, 2)
    chain.extend([1], extras={0: [b"a"], 1: [b"late"]})
    chain.extend([], extras={0: [b"b"]})
    chain.extend([2, 3, 4])
    assert chain.packed == page_keys(
        SPACE, [1, 2, 3, 4], page_tokens=2, extras={0: [b"a", b"b"], 1: [b"late"]}
    )
    with pytest.raises(InvalidArgumentError, match="too late"):
        chain.extend([5], extras={1: [b"c"]})
    assert chain.tokens == 4


@pytest.mark.parametrize(
    "extras",
    [
        {-1: [b"x"]},
        {True: [b"x"]},
        {"0": [b"x"]},
        {0: [b""]},
        {0: [b"x" * 65]},
        {0: ["x"]},
        {0: [b"x"] * (EXTRA_DIGESTS_PER_PAGE_MAX + 1)},
    ],
)
def test_extras_are_checked(extras: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        page_keys(SPACE, [1, 2], page_tokens=2, extras=extras)
    with pytest.raises(InvalidArgumentError):
        KeyChain(SPACE, 2).extend([1], extras=extras)


# --- sizes and packing ---


@pytest.mark.parametrize("page_tokens", [0, -1, 4097, True, 2.0, None])
def test_page_tokens_are_checked(page_tokens: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        page_keys(SPACE, [1], page_tokens=page_tokens)
    with pytest.raises(InvalidArgumentError):
        KeyChain(SPACE, page_tokens)


def test_the_namespace_is_checked() -> None:
    with pytest.raises(InvalidIdentifierError):
        page_keys(NamespaceId(b"short"), [1], page_tokens=1)
    with pytest.raises(InvalidIdentifierError):
        KeyChain(NamespaceId(b""), 1)


def test_a_chain_has_a_longest_length() -> None:
    tokens = np.zeros(CHAIN_PAGES_MAX + 1, dtype=np.uint32)
    with pytest.raises(LimitExceededError):
        page_keys(SPACE, tokens, page_tokens=1)
    chain = KeyChain(SPACE, 1)
    chain.extend(tokens[:CHAIN_PAGES_MAX])
    with pytest.raises(LimitExceededError):
        chain.extend([1])
    assert chain.pages == CHAIN_PAGES_MAX


def test_rows_of_a_batch_are_independent() -> None:
    rows = [[1, 2, 3, 4], [1, 2, 9, 9, 9], [], [1, 2]]
    extras = [None, {1: [b"x"]}, None, {}]
    packed = page_keys_batch(SPACE, rows, page_tokens=2, extras=extras)
    assert packed == [
        page_keys(SPACE, row, page_tokens=2, extras=extra) for row, extra in zip(rows, extras, strict=True)
    ]
    assert page_keys_batch(SPACE, rows, page_tokens=2)[0] == packed[0]
    with pytest.raises(InvalidArgumentError):
        page_keys_batch(SPACE, rows, page_tokens=2, extras=[None])
    with pytest.raises(LimitExceededError):
        page_keys_batch(SPACE, [[1]] * (LOOK_UP_ROWS_MAX + 1), page_tokens=1)


def test_packing_and_unpacking() -> None:
    keys = [PageKey(bytes([n]) * 32) for n in range(3)]
    packed = pack_keys(keys)
    assert pack_keys(packed) == pack_keys(bytearray(packed)) == pack_keys(memoryview(packed)) == packed  # type: ignore[arg-type]
    assert unpack_keys(packed) == keys
    assert unpack_keys(b"") == []


@pytest.mark.parametrize("wrong", [b"x", b"x" * 33, [b"x"], [b"x" * 32, b"y" * 31], [1, 2], ["x" * 32]])
def test_what_is_no_key_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidIdentifierError):
        pack_keys(wrong)


def test_too_many_keys_are_refused() -> None:
    with pytest.raises(LimitExceededError):
        pack_keys(bytes(32 * (CHAIN_PAGES_MAX + 1)))
    with pytest.raises(LimitExceededError):
        unpack_keys(bytes(32 * (CHAIN_PAGES_MAX + 1)))


# --- what the keys depend on ---


def test_c02_c33_c37_keys_of_other_namespaces_never_meet() -> None:
    tokens = list(range(64))
    spaces = [NamespaceId(bytes([n]) * 32) for n in range(5)]
    keys = [key for space in spaces for key in unpack_keys(page_keys(space, tokens, page_tokens=16))]
    assert len(set(keys)) == len(keys)


def test_the_order_of_pages_matters() -> None:
    assert page_keys(SPACE, [1, 2, 3, 4], page_tokens=2) != page_keys(SPACE, [3, 4, 1, 2], page_tokens=2)
