"""A log that cannot be written: nobody waits for it, and nobody fails by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.process import log
from runtime.process.log import BackgroundWriter, Lines
from tests.patience import PATIENCE_S
from tools.house.source_tree import ROOT

LOGGING = """
import sys
import structlog
from runtime.process.log import configure_logging
configure_logging("info", "json", worker="w1")
for number in range(int(sys.argv[1])):
    structlog.get_logger().info("said", number=number, padding="x" * 2000)
print("served")
"""


def logs_into(stderr: int, num_lines: int = 1000) -> str:
    """Return what a process prints after it has logged lines of two kilobytes there."""
    run = subprocess.run(
        [sys.executable, "-c", LOGGING, str(num_lines)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=stderr,
        check=True,
        timeout=PATIENCE_S,
    )
    return run.stdout.decode()


def test_a_pipe_that_nobody_reads_never_holds_a_process_up() -> None:
    reader, writer = os.pipe()
    assert logs_into(writer) == "served\n"
    os.close(writer)
    os.close(reader)


def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    assert logs_into(full) == "served\n"
    os.close(full)


def test_every_line_is_in_the_log_when_its_process_has_ended(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        logs_into(file.fileno(), 100)
    said = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [entry["number"] for entry in said] == list(range(100))
    assert {entry["worker"] for entry in said} == {"w1"}


def test_lines_that_were_lost_are_counted_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _data: bytes) -> None:
        raise OSError

    with (tmp_path / "log").open("wb") as file:
        lines = Lines(file.fileno())
        with monkeypatch.context() as patched:
            patched.setattr(log, "_write_all", full)
            for _ in range(3):
                lines.write("lost\n")
                lines.drain()
        lines.write("heard\n")
        lines.drain()
    told, heard = (tmp_path / "log").read_text().splitlines()
    # Three, and two lines that told of the first ones.
    assert json.loads(told) == {"event": "log_lines_lost", "so_far": 5}
    assert heard == "heard"


def test_what_waits_is_bounded_and_a_close_never_waits_for_ever() -> None:
    reader, stuck = os.pipe()
    writer = BackgroundWriter(stuck, 1 << 20, lambda _: None)
    taken = [writer.write("x" * (1 << 16)) for _ in range(40)]
    assert taken.count(True) < 20
    assert not taken[-1]
    assert not writer.close(0.1)
    os.close(reader)  # ends the write that is stuck
