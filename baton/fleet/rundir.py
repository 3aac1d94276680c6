"""The folder with one run's logs."""

from __future__ import annotations

import shutil
from pathlib import Path

KEPT_RUNS = 10


def runs_of(checkout: Path) -> Path:
    """Return the folder that contains the runs whose folder was not chosen by a flag."""
    return checkout / ".baton" / "runs"


def next_run_dir(checkout: Path) -> Path:
    """Create `.baton/runs/<n>`, one above the highest, and keep only the last `KEPT_RUNS`."""
    runs = runs_of(checkout)
    runs.mkdir(parents=True, exist_ok=True)
    (checkout / ".baton" / ".gitignore").write_text("*\n", encoding="utf-8")
    while True:
        numbers = sorted(int(entry.name) for entry in runs.iterdir() if entry.name.isdigit())
        folder = runs / str(numbers[-1] + 1 if numbers else 1)
        try:
            folder.mkdir()
        except FileExistsError:  # another launch took the number
            continue
        for old in numbers[: -KEPT_RUNS + 1]:
            shutil.rmtree(runs / str(old), ignore_errors=True)
        return folder
