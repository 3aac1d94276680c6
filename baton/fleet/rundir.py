"""The folder with one run's logs."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

KEPT_RUNS = 10


def runs_of(checkout: Path) -> Path:
    """Return the folder that contains the runs whose folder was not chosen by a flag."""
    return checkout / ".baton" / "runs"


def next_run_dir(checkout: Path) -> Path:
    """Create `.baton/runs/<n>`, one above the highest, and keep only the last `KEPT_RUNS`."""
    return _make_next(checkout, Path.mkdir)


@contextlib.contextmanager
def listed(checkout: Path, run_dir: Path) -> Iterator[bool]:
    """Keep a run in `.baton/runs`, where clients look for it, while the block lasts: one elsewhere by a link.

    Yields False if no link could be made.
    """
    link: Path | None = None
    is_listed = run_dir.resolve().parent == runs_of(checkout).resolve()
    if not is_listed:
        with contextlib.suppress(OSError):
            link = _make_next(checkout, lambda path: path.symlink_to(run_dir.resolve()))
    try:
        yield is_listed or link is not None
    finally:
        if link is not None:
            link.unlink(missing_ok=True)


def _make_next(checkout: Path, make: Callable[[Path], None]) -> Path:
    runs = runs_of(checkout)
    runs.mkdir(parents=True, exist_ok=True)
    (checkout / ".baton" / ".gitignore").write_text("*\n", encoding="utf-8")
    while True:
        numbers = sorted(int(entry.name) for entry in runs.iterdir() if entry.name.isdigit())
        folder = runs / str(numbers[-1] + 1 if numbers else 1)
        try:
            make(folder)
        except FileExistsError:  # another launch took the number
            continue
        for old in numbers[: -KEPT_RUNS + 1]:
            _remove(runs / str(old))
        return folder


def _remove(run: Path) -> None:
    if run.is_symlink():
        run.unlink(missing_ok=True)
    else:
        shutil.rmtree(run, ignore_errors=True)
