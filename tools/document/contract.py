"""docs/api.md: what clients and operators call, read from the comments in proto/."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

from tools.document.markdown import table
from tools.house.source_tree import ROOT

FILES = (
    "baton/v1/inference.proto",
    "baton/v1/generation.proto",
    "baton/v1/errors.proto",
    "baton/operators/v1/fleet.proto",
)
HEADER = """# API reference

What routers serve over gRPC: to clients in the package `baton.v1`, and to operators in
`baton.operators.v1`. [grpc.md](grpc.md) shows the calls from Python, [typescript.md](typescript.md) from
Node.js, and [errors.md](errors.md) explains errors. `make docs` generates this page from the comments in
`proto/`, and a test fails when the two differ. The HTTP APIs are those of OpenAI ([openai.md](openai.md),
[responses.md](responses.md)) and Anthropic ([anthropic.md](anthropic.md)).
"""

_Field = FieldDescriptorProto
_Path = tuple[int, ...]
# The numbers of fields of descriptors, which paths to their comments are made of.
_SYNTAX, _MESSAGE, _ENUM, _SERVICE = 12, 4, 5, 6
_FIELD, _ONEOF, _METHOD, _VALUE = 2, 8, 2, 2


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the contract, with its comments by the path of what they are about."""

    proto: FileDescriptorProto
    comments: Mapping[_Path, str]

    def said_of(self, *path: int) -> str:
        """Return a comment as one line of each of its paragraphs."""
        return "\n\n".join(" ".join(part.split()) for part in self.comments.get(path, "").split("\n\n"))


def text() -> str:
    """Return the page."""
    return HEADER + "".join(f"\n{part}" for file in _read() for part in _file(file))


def _read() -> list[_File]:
    command = [
        str(Path(sys.executable).with_name("buf")),
        "build",
        "--as-file-descriptor-set",
        "--output",
        "-",
    ]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    files = {file.name: file for file in FileDescriptorSet.FromString(done.stdout).file}
    return [_File(files[name], _comments(files[name])) for name in FILES]


def _comments(file: FileDescriptorProto) -> dict[_Path, str]:
    return {
        tuple(location.path): re.sub(r"^ ", "", location.leading_comments, flags=re.MULTILINE)
        for location in file.source_code_info.location
    }


def _file(file: _File) -> Iterator[str]:
    yield f"## {file.proto.name.rpartition('/')[2]}\n"
    yield _with_lists(file.comments.get((_SYNTAX,), ""))
    for number, service in enumerate(file.proto.service):
        yield from _service(file, number, service)
    for number, message in enumerate(file.proto.message_type):
        yield from _message(file, number, message)
    for number, enum in enumerate(file.proto.enum_type):
        yield from _enum(file, number, enum)


def _with_lists(comment: str) -> str:
    """Return a comment of a file: paragraphs, and what is indented as a block."""
    parts = (
        f"```text\n{part.strip(chr(10))}\n```"
        if part.lstrip("\n").startswith("  ")
        else " ".join(part.split())
        for part in comment.rstrip().split("\n\n")
    )
    return "\n\n".join(parts) + "\n"


def _service(file: _File, number: int, service: ServiceDescriptorProto) -> Iterator[str]:
    yield f"### {service.name}\n\n{file.said_of(_SERVICE, number)}\n"
    for index, method in enumerate(service.method):
        request, response = (
            f"{'stream of ' if streams else ''}{_linked(name)}"
            for streams, name in (
                (method.client_streaming, method.input_type),
                (method.server_streaming, method.output_type),
            )
        )
        comment = file.said_of(_SERVICE, number, _METHOD, index)
        yield f"#### {service.name}.{method.name}\n\nTakes {request}, returns {response}.\n\n{comment}\n"


def _message(file: _File, number: int, message: DescriptorProto) -> Iterator[str]:
    yield f"### {message.name}\n\n{file.said_of(_MESSAGE, number)}\n"
    if message.field:
        yield table(("Field", "Type", "Meaning"), _fields(file, number, message))


def _fields(file: _File, number: int, message: DescriptorProto) -> Iterator[tuple[str, str, str]]:
    entries = {entry.name: entry for entry in message.nested_type if entry.options.map_entry}
    opened = set()
    for index, field in enumerate(message.field):
        is_alternative = field.HasField("oneof_index") and not field.proto3_optional
        if is_alternative and field.oneof_index not in opened:
            opened.add(field.oneof_index)
            name = message.oneof_decl[field.oneof_index].name
            yield (
                f"`{name}`",
                "one of those below",
                _cell(file.said_of(_MESSAGE, number, _ONEOF, field.oneof_index)),
            )
        kind = _type(field, entries) + (
            f", of `{message.oneof_decl[field.oneof_index].name}`" if is_alternative else ""
        )
        yield f"`{field.name}`", kind, _cell(file.said_of(_MESSAGE, number, _FIELD, index))


def _type(field: _Field, entries: Mapping[str, DescriptorProto]) -> str:
    entry = entries.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        key, value = (_scalar(part) for part in entry.field)
        return f"map of {key} to {value}"
    return (
        "repeated " if field.label == _Field.LABEL_REPEATED else "optional " if field.proto3_optional else ""
    ) + _scalar(field)


def _scalar(field: _Field) -> str:
    return (
        _linked(field.type_name)
        if field.type_name
        else _Field.Type.Name(field.type).removeprefix("TYPE_").lower()
    )


def _linked(name: str) -> str:
    """Return the name of a type, with a link if it is on this page."""
    short = name.rpartition(".")[2]
    is_here = name.startswith((".baton.v1.", ".baton.operators.v1."))
    return f"[{short}](#{short.lower()})" if is_here else f"`{name.removeprefix('.')}`"


def _enum(file: _File, number: int, enum: EnumDescriptorProto) -> Iterator[str]:
    yield f"### {enum.name}\n\n{file.said_of(_ENUM, number)}\n"
    rows = (
        (f"`{value.name}`", str(value.number), _cell(file.said_of(_ENUM, number, _VALUE, index)))
        for index, value in enumerate(enum.value)
    )
    yield table(("Value", "Number", "Meaning"), rows)


def _cell(paragraphs: str) -> str:
    return paragraphs.replace("\n\n", " ")
