from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from router.replay.codec import Codec, UnknownType


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Leaf:
    name: str


@dataclass(frozen=True, slots=True)
class Callback:
    what: object


@dataclass(frozen=True, slots=True)
class Holder:
    callback: Callback


@dataclass(frozen=True, slots=True)
class Places:
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plain:
    leaves: tuple[Leaf, ...]
    numbers: Sequence[int]
    pair: tuple[int, float]
    weights: Mapping[str, float]
    colour: Colour
    content: bytes
    height: float | None


def test_a_value_survives_as_json() -> None:
    encode, decode = Codec().of(Leaf | Places)
    for value in (Leaf("ä\ud800"), Places((1, 2))):
        assert decode(json.loads(json.dumps(encode(value)))) == value


def test_every_accepted_hint_survives() -> None:
    codec = Codec()
    encode, decode = codec.of(Plain)
    value = Plain((Leaf("a"),), [1, 2], (1, 0.1), {"x": float("inf")}, Colour.RED, b"\x00\xff", None)
    assert decode(json.loads(json.dumps(encode(value)))) == value
    assert codec.schema["Leaf"] == ["name"]


@pytest.mark.parametrize("hint", [object, set, dict[int, str], int | str, Holder])
def test_an_unknown_type_is_refused_by_name(hint: object) -> None:
    with pytest.raises(UnknownType, match=r"is .*(object|set|dict|int).*; accepted: int, float"):
        Codec().of(hint)


def test_the_field_of_an_unknown_type_is_named() -> None:
    with pytest.raises(UnknownType, match=r"Callback\.what is <class 'object'>"):
        Codec().of(Holder)


def test_a_row_of_another_length_is_refused() -> None:
    _, decode = Codec().of(Leaf)
    with pytest.raises(ValueError, match="Leaf has 2 fields; accepted: 1"):
        decode(["a", "b"])


def test_an_unknown_member_of_a_union_is_refused() -> None:
    _, decode = Codec().of(Leaf | Places)
    with pytest.raises(ValueError, match="'Root' is not one of Leaf, Places"):
        decode(["Root", []])
