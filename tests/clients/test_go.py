"""A client in Go that has nothing but the contract's stubs. CONTRIBUTING.md says what it needs."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from baton.fleet import Fleet, FleetSpec
from tests.fleet.driving import FEW
from tests.script_model import Script, build
from tools.house.source_tree import ROOT

pytestmark = [pytest.mark.go, pytest.mark.integration]

SOURCE = Path(__file__).parent / "go"
LIBRARIES = Path("/usr/share/gocode")
"""Where Debian keeps the sources of Go packages."""
PROTOS = ("baton/v1/generation.proto", "baton/v1/inference.proto", "baton/v1/errors.proto")
ANSWER = (
    '<thi¦nk>So¦, a¦ call.</th¦ink>On¦e.<tool_¦call>{¦"name": ¦"f", "argu¦ments": {"cmd": "a b"¦, "n": 1¦2}}¦'
    "</tool_call>"
)


def build_client(folder: Path) -> Path:
    """Make stubs with protoc, and the program from these."""
    shutil.copytree(SOURCE, folder / "src")
    plugins = [f"--go_out={folder / 'src'}", f"--go-grpc_out={folder / 'src'}"]
    _run(["protoc", f"-I{ROOT / 'proto'}", *plugins, *PROTOS], folder)
    _run(["go", "build", "-o", "client", "chat"], folder)
    return folder / "client"


def _run(command: Sequence[str | Path], folder: Path) -> str:
    go = {"GO111MODULE": "off", "GOPATH": f"{folder}:{LIBRARIES}", "GOCACHE": str(folder / "cache")}
    finished = subprocess.run(
        command, cwd=folder, env=os.environ | go, capture_output=True, text=True, check=False, timeout=240
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


async def test_a_go_program_sees_reasoning_and_calls(tmp_path: Path) -> None:
    client = await asyncio.to_thread(build_client, tmp_path / "go")
    model = build(tmp_path / "model", {"call": Script(ANSWER.split("¦"))}, byte_level=True)
    spec = FleetSpec(model=model, prefill=0, extra_args={"decode": FEW}, run_dir=tmp_path / "run")
    async with Fleet(spec) as fleet:
        command: list[str | Path] = [client, fleet.router_addresses[0], "from-go", "call"]
        lines = (await asyncio.to_thread(_run, command, tmp_path / "go")).splitlines()
    texts = {
        kind: "".join(line.split('"', 1)[1][:-1] for line in lines if line.startswith(f"{kind} "))
        for kind in ("reasoning", "content", "call 0 arguments")
    }
    assert texts == {
        "reasoning": "So, a call.",
        "content": "One.",
        "call 0 arguments": r"{\"cmd\": \"a b\", \"n\": 12}",
    }
    assert [line for line in lines if '"' not in line] == ["call 0 begins: f", "call 0 ends"]
