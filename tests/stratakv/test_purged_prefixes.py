"""`stratakv invalidate` by the tokens or the text that prompts begin with: in which namespaces, and that it is all of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kv_types.limits import PREFIX_ROUNDS_MAX
from kv_types.selectors import Selector
from tests.kv_types.samples import namespace
from tests.stratakv.conftest import SPACES, Command, selectors
from tests.stratakv.test_invalidate import last_key
from tests.support.admin_site import AdminSite


def test_a_prefix_is_its_last_full_page_in_every_namespace_that_matches(
    site: AdminSite, stratakv: Command
) -> None:
    tokens = list(range(10))
    told = stratakv.json(
        "invalidate", "--prefix-tokens", "-", "--model", "m", "--yes", stdin=json.dumps(tokens)
    )
    assert told["namespaces"] == [SPACES[0].id.hex(), SPACES[1].id.hex()]
    expected = [Selector(namespace=space.id, key=last_key(space, tokens)) for space in SPACES[:2]]
    assert selectors(site) == expected
    assert [one["key"] for one in told["selectors"]] == [str(one.key and one.key.hex()) for one in expected]


def test_a_prefix_in_one_namespace_needs_no_confirmation_and_is_shown(
    site: AdminSite, stratakv: Command, tmp_path: Path
) -> None:
    file = tmp_path / "tokens.txt"
    file.write_text("1 2 3\n4\t5")
    result = stratakv("invalidate", "--prefix-tokens", str(file), "--tenant", "alice", "--tag", "t")
    assert result.exit_code == 0, result.stderr
    assert SPACES[1].id.hex() in result.stderr
    assert selectors(site) == [
        Selector(namespace=SPACES[1].id, key=last_key(SPACES[1], [1, 2, 3, 4, 5]), tag=b"t")
    ]


def test_a_prefix_in_namespaces_of_the_whole_fleet(site: AdminSite, stratakv: Command) -> None:
    elsewhere = namespace(model="elsewhere", page_tokens=2)
    site.call(lambda: site.fleet.local.know([elsewhere.canonical], deadline_ns=0))
    told = stratakv.json("invalidate", "--prefix-tokens", "-", "--model", "elsewhere", stdin="7 8")
    assert told["namespaces"] == [elsewhere.id.hex()]


def test_a_prefix_that_fills_no_page_somewhere_says_where_and_what_to_do(
    site: AdminSite, stratakv: Command
) -> None:
    result = stratakv("invalidate", "--prefix-tokens", "-", "--yes", stdin="1 2 3 4 5")
    assert result.exit_code == 2
    for part in ("5 tokens", SPACES[2].id.hex()[:16], "16 tokens", "--namespace"):
        assert part in result.stderr
    assert selectors(site) == []


def test_a_prefix_of_no_known_namespace_is_a_usage_error(stratakv: Command) -> None:
    result = stratakv("invalidate", "--prefix-tokens", "-", "--model", "nobody", stdin="1 2 3 4")
    assert result.exit_code == 2
    assert "stratakv namespaces" in result.stderr


def test_a_prefix_is_not_applied_while_some_namespaces_are_unknown(
    site: AdminSite, stratakv: Command
) -> None:
    site.fleet.log.before["namespaces"] = 1
    result = stratakv("invalidate", "--prefix-tokens", "-", "--yes", stdin="1 2 3 4")
    assert result.exit_code == 1
    assert "not all are known" in result.stderr


def with_each_append(site: AdminSite, act: Callable[[], Awaitable[object]]) -> None:
    """Let something happen before each append, behind whatever was read for it."""
    append = site.fleet.local.append

    async def behind(*args: Any, **terms: Any) -> Any:
        await act()
        return await append(*args, **terms)

    site.fleet.local.append = behind  # type: ignore[method-assign]


def test_a_prefix_reaches_namespaces_that_came_while_it_was_applied(
    site: AdminSite, stratakv: Command
) -> None:
    early, late = (namespace(model="m", page_tokens=2, tenant=tenant) for tenant in ("early", "late"))
    site.call(lambda: site.fleet.local.know([early.canonical], deadline_ns=0))
    with_each_append(site, lambda: site.fleet.local.know([late.canonical], deadline_ns=0))
    told = stratakv.json(
        "invalidate", "--prefix-tokens", "-", "--tag", "t", "--yes", "--model", "m", stdin="7 8 9 9"
    )
    assert told["confirmed"]
    assert told["namespaces"][-1] == late.id.hex()
    expected = [
        Selector(namespace=space.id, key=last_key(space, [7, 8, 9, 9]), tag=b"t")
        for space in (*SPACES[:2], early, late)
    ]
    assert selectors(site) == expected, "each once"
    assert len(told["appended"]) == len(told["selectors"]) == len(expected)


def test_namespaces_that_come_all_the_time_are_not_called_all(site: AdminSite, stratakv: Command) -> None:
    numbers = iter(range(1000))

    async def one_more() -> None:
        space = namespace(model="grows", page_tokens=2, tenant=f"t{next(numbers)}")
        await site.fleet.local.know([space.canonical], deadline_ns=0)

    site.call(one_more)
    with_each_append(site, one_more)
    told = stratakv.json(
        "invalidate", "--prefix-tokens", "-", "--model", "grows", "--yes", stdin="7 8", code=3
    )
    assert (told["exit_code"], told["reason"], told["confirmed"]) == (3, "namespaces", False)
    assert "all the time" in told["why"]
    assert len(told["appended"]) == len(told["namespaces"]) > PREFIX_ROUNDS_MAX, "what was appended stands"


def test_a_directory_that_can_not_be_read_behind_the_append_is_exit_3(
    site: AdminSite, stratakv: Command
) -> None:
    async def lost() -> None:
        site.fleet.log.before["namespaces"] = 1

    with_each_append(site, lost)
    result = stratakv("invalidate", "--prefix-tokens", "-", "--tenant", "alice", stdin="1 2 3 4")
    assert result.exit_code == 3
    assert "namespaces that were added meanwhile may be missing" in result.stderr
    assert "--request-id" in result.stderr
    assert len(selectors(site)) == 1, "what was appended stands"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no token ids"),
        ("  ", "no token ids"),
        ("[]", "no token ids"),
        ("[1, 2", "no JSON list"),
        ('[1, "2", -1]', "token id 2"),
        ("[1, true]", "token id 1"),
        ("[1.5]", "token id 0"),
        ("1 2 x", "token id 2 is 'x'"),
        ("4294967296", "token id 0"),
        ("9" * 5000, "token id 0"),
        ("[" * 100_000, "no JSON list"),
        ("\udcff", "no UTF-8"),
    ],
)
def test_bad_token_files_are_named(stratakv: Command, tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(text, errors="surrogateescape")
    result = stratakv("invalidate", "--yes", "--prefix-tokens", str(file))
    assert result.exit_code == 2, result.exception
    assert why in result.stderr


def test_text_goes_through_a_tokenizer_of_the_model(
    site: AdminSite, stratakv: Command, tmp_path: Path
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<s>": 0, "the": 1, "cat": 2, "sat": 3, "down": 4, "[UNK]": 5}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = tmp_path / "prompt.txt"
    text.write_text("the cat sat down")
    for path, special, tokens in (
        (tmp_path / "tokenizer.json", "--special-tokens", [0, 1, 2, 3]),
        (tmp_path, "--no-special-tokens", [1, 2, 3, 4]),
    ):
        told = stratakv.json(
            "invalidate", "--prefix-text", str(text), "--tokenizer", str(path), "--tenant", "alice", special
        )
        assert told["selectors"][0]["key"] == last_key(SPACES[1], tokens).hex()


def test_what_is_no_tokenizer_is_named(stratakv: Command, tmp_path: Path) -> None:
    bad = tmp_path / "tokenizer.json"
    bad.write_text("{}")
    for path, why in ((bad, "is no tokenizer"), (tmp_path / "nowhere", "there is no tokenizer at")):
        result = stratakv(
            "invalidate", "--yes", "--prefix-text", "-", "--tokenizer", str(path), stdin="hello"
        )
        assert result.exit_code == 2
        assert why in result.stderr


def test_a_folder_without_a_tokenizer_json_is_read_by_transformers(
    site: AdminSite, stratakv: Command, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    folder = tmp_path / "model"
    folder.mkdir()
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "down"])
    )
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    words = ("--tokenizer", str(folder), "--no-special-tokens", "--tenant", "alice")
    told = stratakv.json("invalidate", "--prefix-text", "-", *words, stdin="the cat sat down")
    assert told["selectors"][0]["key"] == last_key(SPACES[1], [5, 6, 7, 8]).hex()
    vocabulary.unlink()
    result = stratakv("invalidate", "--prefix-text", "-", *words, stdin="the cat sat down")
    assert result.exit_code == 2, "a tokenizer without its vocabulary would name another prefix"
    (folder / "tokenizer_config.json").unlink()
    result = stratakv("invalidate", "--prefix-text", "-", *words, stdin="the cat sat down")
    assert result.exit_code == 2
    assert "holds no tokenizer" in result.stderr


def test_without_the_package_the_error_says_what_to_install(
    stratakv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    result = stratakv(
        "invalidate", "--yes", "--prefix-text", "-", "--tokenizer", str(tmp_path), stdin="hello"
    )
    assert result.exit_code == 2
    assert "pip install tokenizers" in result.stderr
