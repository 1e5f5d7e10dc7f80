"""Selection: what the options of a command select, as selectors, and in which namespaces a prefix names a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from kv_types.errors import ConfigError, LimitExceededError
from kv_types.ids import KEY_BYTES, NamespaceId, PageKey
from kv_types.limits import INVALIDATE_SELECTORS_MAX, LOG_REVISION_MAX
from kv_types.namespace import Namespace
from kv_types.selectors import Selector
from stratakv.prefixes import Prefix, last_key
from stratakv.times import parse_time

_RAW = "hex:"
_NAMED_AT_ONCE = 5

ModelOption = Annotated[str | None, typer.Option("--model", help="Pages of this model.")]
WeightsOption = Annotated[
    str | None,
    typer.Option("--weights-version", help="Of this weights version, or 64 hexadecimal digits of a digest."),
]
OtherWeightsOption = Annotated[
    str | None,
    typer.Option(
        "--other-weights-than",
        metavar="VERSION",
        help="Of any weights of --model but this version, or digest.",
    ),
]
AdapterOption = Annotated[
    str | None, typer.Option("--adapter", help='Of this adapter, by name; "" for those without one.')
]
TenantOption = Annotated[
    str | None, typer.Option("--tenant", help='Of this tenant; "" for those without one.')
]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", help="Of this namespace: 64 hexadecimal digits.")
]
PrefixTokensOption = Annotated[
    str | None,
    typer.Option(
        "--prefix-tokens", metavar="FILE",
        help="Prompts that begin with the token ids in FILE: a JSON list, or numbers; - for standard input.",
    ),
]  # fmt: skip
PrefixTextOption = Annotated[
    str | None,
    typer.Option(
        "--prefix-text", metavar="FILE", help="Prompts that begin with the text in FILE; needs --tokenizer."
    ),
]

TokenizerOption = Annotated[
    Path | None, typer.Option("--tokenizer", help="A local tokenizer.json, or the folder that holds one.")
]
SpecialTokensOption = Annotated[
    bool | None,
    typer.Option(
        "--special-tokens/--no-special-tokens", show_default="--special-tokens",
        help="Let the tokenizer add the special tokens that it puts in front of prompts.",
    ),
]  # fmt: skip
KeyOption = Annotated[
    str | None,
    typer.Option("--key", help="One page and all computed on top of it: 64 hexadecimal digits."),
]
ProducerOption = Annotated[
    str | None,
    typer.Option("--producer", help="Pages that this node or worker computed; hex:… for raw bytes."),
]
TagOption = Annotated[str | None, typer.Option("--tag", help="Pages put with this tag; hex:… for raw bytes.")]
SinceOption = Annotated[
    str | None, typer.Option("--since", help='Computed at this time or later: ISO 8601, or "10m ago".')
]
UntilOption = Annotated[str | None, typer.Option("--until", help="Computed at this time or earlier.")]
SinceRevisionOption = Annotated[
    int | None,
    typer.Option(
        "--since-revision",
        min=0,
        max=LOG_REVISION_MAX,
        help="Whose stamp is this revision of the log or a later one.",
    ),
]
UntilRevisionOption = Annotated[
    int | None,
    typer.Option(
        "--until-revision",
        min=0,
        max=LOG_REVISION_MAX,
        help="Whose stamp is this revision or an earlier one.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """What the options say, each as it was written; None where it was left out. They combine by "and"."""

    model: str | None = None
    weights_version: str | None = None
    adapter: str | None = None
    tenant: str | None = None
    namespace: str | None = None
    key: str | None = None
    producer: str | None = None
    tag: str | None = None
    since: str | None = None
    until: str | None = None
    since_revision: int | None = None
    until_revision: int | None = None
    other_weights_than: str | None = None

    def selector(self, *, now: datetime) -> Selector:
        """Return the selector of these fields. Raises ConfigError, InvalidArgumentError, LimitExceededError."""
        return Selector(
            model=self.model,
            weights_version=self.weights_version,
            adapter=self.adapter,
            tenant=self.tenant,
            namespace=NamespaceId(parse_key(self.namespace, "--namespace"))
            if self.namespace is not None
            else None,
            key=PageKey(parse_key(self.key, "--key")) if self.key is not None else None,
            producer=None if self.producer is None else parse_name(self.producer, "--producer"),
            tag=None if self.tag is None else parse_name(self.tag, "--tag"),
            since_ms=None if self.since is None else parse_time(self.since, option="--since", now=now),
            until_ms=None if self.until is None else parse_time(self.until, option="--until", now=now),
            since_revision=self.since_revision,
            until_revision=self.until_revision,
            other_weights_than=self.other_weights_than,
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """What is to be invalidated: the selectors, and for a prefix the namespaces that it was applied to and its tokens."""

    selectors: Sequence[Selector]
    namespaces: Sequence[Namespace] = field(default_factory=tuple)
    prefix_tokens: int | None = None

    @property
    def is_narrow(self) -> bool:
        """Whether it surely stays within one namespace."""
        return len(self.selectors) == 1 and (
            self.selectors[0].namespace is not None or self.selectors[0].key is not None
        )

    def describe(self) -> str:
        """Say in a line what is selected."""
        if not self.namespaces:
            return self.selectors[0].describe()
        count = len(self.namespaces)
        return f"a prefix of {self.prefix_tokens} tokens in {count} namespace{'s' if count > 1 else ''}"


def selector_of(fields_: Fields, prefix: Prefix | None, *, everything: bool, now: datetime) -> Selector:
    """The selector of one command's options; a prefix is still to be applied to it.

    Raises ConfigError, InvalidArgumentError, LimitExceededError, each saying what to write instead.
    """
    given = [one.name for one in fields(fields_) if getattr(fields_, one.name) is not None]
    if everything and (given or prefix is not None):
        raise ConfigError("--all names everything and combines with nothing; leave it out to select less")
    if not everything and not given and prefix is None:
        raise ConfigError(
            "name what to invalidate, by --model, --tenant, --prefix-tokens …, or everything by --all"
        )
    if fields_.other_weights_than is not None and fields_.model is None:
        raise ConfigError(
            "--other-weights-than is said of one model's versions, and without --model it would mean every other model "
            "too: name the model"
        )
    selector = fields_.selector(now=now)
    if prefix is not None and selector.key is not None:
        raise ConfigError("a prefix names a page as --key does: give one of them")
    return selector


def select(selector: Selector, prefix: Prefix | None, known: Mapping[NamespaceId, Namespace]) -> Selection:
    """Apply a prefix, if there is one, in every one of the `known` namespaces that the selector matches.

    Raises ConfigError, LimitExceededError.
    """
    return Selection([selector]) if prefix is None else _prefix_selection(selector, prefix, known)


def matching(selector: Selector, known: Mapping[NamespaceId, Namespace], *, source: str) -> list[Namespace]:
    """Namespaces that a selector's fields match. Raises ConfigError when there are none: nothing could have a key."""
    found = [namespace for namespace in known.values() if selector.matches_namespace(namespace)]
    if not found:
        what = "has that id" if selector.namespace is not None else "matches"
        raise ConfigError(
            f"no namespace that the fleet has used {what}, so that {source} can't be given keys; `stratakv namespaces` "
            "lists those there are"
        )
    return found


