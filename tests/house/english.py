"""Finds wording that the house does not want: in docstrings, loop variables and names of tests."""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.house.source_tree import ROOT

OPENINGS = re.compile(r"(?:Of|Whose|Who|What|As|That|Not so)\b")
ANSWERS = re.compile(r"(?:^|[.;]\s+)[Aa]nswers\b|\band answers (?:an?|the|what|how|if|whether)\b")
MAX_TEST_NAME = 60
"""Characters after `test_`."""


class Kind(enum.Enum):
    """The wordings that are looked for."""

    OPENING = "opening"
    """A docstring, of an attribute too, that begins with one of `OPENINGS`."""
    ANSWERS = "answers"
    """A function's docstring that says "answers" where it means "returns"."""
    LOOP_ONE = "loop_one"
    """A loop or comprehension whose variable is called `one`."""
    TEST_NAME = "test_name"
    """A test whose name is too long."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One place with an unwanted wording."""

    kind: Kind
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@cache
def findings_in(path: Path) -> tuple[Finding, ...]:
    """Return what is found in a file of the project."""
    name = str(path.relative_to(ROOT))
    return tuple(find(path.read_text(encoding="utf-8"), name, in_tests=name.startswith("tests/")))


def find(source: str, name: str, *, in_tests: bool) -> Iterator[Finding]:
    """Find the unwanted wordings in Python source; only tests have names of tests."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr):
            yield from _opening(node, name)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            yield from _loop_one(node, name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _answers(node, name)
            if in_tests and len(node.name.removeprefix("test_")) > MAX_TEST_NAME and _is_test(node):
                yield Finding(Kind.TEST_NAME, name, node.lineno, node.name)


def _opening(node: ast.Expr, name: str) -> Iterator[Finding]:
    if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        text = node.value.value.strip()
        if OPENINGS.match(text):
            yield Finding(Kind.OPENING, name, node.lineno, _first_line(text))


def _loop_one(node: ast.For | ast.AsyncFor | ast.comprehension, name: str) -> Iterator[Finding]:
    for target in ast.walk(node.target):
        if isinstance(target, ast.Name) and target.id == "one":
            yield Finding(Kind.LOOP_ONE, name, target.lineno, f"for one in {ast.unparse(node.iter)}")


def _answers(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[Finding]:
    text = ast.get_docstring(node) or ""
    if ANSWERS.search(text):
        yield Finding(Kind.ANSWERS, name, node.body[0].lineno, _first_line(text))


def _is_test(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return node.name.startswith("test_")


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
