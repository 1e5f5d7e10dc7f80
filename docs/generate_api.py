"""Writes docs/api.md from the comments in proto/ and the error table: `python docs/generate_api.py [--check]`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from google.protobuf.descriptor_pb2 import (  # noqa: E402 - after the path that finds our packages
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

from docs.generated import bring_up_to_date  # noqa: E402
from kv_wire.status import ERROR_KEY, TABLE  # noqa: E402

SCHEMA = Path("stratakv") / "v1"
PROTOS = ("cache.proto", "admin.proto")
TARGET = ROOT / "docs" / "api.md"
# Field numbers of descriptor.proto: a comment's place is a path of them.
_MESSAGE, _ENUM, _SERVICE = 4, 5, 6
_FIELD_OF_MESSAGE, _METHOD_OF_SERVICE, _VALUE_OF_ENUM = 2, 2, 2
_SYNTAX = 12
_SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in FieldDescriptorProto.Type.items()
    if name not in {"TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP"}
}
_NAMED = (FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.TYPE_ENUM)


def describe() -> list[FileDescriptorProto]:
    """Compile the schema and return the descriptors of its files, with comments, in the order of PROTOS."""
    from grpc_tools import protoc  # type: ignore[import-untyped]  # noqa: PLC0415 - a development tool

    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "set.pb"
        code = protoc.main(
            [
                "protoc",
                f"-I{ROOT / 'proto'}",
                f"--descriptor_set_out={target}",
                "--include_source_info",
                *(str(ROOT / "proto" / SCHEMA / name) for name in PROTOS),
            ]
        )
        if code != 0:
            raise SystemExit(f"protoc ended with {code}")
        found = {file.name: file for file in FileDescriptorSet.FromString(target.read_bytes()).file}
    return [found[str(SCHEMA / name)] for name in PROTOS]


class Comments:
    """The comments of a file by the path of what they stand at; leading ones before those behind it on the line."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._by_path = {
            tuple(location.path): (location.leading_comments, location.trailing_comments)
            for location in file.source_code_info.location
            if location.leading_comments or location.trailing_comments
        }

    def at(self, *path: int) -> str:
        """Return the comment as one paragraph, empty where there is none."""
        return " ".join(" ".join(self._by_path.get(path, ())).split())


def render(files: list[FileDescriptorProto]) -> str:
    """Return the whole page."""
    named = " and ".join(f"`proto/{file.name}`" for file in files)
    lines = [
        "# The gRPC API",
        "",
        f"Generated from {named} by `make gen`; edit the comments there.",
        "",
    ]
    for file in files:
        comments = Comments(file)
        lines += [comments.at(_SYNTAX), ""]
        for index, service in enumerate(file.service):
            lines += _service(service, comments, index, file.package)
    for file in files:
        comments = Comments(file)
        lines += [f"## Messages of {Path(file.name).name}", ""]
        for index, message in enumerate(file.message_type):
            lines += _message(message, comments, index)
    lines += ["## Enumerations", ""]
    for file in files:
        comments = Comments(file)
        for index, enum in enumerate(file.enum_type):
            lines += _enum(enum, comments, index)
    lines += _errors()
    return "\n".join(lines).rstrip() + "\n"


def _service(service: ServiceDescriptorProto, comments: Comments, index: int, package: str) -> Iterator[str]:
    yield from (f"## Service {package}.{service.name}", "", comments.at(_SERVICE, index), "")
    for number, method in enumerate(service.method):
        request = ("stream " if method.client_streaming else "") + _link(method.input_type)
        answer = ("stream " if method.server_streaming else "") + _link(method.output_type)
        yield from (f"### {method.name}", "", f"{request} → {answer}", "")
        yield from (comments.at(_SERVICE, index, _METHOD_OF_SERVICE, number), "")


def _message(message: DescriptorProto, comments: Comments, index: int) -> Iterator[str]:
    yield from (f"### {message.name}", "")
    text = comments.at(_MESSAGE, index)
    if text:
        yield from (text, "")
    rows = [
        (
            field.name,
            str(field.number),
            _type(field, message),
            comments.at(_MESSAGE, index, _FIELD_OF_MESSAGE, at),
        )
        for at, field in enumerate(message.field)
    ]
    yield from _table(("field", "number", "type", "meaning"), rows) if rows else ("No fields.", "")


def _enum(enum: EnumDescriptorProto, comments: Comments, index: int) -> Iterator[str]:
    yield from (f"### {enum.name}", "", comments.at(_ENUM, index), "")
    rows = [
        (value.name, str(value.number), comments.at(_ENUM, index, _VALUE_OF_ENUM, at))
        for at, value in enumerate(enum.value)
    ]
    yield from _table(("name", "number", "meaning"), rows)


def _errors() -> Iterator[str]:
    yield from (
        "## Errors",
        "",
        f"A failed call carries a text that says what to do, and in its trailing metadata, under `{ERROR_KEY}`, one "
        "of these codes. Misses and refusals are no errors: they are part of the answer.",
        "",
    )
    rows = [
        (kind.code, status.name, (kind.__doc__ or "").strip().splitlines()[0])
        for kind, status in sorted(TABLE.items(), key=lambda entry: entry[0].code)
    ]
    yield from _table(("code", "gRPC status", "meaning"), rows)


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(headings) + " |"
    yield "|" + " --- |" * len(headings)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


def _type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    for nested in message.nested_type:
        if nested.options.map_entry and field.type_name.endswith(f".{nested.name}"):
            key, value = (_type(part, nested) for part in nested.field)
            return f"map of {key} to {value}"
    name = _link(field.type_name) if field.type in _NAMED else _SCALARS[field.type]
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def _link(type_name: str) -> str:
    short = type_name.rsplit(".", 1)[-1]
    return f"[{short}](#{short.lower()})"


if __name__ == "__main__":
    raise SystemExit(bring_up_to_date(TARGET, render(describe()), sys.argv[1:]))
