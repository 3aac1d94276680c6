"""Finds variables named with a bare participle: `python -m tools.house.names` counts them by folder.

`found` or `asked` says what happened to a value. A noun says what the value is: `match`, `request`.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.house.source_tree import ROOT, modules, packages

PARTICIPLE = re.compile(
    r"_*(?:asked|began|begun|caught|chosen|drawn|found|given|got|had|heard|held|kept|known|learnt|left|made|met"
    r"|named|said|seen|sent|shown|stated|struck|taken|told|took|wanted|written)_*"
)
"""Names of one such word alone; `asked_at` and `num_found` already have a noun."""


@dataclass(frozen=True, slots=True)
class ParticipleName:
    """A participle that a file binds; `line` is where it first does so in that scope."""

    path: str
    line: int
    scope: str
    """Dotted names of the classes and functions around the variable; empty at the top of a module."""
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name} in {self.scope or 'the module'}"


@cache
def participles_in(path: Path) -> tuple[ParticipleName, ...]:
    """Return the participles that a file of the project binds, each once per function."""
    return tuple(find_participles(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))))


def find_participles(source: str, path: str) -> Iterator[ParticipleName]:
    """Find parameters, loop variables and assigned names; fields of classes are left out."""
    yield from dict.fromkeys(_in_body(ast.parse(source), path, ""))


def _in_body(parent: ast.AST, path: str, scope: str) -> Iterator[ParticipleName]:
    lines: dict[str, int] = {}
    inner: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] = []
    waiting = list(ast.iter_child_nodes(parent))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner.append(node)
            continue
        name, line = _binding(node)
        if PARTICIPLE.fullmatch(name) and not isinstance(parent, ast.ClassDef):
            lines[name] = min(lines.get(name, line), line)
        waiting += ast.iter_child_nodes(node)
    for name, line in lines.items():
        yield ParticipleName(path, line, scope, name)
    for function in inner:
        yield from _in_body(function, path, f"{scope}.{function.name}" if scope else function.name)


def _binding(node: ast.AST) -> tuple[str, int]:
    """Return the name that a node binds, and its line; an empty name if the node binds none."""
    match node:
        case ast.Name(id=name, lineno=line, ctx=ast.Store()) | ast.arg(arg=name, lineno=line):
            return name, line
        case (
            ast.ExceptHandler(name=str(name), lineno=line)
            | ast.MatchAs(name=str(name), lineno=line)
            | ast.MatchStar(name=str(name), lineno=line)
        ):
            return name, line
    return "", 0


def main() -> None:
    """Print how many such variables each folder has, or with `--list` where they are."""
    parser = argparse.ArgumentParser(prog="python -m tools.house.names", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print each variable with its file and line")
    args = parser.parse_args()
    files = (path for package in sorted(packages()) for path in modules(package))
    names = [name for path in files for name in participles_in(path)]
    if args.list:
        print(*names, sep="\n")
        return
    folders = Counter(str(Path(name.path).parent) for name in names)
    for folder, count in sorted(folders.items()):
        print(f"{count:5}  {folder}")
    print(f"{folders.total():5}  in {len(folders)} folders")


if __name__ == "__main__":
    main()
