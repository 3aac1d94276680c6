"""JSON bodies of HTTP requests: bounded before anything looks inside, read strictly, and the texts in them.

A parser makes a Python object for each value, so 4 MiB of `{}` take far more time and memory than a text of
that length. Bodies of real callers have a few thousand objects. Work on large bodies runs away from the loop.

The parts of a request that are left out are named in a header of the response, and in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import cache, partial
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar, get_args
from urllib.parse import quote

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from baton.wire.fields import shown
from gateway.serving.errors import ApiError, invalid
from gateway.serving.slo import Strict

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES = 64 << 10
"""Bodies beyond this are counted before they are parsed, and parsed in a thread."""
MAX_CONTAINERS = 32_768
"""Objects and lists in one body."""
MAX_NAMES = 65_536
"""Names of fields in one body."""
MAX_ENTRIES = 1 << 20
"""Entries of lists and objects in one body: a prompt of token ids has one for each."""
MAX_TEXTS = 1 << 18
"""Texts in a body whose marks have to be told from those in its texts."""
_OTHER_BYTES = bytes(set(range(256)) - set(b'"{}[],:'))

_large_work = ThreadPoolExecutor(1, thread_name_prefix="large-bodies")
"""One thread: large bodies wait for each other, and the loop has its turn after each."""


def excess(body: bytes) -> str:
    """Return what a JSON body has too much of, with what is accepted; empty if nothing."""
    if len(body) <= LARGE_BYTES or not _excess(body):
        return ""
    marks = body.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _OTHER_BYTES)
    num_texts = marks.count(b'"') // 2
    if num_texts > MAX_TEXTS:
        return f"{num_texts} texts; accepted: at most {MAX_TEXTS}"
    # Marks inside of texts do not count. If the body is not JSON, this is right up to its first error, where
    # a parser stops.
    return _excess(b"".join(marks.split(b'"')[::2]))


def _excess(marks: bytes) -> str:
    for what, found, most in (
        ("objects and lists", marks.count(b"{") + marks.count(b"["), MAX_CONTAINERS),
        ("names of fields", marks.count(b":"), MAX_NAMES),
        ("entries", marks.count(b","), MAX_ENTRIES),
    ):
        if found > most:
            return f"{found} {what}; accepted: at most {most}"
    return ""


async def away_from_loop(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of work on this many bytes, done at once if they are few."""
    if size <= LARGE_BYTES:
        return work(*args, **kwargs)
    run = partial(copy_context().run, work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_large_work, run)


IGNORED_HEADER = b"x-baton-ignored"
MAX_NAME, MAX_CHARACTERS = 96, 1024
"""Characters of one path in the header, and of all paths: callers may choose names as long as they like."""
_MORE = "..."
_SAFE = "[]$@:+"
"""Signs of a path that stand as they are; others than letters, digits and `_.-~` become %XX."""


@dataclass(slots=True)
class Ignored:
    """The paths of what one request has and this fleet does not serve, each once."""

    is_strict: bool = False
    """Whether the request is refused instead."""
    below: str = ""
    """The path at which the body lies that is looked at: a batch's line has it in a field."""
    _names: dict[str, None] = field(default_factory=dict)
    _size: int = 0

    def add(self, param: str) -> None:
        name = quote((self.below + param)[:MAX_NAME], safe=_SAFE)
        if name in self._names or _MORE in self._names:
            return
        if self._size + len(name) + 1 > MAX_CHARACTERS - len(_MORE):
            name = _MORE
        self._names[name] = None
        self._size += len(name) + 1

    def __str__(self) -> str:
        """Return the paths as the header has them; `...` at the end stands for more."""
        return ",".join(self._names)


ignored: ContextVar[Ignored | None] = ContextVar("ignored", default=None)
"""The parts that the HTTP request being served leaves out."""


def leave_out(param: str, message: str, *, code: str = "invalid_field") -> None:
    """Note that the part at this path is left out. Where requests are strict, raise `ApiError` instead."""
    known = ignored.get()
    if known is None:
        return
    if known.is_strict:
        raise invalid(param, message, code=code)
    known.add(param)


