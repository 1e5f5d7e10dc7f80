"""The content digest of weight files: what changes it, what doesn't, and files that nobody should trust."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_worker.connectors.vllm.file_digests import DigestMemory, FileState, are_settled
from inference_worker.connectors.vllm.safetensors_files import (
    TensorPlace,
    WeightsFilesError,
    parse_json,
    read_header,
)
from inference_worker.connectors.vllm.settings import WeightsDigest
from inference_worker.connectors.vllm.weights_files import (
    is_read_whole,
    samples,
    tensors_digest,
    weight_files,
    weights_digest,
)
from kv_types.limits import DIGESTS_REMEMBERED_MAX, WEIGHTS_HEADER_BYTES_MAX
from tests.connectors.vllm.files import Tensor, safetensors, some_tensors, with_header, write_model

BOTH = pytest.mark.parametrize("how", list(WeightsDigest))
WHOLE_BYTES = 64 * 1024
LATER_NS = 4_000_000_000_000_000_000


def _digest(folder: Path, how: WeightsDigest = WeightsDigest.SAMPLED) -> bytes:
    return tensors_digest(weight_files(folder), how=how)


@BOTH
def test_spread_order_names_and_metadata_do_not_matter(tmp_path: Path, how: WeightsDigest) -> None:
    tensors = some_tensors()
    one = write_model(tmp_path / "one", tensors)
    backwards = write_model(tmp_path / "backwards", dict(reversed(tensors.items())))
    told = tmp_path / "told"
    told.mkdir()
    (told / "other-name.safetensors").write_bytes(safetensors(tensors, {"format": "pt"}))
    shards = tmp_path / "shards"
    shards.mkdir()
    for number, (name, tensor) in enumerate(tensors.items()):
        (shards / f"{number}.safetensors").write_bytes(safetensors({name: tensor}))
    assert {_digest(folder, how) for folder in (one, backwards, told, shards)} == {_digest(one, how)}


def test_both_ways_of_reading_are_told_apart(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    assert _digest(folder, WeightsDigest.SAMPLED) != _digest(folder, WeightsDigest.WHOLE)


def _edited(change: str) -> dict[str, Tensor]:
    tensors = some_tensors()
    name = "model.layers.0.mlp.weight"
    dtype, shape, data = tensors[name]
    match change:
        case "name":
            tensors["model.layers.1.mlp.weight"] = tensors.pop(name)
        case "dtype":
            tensors[name] = ("F16", shape, data)
        case "shape":
            tensors[name] = (dtype, [shape[0] * 2, shape[1] // 2], data)
        case "first byte":
            tensors[name] = (dtype, shape, b"\xff" + data[1:])
        case "last byte":
            tensors[name] = (dtype, shape, data[:-1] + b"\xff")
        case "a byte of a small one":
            small = tensors["model.norm.weight"]
            tensors["model.norm.weight"] = (small[0], small[1], small[2][:30] + b"\xff" + small[2][31:])
        case "one number in a hundred":
            edited = bytearray(data)
            for at in range(0, len(edited), 200):
                edited[at] ^= 1
            tensors[name] = (dtype, shape, bytes(edited))
        case "one more":
            tensors["lm_head.weight"] = ("U8", [1], b"x")
        case "one less":
            del tensors[name]
    return tensors


CHANGES = [
    "name",
    "dtype",
    "shape",
    "first byte",
    "last byte",
    "a byte of a small one",
    "one number in a hundred",
    "one more",
    "one less",
]


@BOTH
@pytest.mark.parametrize("change", CHANGES)
def test_content_matters(tmp_path: Path, change: str, how: WeightsDigest) -> None:
    before = _digest(write_model(tmp_path / "a"), how)
    assert _digest(write_model(tmp_path / "b", _edited(change)), how) != before


def test_swapped_content_of_two_tensors_shows(tmp_path: Path) -> None:
    first, second = ("U8", [4], b"abcd"), ("U8", [4], b"wxyz")
    one = write_model(tmp_path / "a", {"x": first, "y": second})
    other = write_model(tmp_path / "b", {"x": second, "y": first})
    assert _digest(one) != _digest(other)


def test_a_row_of_an_embedding_shows_in_a_sample(tmp_path: Path) -> None:
    rows = bytearray(400 * 1024)
    before = _digest(
        write_model(tmp_path / "a", {"model.embed_tokens.weight": ("U8", [400, 1024], bytes(rows))})
    )
    rows[211 * 1024 + 5] = 1
    after = _digest(
        write_model(tmp_path / "b", {"model.embed_tokens.weight": ("U8", [400, 1024], bytes(rows))})
    )
    assert before != after


@given(st.integers(WHOLE_BYTES + 1, 1 << 36))
def test_samples_lie_inside_and_hold_both_ends(size: int) -> None:
    runs = samples(size)
    assert runs[0][0] == 0
    assert sum(runs[-1]) == size
    assert all(begin >= 0 and begin + length <= size for begin, length in runs)
    assert sum(length for _, length in runs) <= 8 * 1024 + 1024 * 256


def test_small_tensors_are_read_whole() -> None:
    small = TensorPlace("w", "U8", (WHOLE_BYTES,), 0, WHOLE_BYTES)
    large = TensorPlace("w", "U8", (WHOLE_BYTES + 1,), 0, WHOLE_BYTES + 1)
    assert is_read_whole(small)
    assert not is_read_whole(large)


def test_an_index_says_which_files_count(tmp_path: Path) -> None:
    tensors = some_tensors()
    folder = write_model(tmp_path / "m", tensors)
    alone = _digest(folder)
    (folder / "stray.safetensors").write_bytes(safetensors({"stray": ("U8", [1], b"x")}))
    assert _digest(folder) != alone
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert _digest(folder) == alone


@pytest.mark.parametrize(
    "index",
    [
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": "../model.safetensors"}}',
        '{"weight_map": {"a": "/etc/passwd"}}',
        '{"weight_map": {"a": ".."}}',
        '{"weight_map": {"a": ""}}',
        '{"weight_map": {"a": "missing.safetensors"}}',
        "no json",
    ],
)
def test_a_bad_index_is_an_error(tmp_path: Path, index: str) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(WeightsFilesError):
        weights_digest(folder, memory=DigestMemory(tmp_path / "cache.json"))


def test_files_of_other_kinds_count_whole(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "pytorch_model.bin").write_bytes(b"a" * 200_000)
    before = _digest(folder)
    (folder / "pytorch_model.bin").rename(folder / "model-1.bin")
    assert _digest(folder) == before
    (folder / "model-1.bin").write_bytes(b"a" * 100_000 + b"b" + b"a" * 99_999)
    assert _digest(folder) != before
    single = tmp_path / "m.gguf"
    single.write_bytes(b"GGUF")
    assert weight_files(single) == [single]


def test_the_files_that_the_engine_loads_count(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(1))
    (folder / "model.gguf").write_bytes(b"GGUF")
    for load_format in ("auto", "hf", "safetensors"):
        assert weight_files(folder, load_format=load_format) == [folder / "model.safetensors"]
    assert weight_files(folder, load_format="pt") == [folder / "pytorch_model.bin"]
    assert weight_files(folder, load_format="gguf") == [folder / "model.gguf"]
    with pytest.raises(WeightsFilesError, match="load_format mistral"):
        weight_files(folder, load_format="mistral")
    own = folder / "consolidated.safetensors"
    own.write_bytes(safetensors({"other": ("U8", [1], b"x")}))
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors"}}')
    for load_format in ("auto", "mistral"):
        assert weight_files(folder, load_format=load_format) == [own]
    assert weight_files(folder, load_format="safetensors") == [folder / "model.safetensors"]


def test_no_weights_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(WeightsFilesError, match="no files of weights"):
        weights_digest(tmp_path, memory=DigestMemory(tmp_path / "cache.json"))
    with pytest.raises(WeightsFilesError):
        weights_digest(tmp_path / "nowhere", memory=DigestMemory(tmp_path / "cache.json"))


def _header(tmp_path: Path, data: bytes) -> list[TensorPlace]:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read_header(descriptor, "x")
    finally:
        os.close(descriptor)


ENTRY = '{"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}'


@pytest.mark.parametrize(
    "header",
    [
        "",
        "[]",
        "null",
        '"text"',
        "{",
        "\xff",
        '{"a": 1}',
        '{"a": null}',
        '{"a": {}}',
        '{"a": {"dtype": 1, "shape": [2], "data_offsets": [0, 2]}}',
        '{"a": {"dtype": "U8", "shape": 2, "data_offsets": [0, 2]}}',
        '{"a": {"dtype": "U8", "shape": [-2], "data_offsets": [0, 2]}}',
        '{"a": {"dtype": "U8", "shape": [2.0], "data_offsets": [0, 2]}}',
        '{"a": {"dtype": "U8", "shape": [true, 2], "data_offsets": [0, 2]}}',
        '{"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 2]}}',
        '{"a": {"dtype": "F64", "shape": [2], "data_offsets": [0, 2]}}',
        '{"a": {"dtype": "U8", "shape": [2], "data_offsets": [0]}}',
        '{"a": {"dtype": "U8", "shape": [2], "data_offsets": [2, 0]}}',
        '{"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 1e3]}}',
        '{"a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}',
        '{"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}',
        '{"a": {"dtype": "U8", "shape": [9223372036854775808], "data_offsets": [0, 2]}}',
        f'{{"a": {ENTRY}, "a": {ENTRY}}}',
        f'{{"a": {ENTRY}, "b": {ENTRY}}}',
        "{" * 200_000,
        '{"a":' * 100_000,
        "[" * 100_000,
        '{"a": {"dtype": "U8", "shape": [' + "1," * 100 + '2], "data_offsets": [0, 2]}}',
        '{"a": {"dtype": "U8", "shape": [' + "9" * 5000 + '], "data_offsets": [0, 2]}}',
    ],
)
def test_a_bad_header_is_an_error(tmp_path: Path, header: str) -> None:
    with pytest.raises(WeightsFilesError):
        _header(tmp_path, with_header(header.encode("latin-1"), b"ab"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        struct.pack("<Q", 100),
        struct.pack("<Q", WEIGHTS_HEADER_BYTES_MAX + 1) + b"{}",
        struct.pack("<Q", 2**64 - 1) + b"{}",
        with_header(b"{}", b"trailing"),
    ],
)
def test_a_bad_frame_is_an_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(WeightsFilesError):
        _header(tmp_path, data)


def test_an_unknown_dtype_is_taken_by_its_name(tmp_path: Path) -> None:
    data = with_header(b'{"a": {"dtype": "Q3", "shape": [5], "data_offsets": [0, 2]}}', b"ab")
    assert [(place.dtype, place.size_bytes) for place in _header(tmp_path, data)] == [("Q3", 2)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(data=st.data())
def test_no_bytes_do_more_than_raise(tmp_path: Path, data: st.DataObject) -> None:
    good = bytearray(safetensors({"a": ("U8", [2], b"ab"), "b": ("F16", [2, 1], b"cdef")}))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(good) - 1))
        good[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
        if not good:
            good += b"\0"
    path = tmp_path / "x.safetensors"
    path.write_bytes(bytes(good))
    with contextlib.suppress(WeightsFilesError):
        assert len(tensors_digest([path], how=WeightsDigest.WHOLE)) == 32


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
ENTRIES = st.dictionaries(
    st.text(max_size=8),
    st.fixed_dictionaries({"dtype": JSON, "shape": JSON, "data_offsets": JSON}) | JSON,
    max_size=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(header=ENTRIES, body=st.binary(max_size=16))
def test_no_header_does_more_than_raise(tmp_path: Path, header: dict[str, object], body: bytes) -> None:
    try:
        places = _header(tmp_path, with_header(json.dumps(header).encode(), body))
    except WeightsFilesError:
        return
    assert sum(place.size_bytes for place in places) == len(body)


def test_json_is_read_strictly() -> None:
    assert parse_json(b'{"a": 1}', "x") == {"a": 1}
    with pytest.raises(WeightsFilesError, match="a name stands twice"):
        parse_json(b'{"a": 1, "a": 1}', "x")


class Counted:
    """A memory that counts how often content was read."""

    def __init__(self, cache_file: Path, now_ns: int = LATER_NS) -> None:
        self.memory = DigestMemory(cache_file, now_ns=lambda: now_ns)
        self.reads = 0

    def digest(self, folder: Path, kind: str = "k") -> bytes:
        def compute() -> bytes:
            self.reads += 1
            return _digest(folder)

        return self.memory.digest(weight_files(folder), kind, compute)


def test_unchanged_files_are_not_read_again(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    cache = tmp_path / "sub" / "cache.json"
    first, second = Counted(cache), Counted(cache)
    assert first.digest(folder) == second.digest(folder) == _digest(folder)
    assert (first.reads, second.reads) == (1, 0)
    assert second.digest(folder, "another way") == first.digest(folder)
    assert second.reads == 1


def test_changed_files_are_read_again(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    counted = Counted(tmp_path / "cache.json")
    before = counted.digest(folder)
    path = folder / "model.safetensors"
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xfe")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as archives and rsync do
    if path.stat().st_ctime_ns == stat.st_ctime_ns:
        pytest.skip("the file system's clock did not move")
    assert counted.digest(folder) != before


def test_files_that_were_just_written_are_not_remembered(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    state = FileState.of(folder / "model.safetensors")
    just_now = Counted(tmp_path / "cache.json", now_ns=state.ctime_ns + 1_000_000_000)
    just_now.digest(folder)
    just_now.digest(folder)
    assert just_now.reads == 2
    assert not are_settled((state,), state.ctime_ns + 2_000_000_000)
    assert are_settled((state,), state.ctime_ns + 2_000_000_001)


def test_files_that_were_written_just_before_they_were_read_are_not_remembered(tmp_path: Path) -> None:
    """Reading takes long: a write in the tick of the first look changes no time."""
    folder = write_model(tmp_path / "m")
    state = FileState.of(folder / "model.safetensors")
    now_ns = [state.ctime_ns + 1_000_000]
    memory = DigestMemory(tmp_path / "cache.json", now_ns=lambda: now_ns[0])

    def compute() -> bytes:
        now_ns[0] += 10_000_000_000
        return b"d" * 32

    memory.digest(weight_files(folder), "k", compute)
    assert not (tmp_path / "cache.json").exists()


def test_a_change_while_reading_is_an_error(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    files = weight_files(folder)

    def compute() -> bytes:
        with files[0].open("ab") as file:
            file.write(b"x")
        return b"d" * 32

    memory = DigestMemory(tmp_path / "cache.json", now_ns=lambda: LATER_NS)
    with pytest.raises(WeightsFilesError, match="changed while"):
        memory.digest(files, "k", compute)


@pytest.mark.parametrize(
    "damage", ["cut", "garbage", "other digest", "not hex", "long", "folder", "unwritable"]
)
def test_a_damaged_memory_is_an_empty_one(tmp_path: Path, damage: str) -> None:
    folder = write_model(tmp_path / "m")
    cache = tmp_path / "cache.json"
    Counted(cache).digest(folder)
    text = cache.read_text()
    told = json.loads(text)
    match damage:
        case "cut":
            cache.write_text(text[:-20])
        case "garbage":
            cache.write_bytes(os.urandom(200))
        case "other digest":
            told["digests"] = dict.fromkeys(told["digests"], "00" * 32)
            cache.write_text(json.dumps(told))
        case "not hex":
            told["digests"] = dict.fromkeys(told["digests"], 7)
            cache.write_text(json.dumps(told))
        case "long":
            cache.write_text(text + " " * 2_000_000)
        case "folder":
            cache.unlink()
            cache.mkdir()
        case "unwritable":
            cache.unlink()
            cache = tmp_path / "m" / "model.safetensors" / "cache.json"
    counted = Counted(cache)
    assert counted.digest(folder) == _digest(folder)
    assert counted.reads == 1
    assert [path.name for path in tmp_path.glob(".digests-*")] == []


def test_the_memory_is_bounded(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", {"a": ("U8", [1], b"x")})
    counted = Counted(tmp_path / "cache.json")
    for number in range(DIGESTS_REMEMBERED_MAX + 5):
        counted.digest(folder, f"kind {number}")
    assert len(json.loads((tmp_path / "cache.json").read_text())["digests"]) == DIGESTS_REMEMBERED_MAX
    counted.digest(folder, f"kind {DIGESTS_REMEMBERED_MAX + 4}")
    assert counted.reads == DIGESTS_REMEMBERED_MAX + 5


def test_the_users_cache_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = write_model(tmp_path / "m")
    memory = DigestMemory(now_ns=lambda: LATER_NS)
    assert weights_digest(folder, memory=memory) == weights_digest(folder, memory=memory) == _digest(folder)
    assert (tmp_path / "stratakv" / "file-digests.json").is_file()
