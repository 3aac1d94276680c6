"""The structure explains itself: no circles, no crowded folders, and a map in each. See `exceptions.py`."""

from tests.house.exceptions import (
    HOW_TO_UPDATE,
    grown,
    listed,
    present_circles,
    present_crowded,
    present_without_map,
)


def test_no_imports_run_in_a_circle() -> None:
    assert present_circles() == listed()["circles"], HOW_TO_UPDATE


def test_no_folder_has_more_than_twelve_modules() -> None:
    assert present_crowded() == listed()["crowded"], HOW_TO_UPDATE


def test_every_package_docstring_names_what_is_in_the_folder() -> None:
    assert present_without_map() == listed()["without_map"], HOW_TO_UPDATE


def test_a_part_of_the_list_may_move_and_shrink_but_not_grow() -> None:
    before = {"circles": [["a", "b", "c"]], "crowded": ["x"], "opening": {"a.py": 2}}
    assert grown(before, {"circles": [["d", "e"]], "crowded": ["y"], "opening": {"b.py": 1, "c.py": 1}}) == []
    now = {"circles": [["a", "b"], ["c", "d"]], "crowded": ["x", "y"], "opening": {"a.py": 3}}
    assert grown(before, now) == ["circles (3 to 4)", "crowded (1 to 2)", "opening (2 to 3)"]
