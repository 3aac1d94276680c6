"""`baton up` with several models: a fleet for each, one gateway before all, and one end."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.fleets import DEMO_MODEL
from tests.gateway.batches import CHATS, HELLO
from tests.patience import PATIENCE_S
from tools.house.source_tree import ROOT

pytestmark = pytest.mark.integration

MODELS = ["demo_model", "second_model"]


def test_up_starts_a_fleet_for_each_model_and_ends_them_together(tmp_path: Path) -> None:
    second_model, run_dir = tmp_path / MODELS[1], tmp_path / "run"
    shutil.copytree(DEMO_MODEL, second_model)
    baton = [sys.executable, "-m", "baton.cli"]
    flags = ["--port", "0", "--http-port", "0", "--prefill", "0", "--placement", "aggregated"]
    flags += ["--timed", "demo-cpu", "--model", str(DEMO_MODEL), "--model", str(second_model)]
    command = [*baton, "up", *flags, "--run-dir", str(run_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as launcher:
        assert launcher.stdout is not None
        printed = ""
        for said in launcher.stdout:
            printed += said
            if "Ctrl-C" in said:
                break
        url = re.search(r"http    (\S+),", printed)
        assert url is not None, printed
        try:
            for name in MODELS:
                assert f"model   {name}, at 127.0.0.1:" in printed
                answer = httpx.post(f"{url[1]}{CHATS}", json=HELLO | {"model": name}, timeout=PATIENCE_S)
                assert answer.json()["model"] == name
            looking = [*baton, "status", "--once", "--connect-s", "60", "--run-dir", str(run_dir)]
            shown = subprocess.run(looking, check=True, capture_output=True, text=True, cwd=ROOT).stdout
            assert all(f"Baton {name}" in shown for name in MODELS)
            told = subprocess.run([*looking, "--json"], check=True, capture_output=True, text=True, cwd=ROOT)
            assert [json.loads(row)["model"] for row in told.stdout.splitlines()] == [
                "demo_model",
                "second_model",
            ]
        finally:
            launcher.send_signal(signal.SIGINT)
            rest = launcher.stdout.read()
    assert launcher.returncode == 0
    assert "All processes have stopped." in rest
    assert not [*run_dir.glob("*/fleet.json")]
