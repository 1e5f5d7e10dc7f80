"""Prefixes as people give them: token ids from a file, or text through a tokenizer, and their keys in each namespace."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from kv_types.errors import ConfigError, InvalidArgumentError, LimitExceededError
from kv_types.ids import KEY_BYTES
from kv_types.limits import PREFIX_FILE_BYTES_MAX
from kv_types.namespace import Namespace
from kv_types.page_keys import TOKEN_ID_END, page_keys

STDIN = "-"
_TOKENIZER_FILE = "tokenizer.json"
_MARK = "\ufeff"
"""What some editors put in front of a file's text, and no number begins with."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Token ids of a prompt's beginning, and where they come from, for messages."""

    tokens: Sequence[int]
    source: str

    def keys_in(self, namespace: Namespace) -> bytes:
        """Packed keys of its full pages in a namespace, none if it fills no page. Raises InvalidArgumentError."""
        return page_keys(namespace.id, self.tokens, page_tokens=namespace.page_tokens)

    def fills_a_page_of(self, namespace: Namespace) -> bool:
        """Whether it has a key in a namespace at all."""
        return len(self.tokens) >= namespace.page_tokens


def prefix_of(
    tokens: str | None, text: str | None, tokenizer: Path | None, *, special_tokens: bool | None
) -> Prefix | None:
    """Read the prefix that the options name; None where they name none. Raises ConfigError, LimitExceededError.

    `special_tokens` None: nothing was said, and they are added.
    """
    if tokens is not None and text is not None:
        raise ConfigError("give --prefix-tokens or --prefix-text, not both")
    if text is None and tokenizer is not None:
        raise ConfigError("--tokenizer makes token ids of --prefix-text; without that it has nothing to do")
    if text is None and special_tokens is not None:
        raise ConfigError(
            "--special-tokens and --no-special-tokens say how --prefix-text becomes token ids; without that they have "
            "nothing to do"
        )
    if tokens is not None:
        return Prefix(parse_tokens(_read(tokens, "--prefix-tokens").removeprefix(_MARK)), _shown(tokens))
    if text is None:
        return None
    if tokenizer is None:
        raise ConfigError(
            "--prefix-text needs --tokenizer PATH: the model's tokenizer.json, or the folder that it is in"
        )
    found = tokenize(_read(text, "--prefix-text"), tokenizer, special_tokens=special_tokens is not False)
    return Prefix(found, _shown(text))


def parse_tokens(text: str) -> list[int]:
    """Read token ids: a JSON list, or numbers with white space between them. Raises ConfigError naming the first bad one."""
    words: list[Any]
    if text.lstrip().startswith("["):
        try:
            words = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the token ids are no JSON list: {error}") from error
    else:
        words = text.split()
    if not words:
        raise ConfigError("there are no token ids in it")
    return [_token(word, index) for index, word in enumerate(words)]


def tokenize(text: str, path: Path, *, special_tokens: bool) -> list[int]:
    """Make token ids of a prompt's beginning by a local tokenizer, whatever else that was saved to do. Raises ConfigError.

    Nothing is cut off or padded. Special tokens that it adds in front belong to the beginning; those that it adds behind
    the text don't, for more text may follow there.
    """
    file = path / _TOKENIZER_FILE if path.is_dir() else path
    if file.is_file():
        found = _by_tokenizers(text, file, special_tokens=special_tokens)
    elif path.is_dir():
        found = _by_transformers(text, path, special_tokens=special_tokens)
    else:
        raise ConfigError(f"there is no tokenizer at {path}: name a tokenizer.json, or the folder of a model")
    texts_own = [index for index, is_added in enumerate(found.added) if not is_added]
    if {found.ids[index] for index in texts_own} <= {found.unknown}:
        raise ConfigError(
            f"the tokenizer in {path} knows nothing of the text: is it the model's, is its vocabulary there, is there any "
            "text?"
        )
    return list(found.ids[: texts_own[-1] + 1])


def last_key(packed: bytes) -> bytes:
    """The last of some packed keys."""
    return packed[-KEY_BYTES:]


@dataclass(frozen=True, slots=True)
class _Tokenized:
    """Token ids, whether each was added to those of the text, and the id of what the vocabulary lacks (None: it has none)."""

    ids: Sequence[int]
    added: Sequence[int]
    unknown: int | None


def _by_tokenizers(text: str, file: Path, *, special_tokens: bool) -> _Tokenized:
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - nobody who names token ids needs it
    except ImportError as error:
        raise ConfigError(
            "--prefix-text needs the package tokenizers: pip install tokenizers, or make the token ids yourself and give "
            "them by --prefix-tokens"
        ) from error
    try:
        tokenizer = Tokenizer.from_file(str(file))
        # a tokenizer that was saved behind a call that padded or cut goes on with it
        tokenizer.no_padding()
        tokenizer.no_truncation()
        encoding = tokenizer.encode(text, add_special_tokens=special_tokens)
        unknown = _unknown(tokenizer)
    except Exception as error:  # tokenizers raises plain Exception for every bad file
        raise ConfigError(f"{file} is no tokenizer: {error}") from error
    if dropout := getattr(tokenizer.model, "dropout", None):
        raise ConfigError(
            f"{file} splits words at random (a dropout of {dropout}), so that no prompt is sure to begin with what it makes now"
        )
    return _Tokenized(encoding.ids, encoding.special_tokens_mask, unknown)


def _unknown(tokenizer: Any) -> int | None:
    """The id of what a tokenizer doesn't know: models name it as a token, Unigram by its id, and that in its file alone."""
    model = tokenizer.model
    if hasattr(model, "unk_token"):
        return None if model.unk_token is None else tokenizer.token_to_id(model.unk_token)
    unknown: int | None = json.loads(tokenizer.to_str())["model"].get("unk_id")
    return unknown


def _by_transformers(text: str, folder: Path, *, special_tokens: bool) -> _Tokenized:
    try:
        connector = import_module(
            "inference_worker.connectors.transformers_tokenizer"
        )  # slow, and rarely needed
    except ImportError as error:
        raise ConfigError(
            f"{folder} has no {_TOKENIZER_FILE}; to read what else may be in it, pip install transformers"
        ) from error
    return _Tokenized(*connector.tokenize(text, folder, special_tokens=special_tokens))


def _token(word: Any, index: int) -> int:
    if isinstance(word, str) and word.isascii() and word.isdigit():
        word = int(word) if len(word) <= len(str(TOKEN_ID_END)) else TOKEN_ID_END
    if isinstance(word, bool) or not isinstance(word, int) or not 0 <= word < TOKEN_ID_END:
        raise InvalidArgumentError(
            f"token id {index} is {str(word)[:40]!r}: token ids are integers from 0 to {TOKEN_ID_END - 1}"
        )
    return word


def _read(name: str, option: str) -> str:
    try:
        if name == STDIN:
            data = sys.stdin.buffer.read(PREFIX_FILE_BYTES_MAX + 1)
        else:
            with Path(name).open("rb") as source:
                data = source.read(PREFIX_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {name}: {error.strerror or error}") from error
    if len(data) > PREFIX_FILE_BYTES_MAX:
        raise LimitExceededError(f"{option}: {_shown(name)} has more than {PREFIX_FILE_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{option}: {_shown(name)} is no UTF-8 text: {error.reason}") from error


def _shown(name: str) -> str:
    return "standard input" if name == STDIN else name
