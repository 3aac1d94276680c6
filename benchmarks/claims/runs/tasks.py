"""Run many independent simulations on the cores of this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Self, TypeVar

from reporting.progress import progress_bars

K = TypeVar("K")
T = TypeVar("T")


class Workers:
    """A pool of processes, one for each core; they end with the `with` block."""

    def __init__(self) -> None:
        count = len(os.sched_getaffinity(0))
        self._pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def per_seed(
        self, label: str, keys: Sequence[K], seeds: Sequence[int], run: Callable[[K, int], Callable[[], T]]
    ) -> dict[K, list[T]]:
        """Run `run(key, seed)` for all keys and seeds, and return each key's results, one per seed."""
        found = iter(self.map(label, [run(key, seed) for key in keys for seed in seeds]))
        return {key: [next(found) for _ in seeds] for key in keys}

    def map(self, label: str, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Return the results in order, with progress on standard error. Raise the first failure."""
        futures: list[Future[T]] = [self._pool.submit(task) for task in tasks]
        with progress_bars() as progress:
            bar = progress.add_task(label, total=len(tasks))
            for future in as_completed(futures):
                future.result()
                progress.advance(bar)
        return [future.result() for future in futures]
