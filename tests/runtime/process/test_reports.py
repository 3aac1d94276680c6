"""A process reports to its launcher in whole lines, whatever it logs meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
LINES = 3000
REPORTS_AND_LOGS = f"""
import threading
import structlog
from runtime.process.log import configure_logging
from runtime.process.reports import report

configure_logging("info", "json")
log, is_over = structlog.get_logger(), threading.Event()

def talk():
    while not is_over.is_set():
        log.info("talking")

threading.Thread(target=talk).start()
for place in range({LINES}):
    report(f"READY {{place}}")
is_over.set()
"""


def test_a_report_is_whole_among_log_lines_in_the_same_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REPORTS_AND_LOGS],
        cwd=CHECKOUT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("READY")] == [f"READY {n}" for n in range(LINES)]
    assert len(lines) > LINES