def leave_out_unless(param: str, value: object, accepted: object, reason: str = "") -> None:
    """Leave a field out if it is set, and not to the one value that is served."""
    if value not in (None, accepted):
        leave_out(param, f"{param} is {shown(value)}; accepted: {shown(accepted)}{reason}")


@contextmanager
def lying_in(name: str) -> Iterator[None]:
    """Name paths as those of a body that lies in this field of another one."""
    known = ignored.get() or Ignored()
    known.below = f"{name}."
    try:
        yield
    finally:
        known.below = ""


Body = TypeVar("Body", bound=Strict)

_extra_of = attrgetter("__pydantic_extra__")


async def read_body(request: Request, kind: type[Body], max_bytes: int) -> Body:
    """Parse the request's body. Raises `ApiError` that names the field, its value and what is accepted."""
    body = await _read(request, max_bytes)
    request.state.body_bytes = len(body)
    return await away_from_loop(len(body), parsed, kind, body)


async def converted(request: Request, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what work makes of the body that `read_body` has parsed, away from the loop if it is large."""
    return await away_from_loop(request.state.body_bytes, work, *args, **kwargs)


def parsed(kind: type[Body], body: bytes) -> Body:
    """Return what `read_body` does of a whole body."""
    refuse_excess(body)
    try:
        read = kind.model_validate_json(body)
    except ValidationError as error:
        raise explained(error) from None
    leave_out_unknown(read)
    return read


def read_part(kind: type[Body], given: object, *where: str | int) -> Body:
    """Return the part of a body at this path, once its kind is known. Raises `ApiError`."""
    try:
        part = kind.model_validate(given)
    except ValidationError as error:
        raise explained(error, *where) from None
    leave_out_unknown(part, *where)
    return part


def read_tools(
    kind: type[Body], tools: Sequence[Mapping[str, Any]] | None, served: str, accepted: str = ""
) -> Iterator[Body]:
    """Yield the tools of a body whose type is `served`, or missing. Raises `ApiError`."""
    for index, tool in enumerate(tools or ()):
        named = tool.get("type")
        if named in (None, served):
            yield read_part(kind, tool, "tools", index)
            continue
        where = f"tools[{index}]"
        message = f"{where}.type is {shown(named)}; accepted: {accepted or repr(served)}"
        if not isinstance(named, str):
            raise invalid(f"{where}.type", message)
        leave_out(where, message)


def leave_out_unknown(part: Strict, *where: str | int) -> None:
    """Take the fields that nobody knows out of a body's part, at any depth.

    One without a value says nothing. Raises `ApiError` for one that would decide what the output says.
    """
    if _has_unknown(part):
        _leave_out(part, *where)


def _has_unknown(part: Strict) -> bool:
    """Return whether a body's part has such fields at any depth. Few have, and a chat has many messages."""
    level = [part]
    while level:
        if any(map(_extra_of, level)):
            return True
        below: list[Strict] = []
        for kind in set(map(type, level)):
            for name, _ in _messages_in(kind):
                for value in [getattr(each, name) for each in level if type(each) is kind]:
                    if isinstance(value, list):
                        below += [entry for entry in value if _is_message(type(entry))]  # type: ignore[arg-type]  # types are hashable
                    elif value is not None and _is_message(type(value)):  # type: ignore[arg-type]  # types are hashable
                        below.append(value)
        level = below
    return False


def _leave_out(part: Strict, *where: str | int) -> None:
    unknown = part.__pydantic_extra__
    if unknown:
        for name, value in unknown.items():
            param = path((*where, name))
            if name not in part.unserved:
                if value not in (None, [], {}):
                    message = f"{param} is not a field that is served here"
                    leave_out(param, message, code="unknown_field")
            elif value:
                raise invalid(param, f"{param} is set; accepted: unset, as this fleet does not serve it")
        unknown.clear()
    for name, told in _messages_in(type(part)):
        value = getattr(part, name)
        if isinstance(value, list):
            for index, entry in enumerate(value):
                if _is_message(type(entry)):  # type: ignore[arg-type]  # types are hashable
                    _leave_out(entry, *where, told, index)
        elif _is_message(type(value)):  # type: ignore[arg-type]  # types are hashable
            _leave_out(value, *where, told)


@cache
def _is_message(kind: type) -> bool:
    """Return whether a value of this type is a message: pydantic's own check of instances is slow."""
    return issubclass(kind, Strict)


@cache
def _messages_in(kind: type[Strict]) -> tuple[tuple[str, str], ...]:
    """Return the fields that may have messages of their own, with their names in the body."""

    def has_message(annotation: Any) -> bool:
        is_message = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        return is_message or any(map(has_message, get_args(annotation)))

    return tuple(
        (name, field.alias or name)
        for name, field in kind.model_fields.items()
        if has_message(field.annotation)
    )


def refuse_excess(body: bytes) -> None:
    """Raise `ApiError` if JSON has more values than anybody needs, before any of them is made."""
    if found := excess(body):
        raise invalid("", f"the body has {found}", status=413, code="too_large")


async def _read(request: Request, max_bytes: int) -> bytes:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        message = f"content-encoding is {shown(encoding)}; accepted: unset, a body that is not compressed"
        raise invalid("content-encoding", message, status=415, code="unsupported_encoding")
    declared = request.headers.get("content-length", "0")
    pieces, size = [], int(declared) if declared.isdigit() else 0
    if size <= max_bytes:
        size = 0
        async for piece in request.stream():
            size += len(piece)
            if size > max_bytes:
                break
            pieces.append(piece)
    if size > max_bytes:
        message = f"the body has {size} bytes or more; accepted: at most {max_bytes}"
        raise invalid("", message, status=413, code="too_large")
    return b"".join(pieces)


def explained(error: ValidationError, *where: str | int) -> ApiError:
    """Return the error of the first wrong field; `where` is the path of what was read in the body."""
    errors = [
        (found, [part for part in found["loc"] if not _is_variant(part)])
        for found in error.errors(include_url=False)
    ]
    # A value that fits no member of a union has an error for each: take that of the one that it fits best.
    field = errors[0][0]["loc"][:1]
    first, names = max((found for found in errors if found[0]["loc"][:1] == field), key=lambda e: len(e[1]))
    if first["type"] == "json_invalid":
        reason = first["ctx"]["error"]
        return invalid("", f"the body is not JSON: {reason}", code="malformed_message")
    param = path((*where, *names))
    if first["type"] == "missing":
        return invalid(param, f"{param} is missing")
    accepted = " or ".join(dict.fromkeys(accepted_by(found) for found, parts in errors if parts == names))
    return invalid(param, f"{param or 'the body'} is {shown(first['input'], 80)}; accepted: {accepted}")


_ACCEPTED = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "null",
    "literal_error": "{expected}",
    "too_short": "{min_length} or more entries",
    "too_long": "at most {max_length} entries",
    "string_too_short": "{min_length} or more characters",
    "string_too_long": "at most {max_length} characters",
}
"""The values that a field accepts, by the type of pydantic's error."""


