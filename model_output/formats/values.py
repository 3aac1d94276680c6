"""Conversion of values as models write them to JSON, piece by piece.

Models write JSON, Python's literals, or a mixture. One reader takes both: either kind of quotes, `True` and
`true`, commas at the end, line breaks in strings. It emits only JSON, so whatever it has emitted so far is
the beginning of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from model_output.formats.source import Reader, Source

_CONTAINERS = {"{": ("}", "{", "}"), "[": ("]", "[", "]"), "(": (")", "[", "]")}
"""By the opening character: what closes it, and both in JSON."""
_WORDS = {"true": "true", "True": "true", "false": "false", "False": "false", "null": "null", "None": "null"}
_SCALAR = re.compile(r"[-+.\w]*", re.ASCII)
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)
_PYTHON_NUMBER = re.compile(r"[-+]?[\d_]*+\.?[\d_]*+(?:[eE][-+]?\d+)?", re.ASCII)
_PLAIN = {quote: re.compile(rf"[^{quote}\\\x00-\x1f]*") for quote in "\"'"}
_SAME_ESCAPES = frozenset('"\\/bfnrt')
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_HEX = frozenset("0123456789abcdefABCDEF")

Emit = Callable[[str], None]


@dataclass(slots=True)
class _Container:
    closer: str
    end: str
    has_items: bool = False


def read_value(source: Source, emit: Emit) -> Reader[str | None]:
    """Read one value and emit it as JSON.

    Returns None, or the text that was read without being emitted if what comes is not the rest of a value.
    """
    nested: list[_Container] = []
    while True:
        yield from source.skip_space()
        char = yield from source.peek()
        if nested and char != nested[-1].closer:
            if nested[-1].has_items:
                emit(", ")
            nested[-1].has_items = True
            if nested[-1].end == "}":
                if not (yield from read_string(source, emit)):
                    return ""
                yield from source.skip_space()
                if not (yield from source.take(":")):
                    return ""
                emit(": ")
                yield from source.skip_space()
                char = yield from source.peek()
        if char in _CONTAINERS:
            source.skip()
            closer, begin, end = _CONTAINERS[char]
            emit(begin)
            nested.append(_Container(closer, end))
            continue
        if not nested or char != nested[-1].closer:
            unread = yield from _read_scalar(source, emit)
            if unread is not None:
                return unread
        if not (yield from _close(source, emit, nested)):
            return ""
        if not nested:
            return None


def _close(source: Source, emit: Emit, nested: list[_Container]) -> Reader[bool]:
    """Close what ends here, up to the next comma. Returns False if neither comes."""
    while nested:
        yield from source.skip_space()
        char = yield from source.peek()
        if char == nested[-1].closer:
            source.skip()
            emit(nested.pop().end)
        elif char == ",":
            source.skip()
            return True
        else:
            return False
    return True


def _read_scalar(source: Source, emit: Emit) -> Reader[str | None]:
    char = yield from source.peek()
    if char in _PLAIN:
        return None if (yield from read_string(source, emit)) else ""
    pieces: list[str] = []
    yield from source.run(_SCALAR, pieces.append)
    word = "".join(pieces)
    if source.is_cut and not (yield from source.peek()):
        return word  # it may have gone on
    literal = _WORDS.get(word) or _number(word)
    if not literal:
        return word
    emit(literal)
    return None


def _number(word: str) -> str:
    """Return a number as JSON; nothing if it is not one."""
    if _JSON_NUMBER.fullmatch(word):
        return word
    if not _PYTHON_NUMBER.fullmatch(word):
        return ""
    try:
        value = float(word) if any(char in word for char in ".eE") else int(word)
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return ""


def read_string(source: Source, emit: Emit) -> Reader[bool]:
    """Read one string and emit it as JSON. Returns False if there is none, or if it does not end."""
    quote = yield from source.peek()
    if quote not in _PLAIN:
        return False
    source.skip()
    emit('"')

    def emit_plain(text: str) -> None:
        emit(text.replace('"', '\\"'))

    while True:
        yield from source.run(_PLAIN[quote], emit_plain)
        char = yield from source.peek()
        if not char:
            return False
        source.skip()
        if char == quote:
            emit('"')
            return True
        emit((yield from _read_escape(source)) if char == "\\" else escaped(char))


def _read_escape(source: Source) -> Reader[str]:
    """Return an escape as JSON has it. A backslash before anything else stands for itself, as in Python."""
    char = yield from source.peek()
    if char in _SAME_ESCAPES and char:
        source.skip()
        return "\\" + char
    if char == "'":
        source.skip()
        return "'"
    if char not in _HEX_DIGITS:
        return "\\\\" if char or not source.is_cut else ""
    source.skip()
    digits = ""
    while len(digits) < _HEX_DIGITS[char]:
        digit = yield from source.peek()
        if digit not in _HEX or not digit:
            return f"\\\\{char}{digits}" if digit or not source.is_cut else ""
        source.skip()
        digits += digit
    code = int(digits, 16)
    return json.dumps(chr(code))[1:-1] if code <= 0x10FFFF else f"\\\\{char}{digits}"


def escaped(text: str) -> str:
    """Return text as it stands in a JSON string, without the quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def decoded(pieces: list[str]) -> str:
    """Return the text of a JSON string that was emitted in pieces."""
    return str(json.loads("".join(pieces)))


def as_json(text: str) -> str:
    """Return the JSON of a whole value as a model writes it; empty if it is not one."""
    source, pieces = Source(), list[str]()
    source.feed(text)
    source.end()

    def read() -> Reader[bool]:
        unread = yield from read_value(source, pieces.append)
        yield from source.skip_space()
        return unread is None and not (yield from source.peek())

    return "".join(pieces) if finished(read()) else ""


def finished(reader: Reader[bool]) -> bool:
    """Return the result of a reader whose source has ended."""
    try:
        next(reader)
    except StopIteration as end:
        return bool(end.value)
    raise AssertionError("a reader waits although its source has ended")
