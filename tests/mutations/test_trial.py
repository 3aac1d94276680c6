"""A test without its guard may do anything: hang, fail, or leave processes behind."""

from __future__ import annotations

import os
import selectors
from pathlib import Path

import pytest

from tests.mutations.trial import Verdict, trial

CHILD = "subprocess.Popen(['sleep', '600'], start_new_session={}).pid"
STRAYS = f"""
import subprocess, time
def test_it():
    strays = {CHILD.format(False)}, {CHILD.format(True)}
    with open("strays", "w") as pipe:
        print(*strays, file=pipe)
"""


@pytest.mark.integration
@pytest.mark.parametrize("verdict", [Verdict.HUNG, Verdict.PASSED])
def test_no_process_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: Verdict) -> None:
    """In its group or in a session of its own, though the test hangs or is over."""
    monkeypatch.setattr("tests.mutations.trial.CLEANING_S", 0.0)  # there is no reaper to wait for
    waits = "    time.sleep(600)\n" if verdict is Verdict.HUNG else ""
    (tmp_path / "test_it.py").write_text(STRAYS + waits)
    os.mkfifo(tmp_path / "strays")
    with trial(tmp_path, "test_it.py") as run:
        strays = [os.pidfd_open(int(pid)) for pid in (tmp_path / "strays").read_text().split()]
        assert run.outcome(0.0 if waits else 60.0).verdict is verdict
    for stray in strays:
        with selectors.DefaultSelector() as selector:  # takes any number of a descriptor
            selector.register(stray, selectors.EVENT_READ)
            assert selector.select(10.0), "still runs"
        os.close(stray)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("body", "verdict", "said"),
    [
        ("assert 1 == 2", Verdict.FAILED, " - assert 1 == 2"),
        (")", Verdict.NOT_RUN, "ERROR test_it.py"),
    ],
)
def test_what_cannot_be_run_is_never_taken_for_a_failure(
    tmp_path: Path, body: str, verdict: Verdict, said: str
) -> None:
    (tmp_path / "test_it.py").write_text(f"def test_it():\n    {body}\n")
    with trial(tmp_path, "test_it.py") as run:
        outcome = run.outcome(60.0)
    assert outcome.verdict is verdict
    assert outcome.said.endswith(said)
