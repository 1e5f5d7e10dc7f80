"""LoRA adapters through the real engine (C05): pages are named by an adapter's content, never by its name, path or id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.sidecar_process import SidecarProcess
from tests.vllm.adapters import RANK, write_adapter
from tests.vllm.engines import Answer, Engine, Makers, connector, same
from tests.vllm.models import tokens
from tests.vllm.sidecars import settled

PAGE = 64
PROMPT = tokens(1, 3 * PAGE + 1)
LORA = {"enable_lora": True, "max_lora_rank": RANK, "max_loras": 2, "max_cpu_loras": 4}


@pytest.fixture(scope="module")
def plain(made: Makers, llama: Path) -> Engine:
    return made.engine(llama, enable_prefix_caching=False, **LORA)


@pytest.fixture(scope="module")
def first(made: Makers, llama: Path, sidecar: SidecarProcess) -> Engine:
    return made.engine(llama, **LORA, **connector(sidecar.runtime, page_tokens=PAGE))


@pytest.fixture(scope="module")
def second(made: Makers, llama: Path, sidecar: SidecarProcess) -> Engine:
    return made.engine(llama, **LORA, **connector(sidecar.runtime, page_tokens=PAGE))


def lora(folder: Path, number: int, *, name: str = "tuned") -> dict[str, Any]:
    return {"lora_name": name, "lora_int_id": number, "lora_path": str(folder)}


def ask(engine: Engine, adapter: dict[str, Any] | None) -> Answer:
    (answer,) = engine.generate([PROMPT], max_tokens=6, logprobs=4, lora=adapter, timeout_s=60.0)
    settled(engine)
    return answer


def test_c05_an_adapter_is_its_content(plain: Engine, first: Engine, second: Engine, tmp_path: Path) -> None:
    one = write_adapter(tmp_path / "one", seed=1)
    other = write_adapter(tmp_path / "other", seed=2)
    copied = write_adapter(tmp_path / "copied", seed=1)
    right = {folder: ask(plain, lora(folder, at)) for at, folder in enumerate((one, other, copied), 11)}
    assert right[one].tokens == right[copied].tokens != right[other].tokens, "else nothing here could fail"
    same(ask(first, lora(one, 1)), right[one])
    assert ask(first, None).cached_tokens == 0, "without an adapter it is another computation"

    answer = ask(second, lora(other, 1))
    assert answer.cached_tokens == 0, "the same name and id, other content"
    same(answer, right[other])
    answer = ask(second, lora(copied, 7))
    assert answer.external_tokens == 3 * PAGE, "another path and id, the same content"
    same(answer, right[copied])
    answer = ask(second, lora(one, 8, name="another"))
    assert answer.cached_tokens == 0, "invalidations name adapters, so the name counts too"
    same(answer, right[one])


def test_c05_an_adapter_whose_files_change_under_its_id_is_not_cached(
    plain: Engine, first: Engine, second: Engine, tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path / "changing", seed=3)
    right = ask(plain, lora(folder, 21))
    same(ask(first, lora(folder, 21)), right)
    same(ask(first, lora(folder, 21)), right)
    write_adapter(folder, seed=4)
    before = first.metric("vllm:stratakv_uncacheable_requests", reason="adapter_without_digest")
    answer = ask(first, lora(folder, 21))
    same(answer, right)  # the engine has loaded it once
    assert answer.external_tokens == 0
    ask(first, None)  # a step that brings the statistics of the one before
    after = first.metric("vllm:stratakv_uncacheable_requests", reason="adapter_without_digest")
    assert after == before + 1
    fresh = ask(plain, lora(folder, 22))
    answer = ask(second, lora(folder, 21))
    assert answer.cached_tokens == 0, "nothing was stored under the new content's name"
    same(answer, fresh)


def test_c05_an_adapter_that_is_loaded_anew_under_its_name_finds_nothing_of_the_former(
    plain: Engine, first: Engine, tmp_path: Path
) -> None:
    """In one engine, whose own cache tells adapters apart by their names."""
    old, new = write_adapter(tmp_path / "old", seed=5), write_adapter(tmp_path / "new", seed=6)
    right = ask(plain, lora(new, 31, name="served"))
    ask(first, lora(old, 32, name="served"))
    same(ask(first, lora(new, 33, name="served")), right)


def test_c05_files_that_were_overwritten_and_loaded_under_a_new_id_find_nothing_of_the_former(
    plain: Engine, first: Engine, tmp_path: Path
) -> None:
    """In one engine, whose own cache tells adapters apart by name and path alone."""
    folder = write_adapter(tmp_path / "trained", seed=7)
    ask(first, lora(folder, 41))
    assert ask(first, lora(folder, 41)).local_tokens == 3 * PAGE
    write_adapter(folder, seed=8)
    right = ask(plain, lora(folder, 42))
    answer = ask(first, lora(folder, 42))
    same(answer, right)
    assert answer.cached_tokens == 0
    answer = ask(first, lora(folder, 42))
    assert answer.local_tokens == 3 * PAGE, "the new content has the name now"
    same(answer, right)
