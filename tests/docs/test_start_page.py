"""The commands of docs/index.md that start a fleet and call it, run as they are written.

Only ports and the folder of the fleet are others, since more tests run at once.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.house.source_tree import ROOT

pytestmark = pytest.mark.integration
BLOCK = re.compile(r"^```sh run=tests/docs/test_start_page\.py\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands(run_dir: Path) -> list[list[str]]:
    """Return the commands of the page, of this interpreter's `baton` and about one folder."""
    (block,) = BLOCK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    found = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert {program for program, *_ in found} == {".venv/bin/baton"}
    return [[sys.executable, "-m", "baton.cli", *rest, "--run-dir", str(run_dir)] for _, *rest in found]


def test_a_fleet_starts_answers_and_ends(tmp_path: Path) -> None:
    up, generate, status = commands(tmp_path / "run")
    up += ["--port", "0", "--http-port", "0"]
    with subprocess.Popen(up, stdout=subprocess.PIPE, text=True, cwd=ROOT) as launcher:
        assert launcher.stdout is not None
        try:
            assert any("Ctrl-C" in line for line in launcher.stdout)
            asked = subprocess.run(generate, check=True, capture_output=True, text=True, cwd=ROOT)
            assert asked.stdout.strip()
            shown = subprocess.run(status, check=True, capture_output=True, text=True, cwd=ROOT)
            assert all(name in shown.stdout for name in ("prefill-0", "decode-0"))
        finally:
            launcher.send_signal(signal.SIGINT)
            rest = launcher.stdout.read()
    assert launcher.returncode == 0
    assert "All processes have stopped." in rest
