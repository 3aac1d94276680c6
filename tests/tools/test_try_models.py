"""Model types are tried with tiny models, and docs/models.md says how that ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.try_models.__main__ import DOCUMENT
from tools.try_models.table import BEGIN, END, replaced, table
from tools.try_models.trial import Outcome, try_type

SERVED = ("llama", "smollm3", "deepseek_v2", "granitemoe")
REFUSED = ("falcon", "jamba", "nemotron")


def _said(model_type: str) -> str:
    """Return the line of the document that names a type."""
    lines = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2].splitlines()
    (line,) = (line for line in lines if f"`{model_type}`" in line)
    return line


@pytest.mark.parametrize("model_type", SERVED)
def test_a_type_that_the_document_calls_served_is_served(model_type: str) -> None:
    assert try_type(model_type) == Outcome(model_type, True)
    assert _said(model_type).startswith("**")


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_refused_type_is_refused_for_the_reason_in_the_document(model_type: str) -> None:
    outcome = try_type(model_type)
    assert not outcome.is_served
    assert _said(model_type) == f"| `{model_type}` | {outcome.reason} |"


def test_a_type_that_cannot_be_made_tiny_is_not_called_served() -> None:
    outcome = try_type("musicgen")
    assert outcome == Outcome("musicgen", False, outcome.reason)
    assert outcome.reason.startswith("not tried: cannot be made tiny (")


def test_the_table_lists_what_is_served_and_why_others_are_not() -> None:
    outcomes = [Outcome("a", True), Outcome("b", True), Outcome("c", False, "x is 1 | 2")]
    text = table(outcomes, ["a"], "5.0")
    assert "3 types" in text
    assert "**On the list:** `a`." in text
    assert "**Served with `--prove-model`:** `b`." in text
    assert "| `c` | x is 1 \\| 2 |" in text


def test_only_the_generated_part_is_replaced(tmp_path: Path) -> None:
    document = f"before {BEGIN} old {END} after"
    assert replaced(document, "new") == f"before {BEGIN}\n\nnew\n\n{END} after"
    with pytest.raises(ValueError, match="the document has no"):
        replaced("no marks", "new")
