"""LoRA adapters by content, and what becomes of an id whose files change under a running engine."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from inference_worker.connectors.vllm.adapters import AdapterDigests
from kv_types.limits import ADAPTERS_REMEMBERED_MAX
from kv_types.namespace import Adapter, Uncacheable, UncacheableReason
from tests.connectors.vllm.engine_objects import lora
from tests.connectors.vllm.files import safetensors

LATER_NS = 4_000_000_000_000_000_000
CONFIG = {
    "r": 8,
    "lora_alpha": 16,
    "target_modules": ["q_proj"],
    "base_model_name_or_path": "x",
    "peft_type": "LORA",
}


def _write(folder: Path, weights: bytes = b"abcd", **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    (folder / "adapter_model.safetensors").write_bytes(safetensors({"w": ("U8", [len(weights)], weights)}))
    return folder


def _adapters() -> AdapterDigests:
    return AdapterDigests(now_ns=lambda: LATER_NS)


def _named(adapters: AdapterDigests, request: Any) -> Adapter:
    adapter = adapters.adapter_of(request)
    assert isinstance(adapter, Adapter), adapter
    return adapter


def _problem(adapters: AdapterDigests, request: Any) -> str:
    adapter = adapters.adapter_of(request)
    assert isinstance(adapter, Uncacheable), adapter
    assert adapter.reason is UncacheableReason.ADAPTER_WITHOUT_DIGEST
    return adapter.detail


def test_c05_the_same_name_with_other_content_is_another_adapter(tmp_path: Path) -> None:
    adapters = _adapters()
    first = _named(adapters, lora("a", 1, _write(tmp_path / "1")))
    same = _named(adapters, lora("a", 2, _write(tmp_path / "2")))
    other = _named(adapters, lora("a", 3, _write(tmp_path / "3", b"abce")))
    assert first == same
    assert first.name == other.name == "a"
    assert first.digest != other.digest


def test_c05_files_that_change_in_place_leave_their_id_without_a_name(tmp_path: Path) -> None:
    adapters = _adapters()
    folder = _write(tmp_path / "a")
    before = _named(adapters, lora("a", 1, folder))
    _write(folder, b"wxyz1")
    assert "changed" in _problem(adapters, lora("a", 1, folder))
    after = _named(adapters, lora("a", 2, folder))  # as the engine loads it anew
    assert after.digest != before.digest
    _write(folder)
    assert "changed" in _problem(adapters, lora("a", 1, folder))  # nobody knows what was loaded meanwhile


def test_c05_a_change_that_no_time_shows_is_seen(tmp_path: Path) -> None:
    folder = _write(tmp_path / "a")
    path = folder / "adapter_model.safetensors"
    stat = path.stat()
    adapters = AdapterDigests(now_ns=lambda: stat.st_ctime_ns + 1)
    _named(adapters, lora("a", 1, folder))
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert "changed" in _problem(adapters, lora("a", 1, folder))


def test_unchanged_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapters = _adapters()
    request = lora("a", 1, _write(tmp_path / "a"))
    before = _named(adapters, request)
    monkeypatch.setattr("inference_worker.connectors.vllm.adapters.adapter_digest", lambda _: b"never")
    assert _named(adapters, request) == before


def test_what_is_loaded_in_place_has_no_name_any_more(tmp_path: Path) -> None:
    adapters = _adapters()
    folder = _write(tmp_path / "a")
    assert "in place" in _problem(adapters, lora("a", 1, folder, load_inplace=True))
    assert "in place" in _problem(adapters, lora("a", 1, folder))
    _named(adapters, lora("a", 2, folder))


@pytest.mark.parametrize(
    "change", [{"r": 4}, {"lora_alpha": 32}, {"use_rslora": True}, {"rank_pattern": {"q": 4}}], ids=str
)
def test_settings_that_count(tmp_path: Path, change: dict[str, Any]) -> None:
    adapters = _adapters()
    before = _named(adapters, lora("a", 1, _write(tmp_path / "1")))
    assert _named(adapters, lora("a", 2, _write(tmp_path / "2", **change))).digest != before.digest


@pytest.mark.parametrize(
    "change",
    [{"base_model_name_or_path": "y"}, {"inference_mode": True}, {"lora_dropout": 0.1}, {"revision": "main"}],
    ids=str,
)
def test_settings_that_do_not(tmp_path: Path, change: dict[str, Any]) -> None:
    adapters = _adapters()
    before = _named(adapters, lora("a", 1, _write(tmp_path / "1")))
    assert _named(adapters, lora("a", 2, _write(tmp_path / "2", **change))).digest == before.digest


def test_how_the_engine_reads_the_weights_counts(tmp_path: Path) -> None:
    adapters, folder = _adapters(), _write(tmp_path / "1")
    flat = _named(adapters, lora("a", 1, folder))
    assert _named(adapters, lora("a", 2, folder, is_3d_lora_weight=True)).digest != flat.digest


def test_pickled_weights_count_whole(tmp_path: Path) -> None:
    adapters, folder = _adapters(), _write(tmp_path / "1")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    before = _named(adapters, lora("a", 1, folder))
    other = _write(tmp_path / "2", b"abcx")
    (other / "adapter_model.safetensors").rename(other / "adapter_model.bin")
    assert _named(adapters, lora("a", 2, other)).digest != before.digest


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_without_its_files_it_has_no_name(tmp_path: Path, missing: str) -> None:
    folder = _write(tmp_path / "1")
    (folder / missing).unlink()
    assert missing.split(".", maxsplit=1)[0] in _problem(_adapters(), lora("a", 1, folder))


@pytest.mark.parametrize("config", ["", "[]", "{", '{"r": 1, "r": 2}'])
def test_a_bad_configuration_has_no_name(tmp_path: Path, config: str) -> None:
    folder = _write(tmp_path / "1")
    (folder / "adapter_config.json").write_text(config)
    _problem(_adapters(), lora("a", 1, folder))


def test_an_adapter_that_is_nowhere_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for path in ("org/adapter", "/nowhere", "~/nowhere-at-all", "no repository"):
        _problem(_adapters(), lora("a", 1, path))
    _problem(_adapters(), lora("n" * 2000, 1, _write(tmp_path / "1")))


def test_a_repository_of_the_hub_is_its_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    base = tmp_path / "models--org--adapter"
    _write(base / "snapshots" / ("a" * 40))
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text("a" * 40)
    here = _named(_adapters(), lora("a", 1, base / "snapshots" / ("a" * 40)))
    assert _named(_adapters(), lora("a", 1, "org/adapter")) == here


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapters, folder = _adapters(), _write(tmp_path / "1")
    monkeypatch.setattr("inference_worker.connectors.vllm.adapters.adapter_digest", lambda _: b"d")
    for number in range(1, ADAPTERS_REMEMBERED_MAX + 10):
        adapters.adapter_of(lora("a", number, folder))
    assert len(adapters._known) == ADAPTERS_REMEMBERED_MAX
    assert 1 not in adapters._known


def test_threads_name_one_adapter_alike(tmp_path: Path) -> None:
    adapters, folder = _adapters(), _write(tmp_path / "1", os.urandom(100_000))
    found: list[Adapter] = []
    threads = [
        threading.Thread(target=lambda: found.append(_named(adapters, lora("a", 1, folder))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
