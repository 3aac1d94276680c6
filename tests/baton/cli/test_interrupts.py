"""Ctrl-C and the end of the terminal end every program without a traceback, however early they come."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
PROGRAMS = {
    "baton.cli": ["status"],
    "router": ["--listen", "127.0.0.1:0", "--redis", "unix:///nowhere", "--model", "demo_model"],
    "gateway": ["--listen", "127.0.0.1:0", "--router", "127.0.0.1:1"],
    "prefill_worker": ["--redis", "unix:///nowhere", "--model", "demo_model"],
    "decode_worker": ["--redis", "unix:///nowhere", "--model", "demo_model"],
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("imported", ["asyncio", "grpc"])
def test_an_early_ctrl_c_ends_a_program_without_a_traceback(program: str, imported: str) -> None:
    """Interrupt it when it has imported a module, of which there are many more to come."""
    command = [sys.executable, "-X", "importtime", "-m", program, *PROGRAMS[program]]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stderr is not None
        for line in started.stderr:
            if line.rpartition("|")[2].strip() == imported:
                started.send_signal(signal.SIGINT)
                break
        words = [line for line in started.stderr if not line.startswith("import time:")]
        code = started.wait(PATIENCE_S)
    assert not words
    assert code in {-signal.SIGINT, 128 + signal.SIGINT}
