"""Token ids by a tokenizer that only Transformers can read: a model's folder without a tokenizer.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import AutoTokenizer

from kv_types.errors import ConfigError


def tokenize(
    text: str, folder: Path, *, special_tokens: bool
) -> tuple[Sequence[int], Sequence[int], int | None]:
    """Token ids of text, for each whether it was added to those of the text (1) or not (0), and the id of unknown ones.

    Nothing is downloaded, cut off or padded. Raises ConfigError when the folder holds no tokenizer, or one that doesn't
    tell which tokens it added.
    """
    whole = {"padding": False, "truncation": False, "verbose": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        plain = tokenizer(text, add_special_tokens=False, **whole)["input_ids"]
        told = tokenizer(text, add_special_tokens=special_tokens, return_special_tokens_mask=True, **whole)
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        raise ConfigError(f"{folder} holds no tokenizer that transformers can read: {error}") from error
    ids, added = list(told["input_ids"]), list(told["special_tokens_mask"])
    if len(ids) != len(added) or [one for one, extra in zip(ids, added, strict=True) if not extra] != list(
        plain
    ):
        raise ConfigError(
            f"the tokenizer in {folder} doesn't tell which tokens it adds to a text: make the token ids yourself and give "
            "them by --prefix-tokens"
        )
    return ids, added, tokenizer.unk_token_id
