"""Busy neighbours: compilers that compile one file after the other, as on a machine in use."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

NUM_FUNCTIONS = 400
STOP_S = 10.0

_FUNCTION = """
double f{n}(const double *a, const double *b, int n) {{
    double sum = {n}.0, last = 0.0;
    for (int i = 0; i < n; i++) {{
        for (int j = i; j < n; j += {step}) sum += a[i] * b[j] - last / (1.0 + sum * sum);
        last = (i % {step}) ? sum : last + b[i];
    }}
    return sum + last;
}}
"""


# The parent of an orphan is another process, so the loop ends at the latest after one file.
_LOOP = 'while read -r _ _ _ parent _ < /proc/$$/stat && [ "$parent" = "$0" ]; do "$@"; done'


@contextlib.contextmanager
def compilers(number: int) -> Iterator[str]:
    """Keep this many compilers busy while the block runs; yield their description, or an empty one."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "busy.c"
        source.write_text("".join(_FUNCTION.format(n=n, step=1 + n % 7) for n in range(NUM_FUNCTIONS)))
        spin = [sys.executable, "-c", "sum(range(100_000_000))"]
        command = [compiler, "-O2", "-c", str(source), "-o", f"{source}.o"] if compiler else spin
        # Each has a process group of its own, so that the compiler ends with the loop.
        running = [
            subprocess.Popen(["/bin/sh", "-c", _LOOP, str(os.getpid()), *command], start_new_session=True)
            for _ in range(number)
        ]
        try:
            what = "cc -O2" if compiler else "a busy loop, since there is no C compiler"
            yield f"{number} × {what}" if number else ""
        finally:
            for process in running:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(STOP_S)
