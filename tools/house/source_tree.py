"""The project's modules, what each of them imports and how long they are, read from the source."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONG_FILE = 400
GENERATED = {ROOT / "baton" / part for part in ("v1", "worker", "operators", "picker", "keda")}


@dataclass(frozen=True, slots=True)
class Import:
    """`target` is dotted and absolute; `from a import b` is `a.b`, whether b is a module or a name in it."""

    path: Path
    line: int
    target: str

    @property
    def package(self) -> str:
        return self.target.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.target}"


def packages() -> set[str]:
    """Top-level folders that hold Python."""
    folders = (path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
    return {folder.name for folder in folders if any(_python_files(folder))}


def modules(package: str) -> list[Path]:
    """The hand-written files of a package; it is an error to ask for one that has none."""
    files = sorted(path for path in _python_files(ROOT / package) if GENERATED.isdisjoint(path.parents))
    assert files, f"{package} holds no Python"
    return files


def product() -> list[Path]:
    """Return the hand-written files outside tests/."""
    return [path for package in sorted(packages() - {"tests"}) for path in modules(package)]


def imports(package: str) -> list[Import]:
    return [import_ for path in modules(package) for import_ in imports_of(path)]


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """Imports anywhere in the file: at its top, in a function, under TYPE_CHECKING."""
    return tuple(_find(ast.parse(path.read_text(encoding="utf-8"), str(path)), path))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True, slots=True)
class Size:
    """How much code there is, as `wc -l` counts it. `long_files` counts those of more than 400 lines."""

    files: int
    lines: int
    long_files: int


def measure(files: Sequence[Path]) -> Size:
    """Return the size of these files together."""
    counts = [path.read_bytes().count(b"\n") for path in files]
    return Size(len(counts), sum(counts), sum(count > LONG_FILE for count in counts))


def _python_files(folder: Path) -> Iterator[Path]:
    hidden = ("__pycache__", "node_modules")
    return (path for path in folder.rglob("*.py") if not any(part in hidden for part in path.parts))


def _find(tree: ast.Module, path: Path) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, path)
            for alias in node.names:
                yield Import(path, node.lineno, f"{base}.{alias.name}")


def _absolute(node: ast.ImportFrom, path: Path) -> str:
    if node.level == 0:
        assert node.module is not None
        return node.module
    above = path.relative_to(ROOT).parts[: -node.level]
    return ".".join([*above, node.module] if node.module else above)
