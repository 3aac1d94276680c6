"""Types are told from schemas of any shape, and none takes long to read."""

from __future__ import annotations

from typing import Any

import pytest

from model_output.formats import schemas
from model_output.formats.schemas import types_of

ANY = types_of({}, {})
MANY = 1000


@pytest.fixture(autouse=True)
def follows_few_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that follows more references than a schema's size can excuse."""
    follow, followed = schemas.referred, list[object]()

    def counted(reference: object, root: object) -> object:
        followed.append(reference)
        assert len(followed) <= MANY
        return follow(reference, root)

    monkeypatch.setattr(schemas, "referred", counted)


def refers(*names: str) -> dict[str, Any]:
    return {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}


def test_references_and_alternatives_are_followed() -> None:
    root = {"$defs": {"a": {"oneOf": [{"type": "number"}, {"enum": ["x"]}]}, "b": {"$ref": "#/$defs/a"}}}
    assert types_of(refers("b"), root) == {"number", "integer", "string"}


def test_references_in_a_circle_add_nothing() -> None:
    own = {"anyOf": [{"$ref": "#/$defs/a"}] * MANY}
    assert types_of(own, {"$defs": {"a": own}}) == ANY
    either = {"anyOf": [*own["anyOf"][:9], {"type": "string"}]}
    assert types_of(either, {"$defs": {"a": either}}) == {"string"}


def test_a_schema_of_too_many_parts_allows_any_type() -> None:
    names = [f"d{place}" for place in range(MANY)]
    definitions = {name: refers(*names) for name in names}
    assert types_of(refers("d0"), {"$defs": definitions}) == ANY
    assert types_of({"anyOf": [{"type": "string"}] * 2 * MANY}, {}) == ANY
