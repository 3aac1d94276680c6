"""Imports that run in a circle.

The graph has an edge for every import statement, wherever it stands: at the top of a file, in a function, or
under TYPE_CHECKING. `from a import b` leads to the module a.b if there is one, otherwise to a. An import of
a.b does not count as an import of the package a, although Python runs `a/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.house.source_tree import imports_of, module_name

Graph = Mapping[str, frozenset[str]]


def import_graph(files: Iterable[Path]) -> Graph:
    """Return which modules of `files` each of them imports."""
    by_name = {module_name(path): path for path in files}
    return {
        name: frozenset(_resolve(found.target, by_name) for found in imports_of(path)) & by_name.keys()
        for name, path in by_name.items()
    }


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """Return the strongly connected components of more than one module, each sorted, the largest first."""
    reached = {name: _reachable(graph, name) for name in graph}
    found = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return sorted((circle for circle in found if len(circle) > 1), key=lambda circle: (-len(circle), circle))


def _resolve(target: str, modules: Mapping[str, Path]) -> str:
    """Return the module that an import of `target` loads, which may be a name inside the module."""
    if target in modules:
        return target
    return target.rpartition(".")[0]


def _reachable(graph: Graph, start: str) -> set[str]:
    """Return every module that imports lead to from `start`; it is one of them only in a circle."""
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return seen
