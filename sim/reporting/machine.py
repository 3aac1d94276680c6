"""Facts that a figure must be read with: the machine it was measured on, and the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from runtime.process.processor import processor_name


def machine() -> dict[str, str]:
    """Return the facts by name; the load average is that of the last minute."""
    return {
        "commit": _commit(),
        "cpu": processor_name(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load average": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
    }


def _commit() -> str:
    root = Path(__file__).parents[2]
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "unknown"
    return answer.stdout.strip() or "unknown"
