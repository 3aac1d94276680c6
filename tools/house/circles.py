"""Imports that run in a circle: between modules, and between folders.

The graph of modules has an edge for every import statement, wherever it stands: at the top of a file, in a
function, or under TYPE_CHECKING. `from a import b` leads to the module a.b if there is one, otherwise to a.
An import of a.b does not count as an import of the package a, although Python runs `a/__init__.py`.

The graph of folders has an edge where a module of one folder imports a module of another one; a folder within
a folder is another one. A package's own module, `a/__init__.py`, belongs to the folder a. A program,
`a/__main__.py`, belongs to no folder: nothing imports it, so it stands above all that it starts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.house.source_tree import imports_of, module_name

Graph = Mapping[str, frozenset[str]]


def import_graph(files: Iterable[Path]) -> Graph:
    """Return which modules of `files` each of them imports."""
    by_name = {module_name(path): path for path in files}
    return {
        name: frozenset(_resolve(import_.target, by_name) for import_ in imports_of(path)) & by_name.keys()
        for name, path in by_name.items()
    }


def folder_graph(files: Iterable[Path]) -> Graph:
    """Return which folders of `files`, as dotted names, the modules of each of them import."""
    paths = list(files)
    folders = {module_name(path): _folder(path) for path in paths}
    graph: dict[str, set[str]] = defaultdict(set)
    for name, imported in import_graph(paths).items():
        graph[folders[name]] |= {folders[other] for other in imported} - {folders[name]}
    return {name: frozenset(others) for name, others in graph.items()}


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """Return the strongly connected components of more than one node, each sorted, the largest first."""
    reached = {name: _reachable(graph, name) for name in graph}
    components = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return sorted(
        (circle for circle in components if len(circle) > 1), key=lambda circle: (-len(circle), circle)
    )


def _resolve(target: str, modules: Mapping[str, Path]) -> str:
    """Return the module that an import of `target` loads, which may be a name inside the module."""
    if target in modules:
        return target
    return target.rpartition(".")[0]


def _folder(path: Path) -> str:
    """Return the dotted name of a module's folder; that of the module itself if it is a program."""
    name = module_name(path)
    return name if path.name in {"__init__.py", "__main__.py"} else name.rpartition(".")[0]


def _reachable(graph: Graph, start: str) -> set[str]:
    """Return every node that edges lead to from `start`; it is one of them only in a circle."""
    reached: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph[name]
    return reached
