"""The progress of a measurement, on standard error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")


def progress_bars() -> Progress:
    """Return a context manager that shows a bar for each task added to it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))


def tracked(items: Sequence[T], label: str) -> Iterator[T]:
    """Yield items, and show how many are done."""
    with progress_bars() as bars:
        yield from bars.track(items, description=label)
