"""Token ids by a tokenizer that only Transformers can read: a model's folder without a tokenizer.json."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer

from kv_types.errors import ConfigError


def tokenize(text: str, folder: Path, *, special_tokens: bool) -> list[int]:
    """Token ids of text; nothing is downloaded. Raises ConfigError when the folder holds no tokenizer.

    A folder without its vocabulary gives a tokenizer that knows no word, and no error: that is taken for none.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        plain = tokenizer.encode(text, add_special_tokens=False)
        found = tokenizer.encode(text, add_special_tokens=special_tokens)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ConfigError(f"{folder} holds no tokenizer that transformers can read: {error}") from error
    if set(plain) <= {tokenizer.unk_token_id}:
        raise ConfigError(f"the tokenizer in {folder} knows nothing of the text: is its vocabulary there?")
    return list(found)
