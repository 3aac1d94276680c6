"""Simulations come out as they did, to the last bit.

For a wanted change: `python -m tests.golden.tables`, and look at what `git diff` shows of the tables. On a
host that rounds differently (`host.py`) a simulation soon takes another course, so there each run must only
keep about as many promises.
"""

from __future__ import annotations

import json

import pytest

from tests.golden.host import ROUNDS_AS_STORED
from tests.golden.tables import CASES, FOLDER, outcome, text_of

LONG = ("all-policies", "small-model")
NAMES = [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in CASES]


@pytest.mark.parametrize("name", NAMES)
def test_a_simulation_comes_out_as_it_did(name: str) -> None:
    stored, found = (FOLDER / f"{name}.json").read_text(encoding="utf-8"), outcome(CASES[name])
    if ROUNDS_AS_STORED:
        assert text_of(found) == stored
        return
    for before, now in zip(json.loads(stored)["runs"], found["runs"], strict=True):
        assert (now["arm"], now["seed"]) == (before["arm"], before["seed"])
        good_share = before["metrics"]["good_share"]
        assert now["metrics"]["good_share"] == pytest.approx(good_share, abs=0.05)
