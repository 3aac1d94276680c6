"""The chart's tests are left out only where no Helm can be had."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = shutil.which("make")
SAID = "The chart is not tested"
LEFT_OUT = "and not helm"

pytestmark = pytest.mark.skipif(MAKE is None, reason="needs make")


@pytest.fixture
def planned(tmp_path: Path) -> Callable[[str, bool], str]:
    """Return what `make test` would run on a machine of some kind, with or without a Helm on PATH."""

    def plan(machine: str, has_helm: bool) -> str:
        programs = {"uname": f"echo {machine}"} | ({"helm": "exit 1"} if has_helm else {})
        for name, does in programs.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
            (tmp_path / name).chmod(0o755)
        others = [place for place in os.environ["PATH"].split(":") if not Path(place, "helm").exists()]
        assert MAKE is not None
        run = subprocess.run(
            [MAKE, "--dry-run", "--no-print-directory", "test"],
            cwd=ROOT,
            env=os.environ | {"PATH": ":".join([str(tmp_path), *others])},
            capture_output=True,
            text=True,
            check=True,
        )
        return run.stdout

    return plan


@pytest.mark.parametrize(("machine", "has_helm"), [("x86_64", False), ("aarch64", True)])
def test_the_chart_is_tested_where_there_is_a_helm(
    machine: str, has_helm: bool, planned: Callable[[str, bool], str]
) -> None:
    commands = planned(machine, has_helm)
    assert "pytest" in commands
    assert LEFT_OUT not in commands
    assert SAID not in commands


def test_without_a_helm_make_says_what_is_left_out(planned: Callable[[str, bool], str]) -> None:
    commands = planned("aarch64", False)
    assert LEFT_OUT in commands
    assert SAID in commands
