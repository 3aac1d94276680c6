"""Values are what frozen dataclasses are."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, asdict, field, fields, replace

import pytest

from scheduling.value import value


@value
class Point:
    """Two numbers, and a list of its own."""

    x: int
    y: int = 2
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError(f"x is {self.x}; accepted: from 0")

    @property
    def sum(self) -> int:
        return self.x + self.y


@value
class Pair:
    x: int
    y: int


def test_fields_are_given_by_place_or_name_and_have_defaults() -> None:
    assert Point(1, 3).sum == Point(y=3, x=1).sum == 4
    assert [entry.name for entry in fields(Point)] == ["x", "y", "names"]
    first, second = Point(1), Point(1)
    assert (first.y, first.names) == (2, [])
    assert first.names is not second.names
    with pytest.raises(TypeError, match="x"):
        Point()  # type: ignore[call-arg] # as a caller might
    with pytest.raises(TypeError, match="z"):
        Point(1, z=3)  # type: ignore[call-arg] # as a caller might


def test_a_wrong_value_is_never_made() -> None:
    with pytest.raises(ValueError, match="x is -1"):
        Point(-1)


@pytest.mark.parametrize("name", ["x", "z"])
def test_nothing_changes_a_value(name: str) -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError, match=name):
        setattr(point, name, 2)
    with pytest.raises(FrozenInstanceError, match=name):
        delattr(point, name)
    assert point == Point(1)
    assert not hasattr(point, "__dict__")


def test_values_are_equal_by_class_and_fields() -> None:
    assert Pair(1, 2) == Pair(1, 2)
    assert hash(Pair(1, 2)) == hash(Pair(1, 2))
    assert Pair(1, 2) not in (Pair(2, 1), Point(1, 2), (1, 2))


def test_a_value_is_shown_matched_replaced_and_sent_like_a_dataclass() -> None:
    point = Point(1, names=["a"])
    assert repr(point) == "Point(x=1, y=2, names=['a'])"
    assert (type(point).__name__, type(point).__module__) == ("Point", __name__)
    match point:
        case Point(x, y, names):
            assert (x, y, names) == (1, 2, ["a"])
    assert replace(point, y=5) == Point(1, 5, ["a"])
    assert asdict(point) == {"x": 1, "y": 2, "names": ["a"]}
    pair = Pair(3, 4)
    assert pickle.loads(pickle.dumps(pair)) == pair
