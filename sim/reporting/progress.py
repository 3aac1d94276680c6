"""The progress of a measurement, on standard error."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

T = TypeVar("T")


def progress_bars() -> Progress:
    """Return a context manager that shows a bar for each task added to it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))


def tracked(items: Sequence[T], label: str) -> Iterator[T]:
    """Yield items, and show how many are done."""
    with progress_bars() as bars:
        yield from bars.track(items, description=label)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[io.RawIOBase]:
    """Open a file, and show how much of it is read until the block ends."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as bars,
        bars.open(path, "rb", description=f"reading {path.name}") as file,
    ):
        yield cast(io.RawIOBase, file)
