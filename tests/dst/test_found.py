"""Runs that broke a promise once, each as small as it could be made: they keep all of them now."""

from pathlib import Path

import pytest

from tests.dst.run import play, virtual
from tests.dst.scenario import from_json

FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_a_run_that_broke_a_promise_keeps_it(path: Path) -> None:
    with virtual():
        outcome = play(from_json(path.read_text(encoding="utf-8")))
    assert outcome.broken is None, f"python -m tests.dst --replay {path}"
