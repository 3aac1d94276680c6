"""Docstrings, loop variables and test names are plain English."""

import pytest

from tests.house.english import Kind, find, findings_in
from tools.house.source_tree import modules, product


def test_no_file_has_unwanted_wording() -> None:
    found = [str(finding) for path in [*product(), *modules("tests")] for finding in findings_in(path)]
    assert not found, "\n".join(found)


def _kinds(source: str) -> list[Kind]:
    return [finding.kind for finding in find(source, "tests/test_x.py", in_tests=True)]


@pytest.mark.parametrize("text", ["Of the bucket.", "Whose end is wanted.", "Not so here.", "What it costs."])
def test_unwanted_openings_are_found_in_every_docstring(text: str) -> None:
    assert _kinds(f'"""{text}"""') == [Kind.OPENING]
    assert _kinds(f'x = 1\n"""{text}"""') == [Kind.OPENING]
    assert _kinds(f'class A:\n    def f(self):\n        """{text}"""') == [Kind.OPENING]


@pytest.mark.parametrize("text", ["Offers a block.", "Return what it costs.", "Not sold out.", "Thatch."])
def test_other_openings_are_left_alone(text: str) -> None:
    assert _kinds(f'"""{text}"""') == []


def test_functions_return_and_do_not_answer() -> None:
    assert _kinds('def f():\n    """Answers whether it fits."""') == [Kind.ANSWERS]
    assert _kinds('def f():\n    """Plays a trace and answers the result."""') == [Kind.ANSWERS]
    assert _kinds('def f():\n    """Compare prompts and answers."""') == []


def test_loops_and_comprehensions_over_one_are_found() -> None:
    assert _kinds("for one in x: pass") == [Kind.LOOP_ONE]
    assert _kinds("y = [one for place, one in x]") == [Kind.LOOP_ONE]
    assert _kinds("for number in x: pass") == []


def test_only_overlong_test_names_are_found() -> None:
    assert _kinds(f"def test_{'x' * 61}(): pass") == [Kind.TEST_NAME]
    assert _kinds(f"def test_{'x' * 60}(): pass") == []
    assert _kinds(f"def helper_{'x' * 61}(): pass") == []
