"""Tests marked `alone` judge latencies: while one runs, no other test loads the machine's cores."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

# The process that started the run, of which all its workers are children: runs side by side share nothing.
_FOLDER = Path(tempfile.gettempdir())
_RUN = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


@contextmanager
def _locked(name: str, kind: int) -> Iterator[None]:
    path = _FOLDER / f"baton-tests-{_RUN}-{name}"
    with path.open("w") as file:
        fcntl.flock(file, kind)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put them at the end: before, each would wait until the other processes have finished a long test."""
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """One who runs alone keeps the door shut from the moment it waits, or the others never let it in."""
    with ExitStack() as held:
        if item.get_closest_marker("alone"):
            held.enter_context(_locked("door", fcntl.LOCK_EX))
            held.enter_context(_locked("room", fcntl.LOCK_EX))
        else:
            with _locked("door", fcntl.LOCK_EX):
                held.enter_context(_locked("room", fcntl.LOCK_SH))
        return (yield)


def pytest_unconfigure() -> None:
    """The last one out finds nobody to disturb: a missing file is made again."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for name in ("door", "room"):
            (_FOLDER / f"baton-tests-{_RUN}-{name}").unlink(missing_ok=True)
