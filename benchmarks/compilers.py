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


@contextlib.contextmanager
def compilers(number: int) -> Iterator[str]:
    """Keep this many compilers busy while the block runs; yield their description, or an empty one."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    with tempfile.TemporaryDirectory() as folder:
        running = [_start(compiler, Path(folder) / f"{place}.c") for place in range(number)]
        try:
            what = "cc -O2" if compiler else "a busy loop, since there is no C compiler"
            yield f"{number} × {what}" if number else ""
        finally:
            for process in running:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(STOP_S)


def _start(compiler: str | None, source: Path) -> subprocess.Popen[bytes]:
    """Start a compiler in a process group of its own, so that its children end with it."""
    arguments = [
        sys.executable,
        "-m",
        __name__,
        str(os.getpid()),
        str(source),
        *([compiler] if compiler else []),
    ]
    return subprocess.Popen(arguments, start_new_session=True)


def _compile_until_orphaned(parent: int, source: Path, compiler: str) -> None:
    functions = (_FUNCTION.format(n=n, step=1 + n % 7) for n in range(NUM_FUNCTIONS))
    source.write_text("".join(functions), encoding="ascii")
    while os.getppid() == parent and source.exists():
        subprocess.run([compiler, "-O2", "-c", str(source), "-o", f"{source}.o"], check=False)


def _spin_until_orphaned(parent: int) -> None:
    while os.getppid() == parent:
        sum(range(1_000_000))


if __name__ == "__main__":
    _parent, _source, *_compiler = sys.argv[1:]
    if _compiler:
        _compile_until_orphaned(int(_parent), Path(_source), _compiler[0])
    else:
        _spin_until_orphaned(int(_parent))
