"""A fleet runs with the packages of deploy/requirements/fleet.lock alone, which `make demo` installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "deploy" / "requirements"
HOOK = Path(__file__).parent / "locked"
LIMIT_S = 240.0

pytestmark = pytest.mark.integration


def locked(name: str) -> dict[str, str]:
    """Return the versions of a lock file by package."""
    pins = re.findall(r"^([\w.-]+)==(\S+)", (LOCKS / name).read_text(encoding="utf-8"), re.MULTILINE)
    return {package.lower().replace("_", "-"): version for package, version in pins}


def environment() -> dict[str, str]:
    """Return the variables that hide from a process what only tests and linters need."""
    more = set(locked("dev.lock")) - set(locked("fleet.lock"))
    hidden = {
        module
        for module, packages in packages_distributions().items()
        if all(package.lower().replace("_", "-") in more for package in packages)
    }
    assert {"pytest", "matplotlib", "triton"} <= hidden
    assert not {"torch", "redis", "grpc", "baton"} & hidden
    return {**os.environ, "BATON_TESTS_HIDDEN": " ".join(hidden), "PYTHONPATH": f"{HOOK}:{ROOT}"}


def baton(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "baton.cli", *command],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_both_locks_have_the_same_versions() -> None:
    versions = locked("dev.lock")
    assert {package: versions.get(package) for package in locked("fleet.lock")} == locked("fleet.lock")


def test_the_demo_runs() -> None:
    demo = baton("demo")
    assert (demo.returncode, demo.stderr) == (0, "")
    assert "All processes have stopped." in demo.stdout


def test_a_simulation_runs_and_says_what_its_plots_need() -> None:
    assert baton("simulate", "--duration-s", "2", "--fleet", "1d").returncode == 0
    page = baton("simulate", "--report", "page.html")
    assert page.returncode == 2
    assert "matplotlib, which is not installed; `make setup` installs it" in page.stderr
