"""Routers behind a name of a real DNS server, which come and go."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.baton.discovery.names_scene import SCENES
from tools.house.source_tree import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.namespaces]


@pytest.mark.parametrize("scene", SCENES)
def test_routers_behind_a_name(scene: str) -> None:
    apart = ("unshare", "--map-root-user", "--mount", "--net")
    command = [*apart, sys.executable, "-m", "tests.baton.discovery.names_scene", scene]
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=150)
    assert ran.returncode == 0, ran.stderr
