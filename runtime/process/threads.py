"""Start threads while memory is certain to suffice, and how often they take turns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

SWITCH_S = 0.0002
"""The time after which a thread of a worker that computes in Python lets another one go on.

Each launch of a step gives up the interpreter lock, and the step thread then waits this long for it while the
event loop is busy. By default it would be 5 ms.
"""


def started_executor(num_threads: int, name: str) -> ThreadPoolExecutor:
    """Return an executor whose threads all run already, so that it starts none later.

    If memory is short, a new thread can end before it signals its start, and `Thread.start` then waits
    forever (github.com/python/cpython/issues/140746). In a service that would block the event loop.
    """
    executor = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
    all_started = Barrier(num_threads + 1)
    for _ in range(num_threads):
        executor.submit(all_started.wait)
    all_started.wait()
    return executor
