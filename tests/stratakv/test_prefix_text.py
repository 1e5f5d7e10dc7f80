"""Text becomes the tokens that a prompt begins with, whatever else its tokenizer was saved to do."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from kv_types.errors import ConfigError
from stratakv.prefixes import prefix_of, tokenize
from tests.stratakv.conftest import SPACES, Command
from tests.stratakv.test_invalidate import last_key
from tests.support.admin_site import AdminSite

tokenizers = pytest.importorskip("tokenizers")

PAD, UNKNOWN, BEGIN, END = "<pad>", "<unk>", "<s>", "</s>"
SPECIAL = {PAD: 0, UNKNOWN: 1, BEGIN: 2, END: 3}
WORDS = {f"w{number}": number + len(SPECIAL) for number in range(40)}
TEXT = " ".join(list(WORDS)[:10])
IDS = list(WORDS.values())[:10]

PADDINGS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "fixed": {"length": 64},
    "fixed, left": {"length": 64, "direction": "left"},
    "longest": {"length": None},
    "longest, left, of sixteens": {"length": None, "direction": "left", "pad_to_multiple_of": 16},
}
TRUNCATIONS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "right": {"max_length": 6},
    "left": {"max_length": 6, "direction": "left"},
    "with a stride": {"max_length": 6, "stride": 2},
}
TEMPLATES = {
    "none": None,
    "begin": f"{BEGIN} $A",
    "end": f"$A {END}",
    "both": f"{BEGIN} $A {END}",
    "both, twice": f"{BEGIN} {BEGIN} $A {END} {END}",
}


def tokenizer_of(model: Any, template: str | None = None) -> Any:
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([PAD, BEGIN, END])
    if template is not None:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single=template, special_tokens=[(BEGIN, SPECIAL[BEGIN]), (END, SPECIAL[END])]
        )
    return made


def of_words(template: str | None = None) -> Any:
    return tokenizer_of(tokenizers.models.WordLevel({**SPECIAL, **WORDS}, unk_token=UNKNOWN), template)


@pytest.mark.parametrize("template", list(TEMPLATES))
def test_neither_padding_nor_truncation_nor_what_ends_a_prompt_is_part_of_its_beginning(
    tmp_path: Path, template: str
) -> None:
    front = [SPECIAL[BEGIN]] * (TEMPLATES[template] or "").count(BEGIN)
    for number, (padding, truncation) in enumerate(
        itertools.product(PADDINGS.values(), TRUNCATIONS.values())
    ):
        made = of_words(TEMPLATES[template])
        if padding is not None:
            made.enable_padding(pad_id=SPECIAL[PAD], pad_token=PAD, **padding)
        if truncation is not None:
            made.enable_truncation(**truncation)
        file = tmp_path / f"{number}.json"
        made.save(str(file))
        assert tokenize(TEXT, file, special_tokens=True) == front + IDS, (padding, truncation)
        assert tokenize(TEXT, file, special_tokens=False) == IDS, (padding, truncation)


@pytest.mark.parametrize("kind", ["BertProcessing", "RobertaProcessing"])
def test_other_processors_that_end_a_prompt(tmp_path: Path, kind: str) -> None:
    made = of_words()
    made.post_processor = getattr(tokenizers.processors, kind)((END, SPECIAL[END]), (BEGIN, SPECIAL[BEGIN]))
    made.save(str(tmp_path / "tokenizer.json"))
    assert tokenize(TEXT, tmp_path, special_tokens=True) == [SPECIAL[BEGIN], *IDS]


def test_what_the_text_itself_says_stays(tmp_path: Path) -> None:
    """An end that somebody wrote is part of the prompt, as chat templates have them between turns."""
    of_words(TEMPLATES["both"]).save(str(tmp_path / "tokenizer.json"))
    written = tokenize(f"{BEGIN} w0 {END} w1 {END}", tmp_path, special_tokens=True)
    begin, end = SPECIAL[BEGIN], SPECIAL[END]
    assert written == [begin, begin, WORDS["w0"], end, WORDS["w1"], end]


def models_with_nothing_known() -> list[Any]:
    kinds = tokenizers.models
    return [
        kinds.WordLevel(SPECIAL, unk_token=UNKNOWN),
        kinds.WordPiece(SPECIAL, unk_token=UNKNOWN),
        kinds.BPE(SPECIAL, [], unk_token=UNKNOWN),
        kinds.BPE(SPECIAL, []),
        kinds.Unigram([(word, 0.0) for word in SPECIAL], unk_id=SPECIAL[UNKNOWN]),
    ]


@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("text", [TEXT, ""])
def test_a_vocabulary_that_knows_nothing_of_the_text_names_no_prefix(
    tmp_path: Path, index: int, text: str
) -> None:
    tokenizer_of(models_with_nothing_known()[index], TEMPLATES["both"]).save(str(tmp_path / "tokenizer.json"))
    for special_tokens in (True, False):
        with pytest.raises(ConfigError, match="nothing of the text"):
            tokenize(text, tmp_path, special_tokens=special_tokens)


def test_what_splits_words_at_random_names_no_prefix(tmp_path: Path) -> None:
    made = tokenizer_of(tokenizers.models.BPE({"a": 4, "b": 5, "ab": 6}, [("a", "b")], dropout=0.5))
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="at random"):
        tokenize("ab ab ab", tmp_path, special_tokens=True)


def test_one_word_that_is_known_is_a_prefix(tmp_path: Path) -> None:
    of_words().save(str(tmp_path / "tokenizer.json"))
    assert tokenize("who is w0 ?", tmp_path, special_tokens=True) == [1, 1, WORDS["w0"], 1]


@pytest.mark.parametrize("padding", ['"padding_side": "left"', '"padding_side": "right"'])
@pytest.mark.parametrize("truncation", ['"truncation_side": "left"', '"truncation_side": "right"'])
def test_what_only_transformers_reads_is_treated_alike(tmp_path: Path, padding: str, truncation: str) -> None:
    pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "down"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "tokenizer_config.json").write_text(
        f'{{"tokenizer_class": "BertTokenizer", "model_max_length": 3, {padding}, {truncation}}}'
    )
    text = "the cat sat down"
    assert tokenize(text, tmp_path, special_tokens=True) == [2, 5, 6, 7, 8], "[CLS] in front, no [SEP] behind"
    assert tokenize(text, tmp_path, special_tokens=False) == [5, 6, 7, 8]
    with pytest.raises(ConfigError, match="nothing of the text"):
        tokenize("who is it", tmp_path, special_tokens=True)


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "ByT5Tokenizer"])
def test_tokenizers_of_other_builds_agree_on_what_is_behind(tmp_path: Path, kind: str) -> None:
    """ByT5 is written in Python and appends an end; GPT-2 adds nothing."""
    transformers = pytest.importorskip("transformers")
    if kind == "GPT2Tokenizer":
        letters = {letter: number for number, letter in enumerate("abc")}
        made = transformers.GPT2Tokenizer(vocab={**letters, "<|endoftext|>": 3}, merges=[])
        expected = [0, 1]
    else:
        made = transformers.ByT5Tokenizer()
        expected = made.encode("ab", add_special_tokens=False)
        assert made.encode("ab") == [*expected, made.eos_token_id]
    made.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink(missing_ok=True)
    if kind == "GPT2Tokenizer":
        (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "c": 2, "<|endoftext|>": 3}')
        (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    assert tokenize("ab", tmp_path, special_tokens=True) == expected


def test_people_see_how_many_tokens_a_text_became(site: AdminSite, stratakv: Command, tmp_path: Path) -> None:
    of_words(TEMPLATES["both"]).save(str(tmp_path / "tokenizer.json"))
    words = ("--prefix-text", "-", "--tokenizer", str(tmp_path), "--tenant", "alice")
    for option in ("--dry-run", "--yes"):
        shown = stratakv("invalidate", *words, option, stdin=TEXT)
        assert shown.exit_code == 0, shown.stderr
        assert "a prefix of 11 tokens in 1 namespace" in shown.stdout
    told = stratakv.json("invalidate", *words, stdin=TEXT)
    assert told["prefix_tokens"] == 11
    assert told["selectors"][0]["key"] == last_key(SPACES[1], [SPECIAL[BEGIN], *IDS]).hex()
    assert "prefix of 11 tokens" in stratakv("inspect", *words, stdin=TEXT).stdout
    assert stratakv.json("invalidate", "--tenant", "alice", "--dry-run")["prefix_tokens"] is None


@pytest.mark.parametrize("option", ["--special-tokens", "--no-special-tokens"])
@pytest.mark.parametrize("others", [("--all",), ("--prefix-tokens", "-")])
def test_what_a_tokenizer_adds_needs_a_text(
    site: AdminSite, stratakv: Command, option: str, others: tuple[str, ...]
) -> None:
    refused = stratakv("invalidate", option, *others, "--yes", stdin="1 2 3 4")
    assert refused.exit_code == 2
    assert "--prefix-text" in refused.stderr


def test_token_files_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "ids.json"
    for content in (b"[1, 2, 3]", b"1 2 3"):
        file.write_bytes(b"\xef\xbb\xbf" + content)
        prefix = prefix_of(str(file), None, None, special_tokens=None)
        assert prefix is not None
        assert list(prefix.tokens) == [1, 2, 3]
