"""`python -m tests.mutations [NAME ...]`: takes each guard of the table out of a copy and runs its test.

With all guards every test has to pass, and with its guard taken out each has to fail. Exits 1 where one does
not. NAME is of a failure; without any, all are tried.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.mutations.table import FAILURES, Failure, Guard

ROOT = Path(__file__).resolve().parents[2]
PASSED, FAILED = 0, 1
"""pytest's exit codes; all others mean that tests could not be run."""


def main(names: Sequence[str]) -> int:
    """Returns the exit code."""
    chosen = [one for one in FAILURES if not names or one.name in names]
    with tempfile.TemporaryDirectory(prefix="baton-mutations-") as folder:
        copy = Path(folder) / "baton"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        is_whole = (
            _pytest(copy, *dict.fromkeys(guard.test for one in chosen for guard in one.guards)) == PASSED
        )
        table, is_guarded = _tried(copy, chosen)
    Console(width=160).print(table)
    print("with all guards: " + ("all pass" if is_whole else "NOT ALL PASS"))  # noqa: T201 - a command's answer
    return 0 if is_whole and is_guarded else 1


def _tried(copy: Path, chosen: Sequence[Failure]) -> tuple[Table, bool]:
    """What came of each guard's absence, and whether all were noticed."""
    table = Table("what must not happen", "peers", "guard in", "test", "without the guard")
    is_guarded = True
    for failure in chosen:
        for guard in failure.guards:
            is_noticed = _fails_without(copy, guard)
            is_guarded = is_guarded and is_noticed
            test = guard.test.rpartition("::")[2]
            result = "fails" if is_noticed else "DOES NOT FAIL"
            table.add_row(failure.name, failure.peers, guard.path, test, result)
    return table, is_guarded


def _fails_without(copy: Path, guard: Guard) -> bool:
    file = copy / guard.path
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole.replace(guard.text, guard.without), encoding="utf-8")
    try:
        return _pytest(copy, guard.test) == FAILED
    finally:
        file.write_text(whole, encoding="utf-8")


def _pytest(copy: Path, *tests: str) -> int:
    """Its exit code. No byte code is kept: a file may change twice within a second."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    quiet = subprocess.DEVNULL
    return subprocess.run(argv, cwd=copy, env=env, stdout=quiet, stderr=quiet, check=False).returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    known = [one.name for one in FAILURES]
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(known)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"NAME is {', '.join(sorted(unknown))}; accepted: {', '.join(known)}")
    sys.exit(main(arguments.names))
