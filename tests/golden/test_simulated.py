"""Simulations come out as they did, to the last bit.

For a wanted change: `python -m tests.golden.tables`, and look at what `git diff` shows of the tables.
"""

from __future__ import annotations

import pytest

from tests.golden.tables import CASES, FOLDER, outcome, text_of


@pytest.mark.parametrize("name", CASES)
def test_a_simulation_comes_out_as_it_did(name: str) -> None:
    stored = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert text_of(outcome(CASES[name])) == stored
