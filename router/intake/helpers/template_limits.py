"""The limits of time and memory within which chat templates run, in a helper process.

A template is a program from outside. What it takes too long for, or too much memory, ends with an error. Only
a single operation that takes as long again, such as a power of large numbers, ends the process.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT_S = 2.0
"""The most time of a processor that a template may take for one chat, or to be compiled."""
LIMIT_BYTES = 1 << 30
"""The most memory that it may take beside what the process has already."""
_PAGE_BYTES = resource.getpagesize()


class OverLimit(Exception):
    """A template has reached a limit, which the message names."""


class _OutOfTime(BaseException):
    """No template can catch it."""


class _Limits:
    """The limits of this process. It has none until `start`."""

    def __init__(self) -> None:
        self._sizes = -1
        """The file with the process's size."""
        self._runs = False

    def start(self) -> None:
        self._sizes = os.open("/proc/self/statm", os.O_RDONLY)
        signal.signal(signal.SIGVTALRM, self._on_time)

    def _on_time(self, *_: object) -> None:
        if self._runs:
            raise _OutOfTime

    def set(self) -> None:
        if self._sizes < 0:
            return
        pages = int(os.pread(self._sizes, 64, 0).split(None, 1)[0])
        self._runs = True
        resource.setrlimit(resource.RLIMIT_AS, (pages * _PAGE_BYTES + LIMIT_BYTES, resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
        signal.setitimer(signal.ITIMER_PROF, 2 * LIMIT_S)  # its signal ends the process

    def clear(self) -> None:
        self._runs = False
        if self._sizes >= 0:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


_limits = _Limits()


def limit_templates() -> None:
    """Set limits in this process wherever it is `limited`."""
    _limits.start()


@contextmanager
def limited() -> Iterator[None]:
    """Keep what runs inside to the limits, in a process that has some. Raises `OverLimit`."""
    try:
        _limits.set()
        yield
    except _OutOfTime:
        raise OverLimit(f"it takes more than {LIMIT_S:g} s of a processor") from None
    except MemoryError:
        raise OverLimit(f"it takes more than {LIMIT_BYTES >> 30} GiB of memory") from None
    finally:
        _limits.clear()
