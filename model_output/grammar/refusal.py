"""The refusal of a format, apart from its compiler: routers know it without loading llguidance."""

from __future__ import annotations

import re
from collections.abc import Callable


class GrammarRefused(ValueError):
    """The format cannot be guaranteed; the message says why."""


def in_words(error: str) -> str:
    """Return an error of llguidance's compiler as callers understand it: the keyword, and what is wrong.

    Its own texts quote the caller's whole pattern or grammar, and name options that no caller has.
    """
    if match := re.search(r"regex parse error:\n +([^\n]*)\n.*\nerror: ([^\n]*)", error, re.DOTALL):
        return f"the pattern {_short(match[1])}: {match[2]}"
    place = re.match(r"(?:at )?(\d+)\((\d+)\): ", error)
    where = f"line {place[1]}, column {place[2]}: " if place else ""
    text = error[place.end() :] if place else error
    for pattern, words in _WORDS:
        if match := re.search(pattern, text):
            return where + words(match)
    return where + text.partition("\n")[0].removesuffix(" (InternalError)")


def _quoted(names: str) -> str:
    return " and ".join(f"'{name}'" for name in re.findall(r'"([^"]+)"', names))


def _short(pattern: str) -> str:
    return pattern if len(pattern) <= 40 else f"{pattern[:37]}..."


_WORDS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"Unimplemented keys: \[(.*?)\]", lambda match: f"{_quoted(match[1])} cannot be guaranteed"),
    (r"^oneOf constraints", lambda _: "'oneOf' is guaranteed only where its schemas cannot overlap"),
    (r"^Unknown format: (.*)", lambda match: f"the 'format' {match[1]} cannot be guaranteed"),
    (
        r"^Resource '(.*)' is not present",
        lambda match: f"'$ref' is {match[1]}: no other document is read",
    ),
    (r"^Pointer '(.*)' does not exist", lambda match: f"'$ref' is #{match[1]}, which does not exist"),
    (
        r"^Unsatisfiable schema: Regex is empty",
        lambda _: "nothing satisfies it: its patterns and values exclude each other",
    ),
    (r"^Unsatisfiable schema: (.*)", lambda match: f"nothing satisfies it: {match[1]}"),
)
"""Patterns of llguidance's texts, and what to say instead."""