def accepted_by(error: ErrorDetails) -> str:
    """Return what a field with this error would accept."""
    return _ACCEPTED.get(error["type"], "another value").format(**error.get("ctx", {}))


TEXTS: Mapping[str, str] = {"text": "text"}
"""The types of parts that are served, each with the field that has its text."""


def text_of(content: str | Sequence[Mapping[str, Any]], where: str, texts: Mapping[str, str] = TEXTS) -> str:
    """Return a text, or the texts of its parts, a line each. Raises `ApiError` for parts of another kind.

    `where` is the path of the content in the body.
    """
    if isinstance(content, str):
        return content
    found = []
    for index, part in enumerate(content):
        kind = part.get("type")
        name = texts.get(kind) if isinstance(kind, str) else None
        text = None if name is None else part.get(name)
        if not isinstance(text, str):
            param, accepted = f"{where}[{index}].type", " or ".join(map(shown, texts))
            raise invalid(param, f"{param} is {shown(kind)}; accepted: {accepted}, with a text")
        found.append(text)
    return "\n".join(found)


def path(parts: Iterable[str | int]) -> str:
    """Return a path such as `messages[1].content`."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _is_variant(part: str | int) -> bool:
    """Return whether pydantic added this part to name a member of a union."""
    return isinstance(part, str) and (
        part in {"str", "int", "float", "bool"} or "[" in part or part[:1].isupper()
    )
