"""No variable is called by a bare participle such as `found`, which does not say what a value is."""

import pytest

from tools.house.names import find_participles, participles_in
from tools.house.source_tree import ROOT, modules

CLEAN = (
    "benchmarks",
    "deploy",
    "gguf_model",
    "model_output",
    "runtime/process",
    "runtime/rpc",
    "runtime/security",
    "sim/reporting",
    "sim/workloads",
    "tools",
)
"""Folders without such names. The list only becomes longer."""


@pytest.mark.parametrize("folder", CLEAN)
def test_no_variable_is_called_by_a_participle(folder: str) -> None:
    files = [path for path in modules(folder.partition("/")[0]) if path.is_relative_to(ROOT / folder)]
    assert files
    names = [str(name) for path in files for name in participles_in(path)]
    assert not names, "\n".join(names)


def _names(source: str) -> list[tuple[str, str]]:
    return sorted((name.scope, name.name) for name in find_participles(source, "x.py"))


@pytest.mark.parametrize(
    "statement", ["found = 1", "for found in x: pass", "y = [found for found in x]", "if found := x: pass"]
)
def test_participles_are_found_wherever_a_name_is_bound(statement: str) -> None:
    assert _names(statement) == [("", "found")]
    assert _names(f"class A:\n    def f(self, told, *, asked):\n        {statement}") == [
        ("A.f", "asked"),
        ("A.f", "found"),
        ("A.f", "told"),
    ]


def test_a_participle_with_a_noun_and_a_field_are_left_alone() -> None:
    assert _names("num_found = asked_at = self.found = 1") == []
    assert _names("class A:\n    found: int") == []
