"""Python's reStructuredText to plain blocks: headings, signatures, prose and code.

Deliberately light: it knows the handful of constructs the documentation leans on, and lets the rest through.
A paragraph becomes one line, since hard wrapping teaches a small model nothing but where lines were cut.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import dropwhile


class Kind(Enum):
    """The kind of a block; TERM is the name of a glossary entry, MODULE a module's `name: synopsis`."""

    HEADING = "heading"
    MODULE = "module"
    SIGNATURE = "signature"
    TERM = "term"
    PROSE = "prose"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Block:
    """One block of text. `directive` is set for signatures ("function", "class", "exception", ...)."""

    kind: Kind
    text: str
    directive: str = ""


_DIRECTIVE = re.compile(r"\.\. ([a-zA-Z][\w:+-]*)::\s*(.*)")
_UNDERLINE = re.compile(r"([=\-~^\"'*#+`.:])\1{2,}$")
_TABLE_RULE = re.compile(r"[=+\-| ]{3,}$")
_ROLE_WITH_TARGET = re.compile(r":[\w:+-]+:`([^`<]+?)\s*<[^`>]*>`")
_ROLE = re.compile(r":[\w:+-]+:`[!~]?([^`]+)`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?")
_LITERAL = re.compile(r"``(.+?)``")
_EMPHASIS = re.compile(r"(?<![\w*`])\*{1,2}(?=\S)([^*\n]+?)(?<=\S)\*{1,2}(?![\w*`])")

_OBJECTS = {
    "function", "class", "method", "classmethod", "staticmethod", "decorator", "attribute", "data",
    "exception", "c:function", "c:macro", "c:type", "c:var", "c:member", "describe", "opcode",
    "coroutinefunction", "awaitablefunction", "coroutinemethod", "awaitablemethod", "abstractmethod",
    "option", "cmdoption",
    "envvar", "pdbcommand", "decoratormethod", "2to3fixer",
}  # fmt: skip
_ADMONITIONS = {
    "note": "Note:",
    "warning": "Warning:",
    "tip": "Tip:",
    "seealso": "See also:",
    "impl-detail": "CPython implementation detail:",
    "versionadded": "New in version {}:",
    "versionchanged": "Changed in version {}:",
    "deprecated": "Deprecated since version {}:",
    "deprecated-removed": "Deprecated since version {}:",
    "rubric": "{}",
}
_CODE = {
    "code-block", "sourcecode", "code", "doctest", "testcode", "productionlist", "parsed-literal",
    "highlight",
}  # fmt: skip
# Directives whose indented content is ordinary text, only the first line is markup.
_TRANSPARENT = {"glossary", "availability", "container", "only", "topic", "list-table", "table", "epigraph"}


def parse_blocks(source: str) -> list[Block]:
    """Return the readable blocks of a file, in order, without markup that has no text (indexes, comments)."""
    return list(_Reader(source).blocks())


def clean_inline(text: str) -> str:
    """Return a line of prose without roles, emphasis and link targets; literals keep single backquotes."""
    text = _ROLE_WITH_TARGET.sub(r"\1", text)
    text = _ROLE.sub(r"\1", text)
    text = _LINK.sub(r"\1", text)
    text = _LITERAL.sub(r"`\1`", text)
    text = _EMPHASIS.sub(r"\1", text)
    return re.sub(r"\s+", " ", text.replace("\\", "")).strip()


