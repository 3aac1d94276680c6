"""Hides the modules that BATON_TESTS_HIDDEN names, as if their packages were not installed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

HIDDEN = frozenset(os.environ["BATON_TESTS_HIDDEN"].split())
_find_spec = PathFinder.find_spec


def find_spec(
    fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
) -> ModuleSpec | None:
    return None if fullname.partition(".")[0] in HIDDEN else _find_spec(fullname, path, target)


PathFinder.find_spec = find_spec  # type: ignore[method-assign]
