"""Threads that run before anything can be short."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier


def started_executor(num_threads: int, name: str) -> ThreadPoolExecutor:
    """An executor that begins no thread later.

    Where memory is short, a new thread can end before it says that it runs, and who begins it waits for that
    word for ever (github.com/python/cpython/issues/140746). In a service that is the event loop.
    """
    executor = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
    all_run = Barrier(num_threads + 1)
    for _ in range(num_threads):
        executor.submit(all_run.wait)
    all_run.wait()
    return executor
