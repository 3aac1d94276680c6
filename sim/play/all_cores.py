"""Plays runs in processes, one for each core."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing.sharedctypes import Synchronized
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")
PROGRESS_EVERY_S = 0.2

Task = Callable[[Callable[[], None]], T]
"""Plays a run in another process, and calls its argument at each arrival of a request."""

_arrivals: Synchronized[int]
"""In a process that plays: how many requests have arrived in all of them."""


def on_all_cores(
    tasks: Iterable[tuple[K, Task[T]]], count_arrivals: Callable[[int], None] = lambda _: None
) -> Generator[tuple[K, T], None, None]:
    """Yield each key with the result of its task, as they end, and say how many requests arrive meanwhile.

    Tasks and results are pickled. The first failure is raised; tasks that have not begun are given up then,
    as they are if nobody asks for more.
    """
    num_cores, spawn = len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn")
    arrivals: Synchronized[int] = spawn.Value("Q")
    num_counted = 0
    rest, playing = iter(tasks), dict[Future[T], K]()
    pool = ProcessPoolExecutor(num_cores, spawn, _begin, (arrivals,))
    try:
        while True:
            # Two for each process, so that none waits for its next one, and few are held in memory.
            while len(playing) < 2 * num_cores and (entry := next(rest, None)) is not None:
                playing[pool.submit(_play, entry[1])] = entry[0]
            if not playing:
                return
            ended = wait(playing, PROGRESS_EVERY_S, FIRST_COMPLETED).done
            count_arrivals(arrivals.value - num_counted)
            num_counted = arrivals.value
            for task in ended:
                yield playing.pop(task), task.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _begin(arrivals: Synchronized[int]) -> None:
    """Prepare this process, which is to end at once where a terminal's interrupt ends all of them."""
    global _arrivals  # noqa: PLW0603  (set once, before the first task)
    _arrivals = arrivals
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _play(task: Task[T]) -> T:
    return task(_arrived)


def _arrived() -> None:
    with _arrivals.get_lock():
        _arrivals.value += 1
