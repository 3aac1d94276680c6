"""Threads that run before memory is short do what they are asked when it is."""

import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_S

CHECKOUT = Path(__file__).parents[3]
WITHOUT_MEMORY = """
import resource, threading
from runtime.process.threads import started_executor

executor = started_executor(3, "test")
# One that has ended leaves its stack to the next one: that begins, and then ends for want of memory.
threading.Thread(target=int).start()
all_at_once = threading.Barrier(3)
asked = [all_at_once.wait] * 3
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))
answers = [executor.submit(one) for one in asked]
print(sorted(one.result() for one in answers))
"""


def test_an_executor_takes_work_without_memory_for_more_threads() -> None:
    said = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY],
        check=True,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert said.stdout == "[0, 1, 2]\n"
