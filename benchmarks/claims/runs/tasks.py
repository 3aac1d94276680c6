"""Many independent runs over the cores of this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Self, TypeVar

from reporting.progress import progress_bars

T = TypeVar("T")


class Workers:
    """Processes that runs are dealt to, one for each core; they end with the `with` block."""

    def __init__(self) -> None:
        count = len(os.sched_getaffinity(0))
        self._pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def map(self, label: str, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Their answers in order; how far it is shows on standard error. The first failure is raised."""
        futures: list[Future[T]] = [self._pool.submit(task) for task in tasks]
        with progress_bars() as progress:
            bar = progress.add_task(label, total=len(tasks))
            for future in as_completed(futures):
                future.result()
                progress.advance(bar)
        return [future.result() for future in futures]
