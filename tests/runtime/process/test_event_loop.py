"""Operators hear of slow event loops, and a loop that stands still ends its process."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from prometheus_client import CollectorRegistry

from runtime.process.event_loop import NUM_THREADS, count_tasks, start_threads, uncollected_imports
from runtime.process.watchdog import EXIT_STALLED
from tests.patience import PATIENCE_S

CHECKOUT = Path(__file__).parents[3]
NAME = "baton_event_loop_tasks"
STANDS_STILL = """
import asyncio, time
import runtime.process.event_loop

runtime.process.event_loop.STALL_S = 1.0

async def main():
    watchdog = runtime.process.event_loop.watch_loop()
    print("watched", flush=True)
    {what}
    watchdog.stop()

asyncio.run(main())
"""


def watched(what: str) -> subprocess.Popen[str]:
    """A process whose loop is watched and does `what`."""
    return subprocess.Popen(
        [sys.executable, "-c", STANDS_STILL.format(what=what)],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_the_tasks_of_a_loop_are_counted_from_any_thread() -> None:
    registry = CollectorRegistry()
    count_tasks(registry)
    before = registry.get_sample_value(NAME)
    assert before is not None
    left = asyncio.create_task(asyncio.Event().wait())
    assert await asyncio.to_thread(registry.get_sample_value, NAME) == before + 1
    left.cancel()


async def test_no_thread_is_begun_for_what_is_done_aside() -> None:
    start_threads()
    before = set(threading.enumerate())
    all_at_once = threading.Barrier(NUM_THREADS)
    await asyncio.gather(*(asyncio.to_thread(all_at_once.wait) for _ in range(NUM_THREADS)))
    assert set(threading.enumerate()) == before


def test_a_loop_that_stands_still_ends_its_process_and_says_where() -> None:
    with watched("time.sleep(600)") as process:
        said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_STALLED
    assert "what=event_loop" in said.replace("\x1b[0m", "")
    assert "in main" in said


def test_a_loop_that_is_idle_or_busy_with_much_goes_on() -> None:
    work = "await asyncio.sleep(1.5); [await asyncio.sleep(time.sleep(0.1) or 0) for _ in range(15)]"
    with watched(work) as process:
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_process_that_was_stopped_goes_on() -> None:
    with watched("await asyncio.to_thread(input)") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "watched\n"
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        try:
            threading.Event().wait(3.0)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        process.communicate("\n", timeout=PATIENCE_S)
    assert process.returncode == 0


def test_collections_go_on_after_imports_that_fail() -> None:
    try:
        with uncollected_imports():
            assert not gc.isenabled()
            raise ImportError("no such package")
    except ImportError:
        assert gc.isenabled()
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
