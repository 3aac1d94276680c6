"""The folders of product code, their modules, and whether their docstrings serve as maps."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tools.house.source_tree import ROOT

MAX_MODULES = 12
NEED_NO_MAP = {ROOT / "kernels": "stays empty, because Hugging Face has a package of that name"}


def modules_by_folder(files: Iterable[Path]) -> dict[Path, list[str]]:
    """Return the names of each folder's own modules; `__init__.py` is the folder itself."""
    names: dict[Path, list[str]] = defaultdict(list)
    for path in sorted(files):
        if path.name != "__init__.py":
            names[path.parent].append(path.stem)
    return dict(names)


def missing_from_map(folder: Path, files: Iterable[Path]) -> list[str]:
    """Return the modules and packages in `folder` that the docstring of its `__init__.py` does not name.

    `__main__` needs no mention. A name counts wherever it stands as a word of its own.
    """
    if folder in NEED_NO_MAP:
        return []
    inside = [path.relative_to(folder) for path in files if folder in path.parents]
    names = {path.parts[0].removesuffix(".py") for path in inside} - {"__init__", "__main__"}
    text = _docstring(folder / "__init__.py")
    return sorted(name for name in names if not re.search(rf"\b{re.escape(name)}\b", text))


def _docstring(path: Path) -> str:
    if not path.exists():
        return ""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
