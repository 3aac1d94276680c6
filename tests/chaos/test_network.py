"""Processes with networks of their own, between which the kernel loses packets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.chaos.network import apart, why_not
from tools.house.source_tree import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.namespaces]


def links() -> str:
    return subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout


def test_packets_are_lost_and_nothing_is_left_behind() -> None:
    before = links()
    command = [*apart(), sys.executable, "-m", "tests.chaos.network_scene"]
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=150)
    assert ran.returncode == 0, ran.stderr
    assert links() == before


def test_networks_of_their_own_can_be_had_or_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not() == ""
    monkeypatch.setenv("PATH", "/nowhere")
    assert "unshare" in why_not()