class _Reader:
    """Walks the paragraphs of a file, and remembers which indented content is code or dropped."""

    def __init__(self, source: str) -> None:
        self._paragraphs = [p.split("\n") for p in re.split(r"\n[ \t]*\n+", source.expandtabs().strip("\n"))]
        self._drop_above: int | None = None  # indented deeper than this: belongs to a dropped directive
        self._code_above: int | None = None
        self._code_base = 0
        self._glossary = False

    def blocks(self) -> Iterator[Block]:
        for lines in self._paragraphs:
            yield from self._paragraph([line.rstrip() for line in lines if line.strip()])

    def _paragraph(self, lines: list[str]) -> Iterator[Block]:
        if not lines:
            return
        indent = _indent(lines[0])
        if self._drop_above is not None and indent > self._drop_above:
            return
        self._drop_above = None
        if self._code_above is not None and indent > self._code_above:
            yield self._code(lines, indent)
            return
        self._code_above = None
        if (title := _title(lines)) is not None:
            yield Block(Kind.HEADING, clean_inline(title[0]))
            yield from self._paragraph(title[1])
        elif lines[0].lstrip().startswith(".."):
            yield from self._markup(lines, indent)
        elif lines[0].lstrip().startswith(">>>"):
            yield Block(Kind.CODE, _dedent(lines, indent))
        else:
            yield from self._prose(lines, indent)

    def _code(self, lines: list[str], indent: int) -> Block:
        self._code_base = min(self._code_base or indent, indent)
        return Block(Kind.CODE, _dedent(lines, self._code_base))

    def _markup(self, lines: list[str], indent: int) -> Iterator[Block]:
        match = _DIRECTIVE.match(lines[0].lstrip())
        if match is None:
            self._drop_above = indent
            # A label directly above a title, without a blank line between them.
            yield from self._paragraph(list(dropwhile(lambda line: _indent(line) > indent, lines[1:])))
            return
        name, argument = match.group(1), match.group(2)
        body = lines[1:]
        if name in _OBJECTS:
            yield from self._object(name, argument, body, indent)
        elif name in _ADMONITIONS:
            lead = _ADMONITIONS[name].format(argument.split(",")[0].strip())
            rest = "" if "{}" in _ADMONITIONS[name] else argument
            yield from self._prose([" " * indent + f"{lead} {rest}", *_without_fields(body)], indent)
        elif name == "module":
            yield Block(Kind.MODULE, f"{argument}: {_field(body, 'synopsis')}")
        elif name in _CODE:
            self._code_above, self._code_base = indent, 0
            if lines := _without_fields(body):
                yield self._code(lines, _indent(lines[0]))
        elif name in _TRANSPARENT:
            self._glossary = self._glossary or name == "glossary"
            yield from self._paragraph(_without_fields(body))
        else:
            self._drop_above = indent

    def _object(self, name: str, argument: str, body: list[str], indent: int) -> Iterator[Block]:
        yield Block(Kind.SIGNATURE, clean_inline(argument), directive=name)
        # Further signatures of the same object stand right below the first.
        while body and _indent(body[0]) > indent and "(" in body[0] and not body[0].strip().startswith(":"):
            yield Block(Kind.SIGNATURE, clean_inline(body[0]), directive=name)
            body = body[1:]
        if lines := _without_fields(body):
            yield from self._paragraph(lines)

    def _prose(self, lines: list[str], indent: int) -> Iterator[Block]:
        lines = [line for line in lines if not _TABLE_RULE.fullmatch(line.strip())]
        if not lines:
            return
        opens_term = self._glossary and not re.match(r"[*\-] ", lines[0].strip())
        if opens_term and len(lines) > 1 and _indent(lines[1]) > indent:
            yield Block(Kind.TERM, clean_inline(lines[0]))
            lines, indent = lines[1:], _indent(lines[1])
        if lines[-1].endswith("::"):
            self._code_above, self._code_base = indent, 0
            lines[-1] = lines[-1][:-1]
        for item in _items(lines):
            if (text := clean_inline(item).removesuffix(" :")) and text != ":":
                yield Block(Kind.PROSE, text)


def _items(lines: list[str]) -> Iterator[str]:
    """Yield a paragraph as one line, except that each item of a tight list or table row starts its own."""
    current: list[str] = []
    for line in lines:
        stripped = line.strip()
        if current and re.match(r"([*\-|+]|#\.|\d+\.|:\w[^:]*:)\s", stripped):
            yield " ".join(current)
            current = []
        current.append(re.sub(r"^\*\s", "- ", stripped))
    yield " ".join(current)


def _title(lines: list[str]) -> tuple[str, list[str]] | None:
    """Return the title that these lines open with and the lines after it, or None."""
    if len(lines) >= 3 and _UNDERLINE.match(lines[0]) and lines[0] == lines[2]:
        return lines[1], lines[3:]
    if len(lines) >= 2 and _UNDERLINE.match(lines[1]) and len(lines[1]) >= len(lines[0].strip()) - 2:
        return (lines[0], lines[2:]) if not _TABLE_RULE.fullmatch(lines[0]) else None
    return None


def _without_fields(lines: list[str]) -> list[str]:
    """Return the lines without `:option: value` fields at their head."""
    return list(dropwhile(lambda line: re.match(r":[\w-]+:(\s|$)", line.strip()), lines))


def _field(lines: list[str], name: str) -> str:
    values = (line.partition(f":{name}:")[2] for line in lines if line.strip().startswith(f":{name}:"))
    return clean_inline(next(values, ""))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _dedent(lines: list[str], base: int) -> str:
    return "\n".join(line[min(base, _indent(line)) :] for line in lines)
