"""The bodies of calls in every notation, told apart by how they begin.

{"name": "f", "arguments": {...}}       one object, or several; in a list too
[f(a=1), g()]                           Python's notation
<function=f><parameter=a>1</parameter></function>
f[ARGS]{...}                            a name, and its arguments
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from model_output.formats.output import Output
from model_output.formats.schemas import parameter_types, type_of
from model_output.formats.source import Markers, Reader, Source
from model_output.formats.values import as_json, decoded, escaped, read_string, read_value

FUNCTION = "<function="
_PARAMETER_END = Markers(["\n</parameter>", "</parameter>"])
_NAME = re.compile(r"[\w.-]*")
_TAG_NAME = re.compile(r"[^<>\s]*")
_ID = re.compile(r"[A-Za-z0-9]*")
_ARGUMENTS = frozenset({"arguments", "parameters"})


def read_calls(source: Source, output: Output) -> Reader[bool]:
    """Read the calls that come next.

    Returns False where what comes is not a call, or not the rest of one; what the source kept then belongs to
    the message.
    """
    yield from source.skip_space()
    char = yield from source.peek()
    if char == "{":
        return (yield from _read_objects(source, output, closer=""))
    if char == "[":
        source.skip()
        yield from source.skip_space()
        if (yield from source.peek()) == "{":
            return (yield from _read_objects(source, output, closer="]"))
        return (yield from _read_python(source, output))
    if char == "<" and (yield from source.take(FUNCTION)):
        return (yield from read_function(source, output))
    return (yield from _read_named(source, output))


def _read_objects(source: Source, output: Output, closer: str) -> Reader[bool]:
    while (yield from _read_object(source, output)):
        yield from source.skip_space()
        char = yield from source.peek()
        if closer and char == closer:
            source.skip()
            return True
        if char in {",", ";"}:
            source.skip()
            yield from source.skip_space()
            char = yield from source.peek()
        elif not closer and char != "{":
            return True
        if char != "{":
            return False
    return False


@dataclass(slots=True)
class _Call:
    """The parts of a call that have been read so far."""

    name: str = ""
    held: str | None = None
    """Arguments that came before the name; empty if they are not an object."""
    is_begun: bool = False


def _read_object(source: Source, output: Output) -> Reader[bool]:
    source.skip()
    call = _Call()
    while True:
        yield from source.skip_space()
        if (yield from source.take("}")):
            break
        if not (yield from source.take(",")) and not (yield from _read_field(source, output, call)):
            return False
    if not call.name:
        return False
    if not call.is_begun:
        _whole(output, source, call.name, "{}")
    source.keep()
    return True


def _read_field(source: Source, output: Output, call: _Call) -> Reader[bool]:
    key = yield from _read_text(source)
    yield from source.skip_space()
    if key is None or not (yield from source.take(":")):
        return False
    yield from source.skip_space()
    if key == "name" and not call.name:
        call.name = (yield from _read_text(source)) or ""
        if not output.knows(call.name) or call.held == "":
            return False
        if call.held is not None:
            call.is_begun = _whole(output, source, call.name, call.held)
        return True
    if key in _ARGUMENTS and call.name and not call.is_begun:
        call.is_begun = True
        return (yield from _read_arguments(source, output, call.name))
    pieces: list[str] = []
    if (yield from read_value(source, pieces.append)) is not None:
        return False
    if key in _ARGUMENTS and call.held is None:
        call.held = _object("".join(pieces))
    return True


def _read_arguments(source: Source, output: Output, name: str) -> Reader[bool]:
    """Read the arguments of a call: an object, or one inside a string, or nothing."""
    if (yield from source.peek()) == "{":
        return (yield from stream_arguments(source, output, name))
    pieces: list[str] = []
    if (yield from read_value(source, pieces.append)) is not None:
        return False
    arguments = _object("".join(pieces))
    return bool(arguments) and _whole(output, source, name, arguments)


def stream_arguments(source: Source, output: Output, name: str) -> Reader[bool]:
    """Read an object, the arguments of a call. Returns False as `read_calls` does."""
    output.begin(name)
    source.kept()
    unread = yield from read_value(source, output.arguments)
    source.keep(unread or "")
    if unread is None:
        output.complete()
    return unread is None


def _whole(output: Output, source: Source, name: str, arguments: str) -> bool:
    output.begin(name)
    output.arguments(arguments)
    output.complete()
    source.keep()
    return True


def _object(arguments: str) -> str:
    """Return arguments as a JSON object; empty if they are not one."""
    try:
        value = json.loads(arguments)
        if isinstance(value, str):
            arguments, value = value, json.loads(value, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return ""
    return arguments if isinstance(value, dict) else "{}" if value is None else ""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _read_text(source: Source) -> Reader[str | None]:
    """Return the string that comes next; None if something else does."""
    pieces: list[str] = []
    return decoded(pieces) if (yield from read_string(source, pieces.append)) else None


def _read_word(source: Source, pattern: re.Pattern[str]) -> Reader[str]:
    pieces: list[str] = []
    yield from source.run(pattern, pieces.append)
    return "".join(pieces)


def _read_named(source: Source, output: Output) -> Reader[bool]:
    name = yield from _read_word(source, _NAME)
    if not output.knows(name):
        return False
    if (yield from source.take("[CALL_ID]")):
        yield from source.run(_ID, lambda _: None)
    yield from source.take("[ARGS]")
    yield from source.skip_space()
    if (yield from source.peek()) != "{":
        return False
    return (yield from stream_arguments(source, output, name))


def _read_python(source: Source, output: Output) -> Reader[bool]:
    while True:
        name = yield from _read_word(source, _NAME)
        yield from source.skip_space()
        if not output.knows(name) or not (yield from source.take("(")):
            return False
        output.begin(name)
        output.arguments("{")
        source.keep()
        if not (yield from _read_keywords(source, output)):
            return False
        yield from source.skip_space()
        if (yield from source.take("]")):
            return True
        if not (yield from source.take(",")):
            return False
        yield from source.skip_space()


def _read_keywords(source: Source, output: Output) -> Reader[bool]:
    separator = ""
    while True:
        yield from source.skip_space()
        if (yield from source.take(")")):
            output.arguments("}")
            output.complete()
            source.keep()
            return True
        key = yield from _read_word(source, _NAME)
        yield from source.skip_space()
        if not key or not (yield from source.take("=")):
            return False
        output.arguments(f'{separator}"{escaped(key)}": ')
        source.kept()
        unread = yield from read_value(source, output.arguments)
        source.keep(unread or "")
        if unread is not None:
            return False
        yield from source.skip_space()
        if not (yield from source.take(",")) and (yield from source.peek()) != ")":
            return False
        separator = ", "


def read_function(source: Source, output: Output) -> Reader[bool]:
    """Read the rest of a call that begins with `<function=`."""
    name = yield from _read_word(source, _TAG_NAME)
    if not output.knows(name) or not (yield from source.take(">")):
        return False
    output.begin(name)
    output.arguments("{")
    source.keep()
    separator = ""
    while True:
        yield from source.skip_space()
        if (yield from source.take("</function>")):
            output.arguments("}")
            output.complete()
            source.keep()
            return True
        if not (yield from source.take("<parameter=")):
            return False
        key = yield from _read_word(source, _TAG_NAME)
        if not (yield from source.take(">")):
            return False
        output.arguments(f'{separator}"{escaped(key)}": ')
        yield from source.take("\n")
        source.kept()
        if not (yield from _read_parameter(source, output, parameter_types(output.tool(name), key))):
            return False
        source.keep()
        separator = ", "


def _read_parameter(source: Source, output: Output, types: frozenset[str]) -> Reader[bool]:
    """Read a value up to the end of its tag: text as it comes, everything else when it is complete."""
    if types == {"string"}:
        output.arguments('"')
        if not (yield from source.until(_PARAMETER_END, lambda text: output.arguments(escaped(text)))):
            return False
        output.arguments('"')
        return True
    pieces: list[str] = []
    if not (yield from source.until(_PARAMETER_END, pieces.append)):
        source.keep("".join(pieces))
        return False
    text = "".join(pieces)
    value = as_json(text)
    output.arguments(value if value and type_of(value) in types else f'"{escaped(text)}"')
    return True
