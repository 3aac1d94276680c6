"""Lines on stdout that the launcher of a process reads."""

from __future__ import annotations

import sys


def report(line: str) -> None:
    """Write a line in one piece: the log's thread may write to the same pipe at the same time."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
