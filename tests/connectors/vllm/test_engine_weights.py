"""What names the weights of an engine: version, hub commit, or content; and where nothing does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_worker.connectors.vllm.file_digests import DigestMemory
from inference_worker.connectors.vllm.settings import ConnectorSettings
from kv_types.namespace import Namespace, UncacheableReason, Weights
from tests.connectors.vllm.engine_objects import vllm_config
from tests.connectors.vllm.files import write_model
from tests.connectors.vllm.identities import base_of, named, reason_of

HF_COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "VLLM_USE_MODELSCOPE"):
        monkeypatch.delenv(name, raising=False)
    return iter(())


def test_weights_are_named_by_their_content(tmp_path: Path) -> None:
    names = set()
    for folder in ("a", "b"):
        config = vllm_config(write_model(tmp_path / folder))
        base = base_of(config, settings=ConnectorSettings(model_name="m"))
        assert base.weights.digest is not None
        names.add(base.id)
    assert len(names) == 1
    base = base_of(vllm_config(tmp_path / "a"), settings=ConnectorSettings())
    assert base.model == "a:LlamaForCausalLM"
    write_model(tmp_path / "b", {"w": ("U8", [1], b"x")})
    assert base_of(vllm_config(tmp_path / "b"), settings=ConnectorSettings(model_name="m")).id not in names


@pytest.mark.parametrize("load_format", ["dummy", "tensorizer", "ipc_cache", "somebodys"])
def test_weights_from_elsewhere_have_no_name(tmp_path: Path, load_format: str) -> None:
    config = vllm_config(write_model(tmp_path / "m"))
    config.load_config.load_format = load_format
    assert reason_of(config, settings=ConnectorSettings()) is UncacheableReason.WEIGHTS_UNNAMED
    assert base_of(config).weights == Weights(version="v1")


def test_weights_that_cannot_be_read_have_no_name(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.safetensors").write_bytes(b"nothing")
    config = vllm_config(tmp_path / "m")
    assert reason_of(config, settings=ConnectorSettings()) is UncacheableReason.WEIGHTS_UNNAMED
    config.model_config.model_weights = "s3://bucket/model"
    assert reason_of(config, settings=ConnectorSettings()) is UncacheableReason.WEIGHTS_UNNAMED


def _hub(tmp_path: Path, commit: str = HF_COMMIT) -> Path:
    base = tmp_path / "hub" / "models--org--name"
    (base / "refs").mkdir(parents=True, exist_ok=True)
    (base / "refs" / "main").write_text(commit)
    blob = write_model(base / "blobs") / "model.safetensors"
    (base / "snapshots" / commit).mkdir(parents=True)
    (base / "snapshots" / commit / "model.safetensors").symlink_to(blob)
    return base


@pytest.mark.parametrize("by_id", [False, True])
def test_a_snapshot_that_was_edited_is_named_by_its_content(
    tmp_path: Path, by_id: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = _hub(tmp_path) / "snapshots" / HF_COMMIT
    config = vllm_config("org/name" if by_id else snapshot)
    assert base_of(config, settings=ConnectorSettings()).weights.version == f"hf:{HF_COMMIT}"
    (snapshot / "model.safetensors").unlink()
    write_model(snapshot, {"w": ("U8", [1], b"x")})
    one = base_of(config, settings=ConnectorSettings()).weights
    write_model(snapshot, {"w": ("U8", [1], b"y")})
    other = base_of(config, settings=ConnectorSettings()).weights
    assert None not in (one.digest, other.digest)
    assert one != other


def test_a_user_without_a_home_may_have_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    config = vllm_config(write_model(tmp_path / "m"))
    assert base_of(config, settings=ConnectorSettings()).weights.digest is not None
    assert (
        reason_of(vllm_config("org/name"), settings=ConnectorSettings()) is UncacheableReason.WEIGHTS_UNNAMED
    )


def test_a_snapshot_of_the_hub_is_named_by_its_commit(tmp_path: Path) -> None:
    base = base_of(vllm_config(_hub(tmp_path) / "snapshots" / HF_COMMIT), settings=ConnectorSettings())
    assert (base.model, base.weights) == ("org/name", Weights(version=f"hf:{HF_COMMIT}"))
    plain_folder = write_model(tmp_path / HF_COMMIT)
    assert base_of(vllm_config(plain_folder), settings=ConnectorSettings()).weights.digest is not None


def test_a_model_of_the_hub_is_named_by_the_commit_behind_its_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    config = vllm_config("org/name")
    assert reason_of(config, settings=ConnectorSettings()) is UncacheableReason.WEIGHTS_UNNAMED
    _hub(tmp_path)
    named = base_of(config, settings=ConnectorSettings())
    assert (named.model, named.weights) == ("org/name", Weights(version=f"hf:{HF_COMMIT}"))
    config.model_config.hf_config._commit_hash = HF_COMMIT
    assert base_of(config, settings=ConnectorSettings()).weights == named.weights
    config.model_config.hf_config._commit_hash = "f" * 40  # the branch moved between both
    assert reason_of(config, settings=ConnectorSettings()) is UncacheableReason.WEIGHTS_UNNAMED
    config.model_config.revision = "f" * 40
    assert base_of(config, settings=ConnectorSettings()).weights == Weights(version="hf:" + "f" * 40)
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "1")
    assert reason_of(config, settings=ConnectorSettings()) is UncacheableReason.WEIGHTS_UNNAMED


@pytest.mark.parametrize("model", ["../../etc", "a/b/c", "a/../b", "", "a b/c"])
def test_what_is_no_repository_is_not_looked_for(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    config = vllm_config(model)
    config.model_config.model = model or "nothing"
    assert reason_of(config, settings=ConnectorSettings()) is UncacheableReason.WEIGHTS_UNNAMED


def test_an_unreadable_memory_is_none(tmp_path: Path) -> None:
    config = vllm_config(write_model(tmp_path / "m"))
    memory = DigestMemory(tmp_path / "m" / "model.safetensors" / "x")
    assert isinstance(named(config, settings=ConnectorSettings(), memory=memory).base, Namespace)


def test_a_commit_with_several_formats_is_told_apart_by_the_one_that_is_loaded(tmp_path: Path) -> None:
    snapshot = _hub(tmp_path) / "snapshots" / HF_COMMIT
    config = vllm_config(snapshot)

    def version(load_format: str) -> str | None:
        config.load_config.load_format = load_format
        return base_of(config, settings=ConnectorSettings()).weights.version

    assert version("safetensors") == version("auto") == f"hf:{HF_COMMIT}"
    assert version("pt") == f"hf:{HF_COMMIT}:pt"
    blob = write_model(snapshot.parent.parent / "own" / "blobs") / "model.safetensors"
    (snapshot / "consolidated.safetensors").symlink_to(blob)
    assert version("auto") == f"hf:{HF_COMMIT}"
    assert version("safetensors") == f"hf:{HF_COMMIT}:safetensors"