def check_filled(prefix: Prefix, namespaces: Sequence[Namespace]) -> None:
    """Raise ConfigError where a prefix fills no page of some namespace, and so can't name one."""
    short = [namespace for namespace in namespaces if not prefix.fills_a_page_of(namespace)]
    if not short:
        return
    named = ", ".join(
        f"{namespace.id.hex()[:16]} (model {namespace.model!r}, {namespace.page_tokens} tokens a page)"
        for namespace in short[:_NAMED_AT_ONCE]
    )
    more = f" and {len(short) - _NAMED_AT_ONCE} more" if len(short) > _NAMED_AT_ONCE else ""
    needed = max(namespace.page_tokens for namespace in short)
    raise ConfigError(
        f"{prefix.source} has {len(prefix.tokens)} tokens, which fill no page of namespace {named}{more}, and only full "
        f"pages have keys: give at least {needed} tokens, name other namespaces (--model, --tenant, --namespace), or "
        "leave the prefix out and invalidate those whole"
    )


def parse_key(text: str, option: str) -> bytes:
    """32 bytes of 64 hexadecimal digits. Raises ConfigError."""
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != KEY_BYTES or len(text) != 2 * KEY_BYTES:
        raise ConfigError(
            f"{option} takes {2 * KEY_BYTES} hexadecimal digits, all of the id; got {text!r} ({len(text)} characters)"
        )
    return value


def parse_name(text: str, option: str) -> bytes:
    """The bytes of a producer or tag: text, or hex:… for what is none. Raises ConfigError."""
    if not text.startswith(_RAW):
        return text.encode(errors="surrogateescape")
    try:
        return bytes.fromhex(text.removeprefix(_RAW))
    except ValueError as error:
        raise ConfigError(f"{option}: {text!r} is {_RAW} without hexadecimal digits behind it") from error


def selector_plain(selector: Selector) -> dict[str, str | int]:
    """A selector as JSON types: the fields that are set, ids in hexadecimal, other bytes as options take them."""
    told: dict[str, str | int] = {}
    for one in fields(selector):
        value = getattr(selector, one.name)
        if one.name in ("namespace", "key") and value is not None:
            told[one.name] = value.hex()
        elif value is not None:
            told[one.name] = show_name(value) if isinstance(value, bytes) else value
    return told


def show_name(value: bytes) -> str:
    """A producer or tag as the options take it: text where it is some, else hex:…"""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"{_RAW}{value.hex()}"
    return f"{_RAW}{value.hex()}" if text.startswith(_RAW) or not text.isprintable() else text


def _prefix_selection(
    selector: Selector, prefix: Prefix, known: Mapping[NamespaceId, Namespace]
) -> Selection:
    namespaces = matching(selector, known, source=prefix.source)
    check_filled(prefix, namespaces)
    if len(namespaces) > INVALIDATE_SELECTORS_MAX:
        raise LimitExceededError(
            f"the prefix names a page in each of {len(namespaces)} namespaces, and one call takes "
            f"{INVALIDATE_SELECTORS_MAX}: more would make the log forget what it selected apart and take good pages "
            "along; name fewer by --model, --tenant or --weights-version"
        )
    selectors = [
        replace(
            selector, namespace=namespace.id, model=None, weights_version=None, adapter=None, tenant=None,
            other_weights_than=None, key=PageKey(last_key(prefix.keys_in(namespace))),
        )
        for namespace in namespaces
    ]  # fmt: skip
    return Selection(selectors, namespaces, len(prefix.tokens))
