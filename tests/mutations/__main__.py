"""`python -m tests.mutations [NAME ...]`: takes each guard of the table out of a copy and runs its test.

With the guard in, the test has to pass; without it, it has to fail, or to hang. Each line of the table is
printed as soon as it is known, pytest's last word about it on stderr. Exits 1 where a guard is not noticed.
NAME is of a failure; without any, all are tried.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutations.guard import Guard
from tests.mutations.table import FAILURES
from tests.mutations.trial import Outcome, Verdict, trial

ROOT = Path(__file__).resolve().parents[2]
LEAST_S, MOST_S = 120.0, 600.0
"""A test hangs that takes ten times as long as with all guards and `LEAST_S`; with all of them, `MOST_S`."""
WITHOUT = {
    Verdict.PASSED: "**passes**",
    Verdict.FAILED: "fails",
    Verdict.HUNG: "fails (hung)",
    Verdict.NOT_RUN: "**could not be run**",
}


def main(names: Sequence[str]) -> int:
    """Returns the exit code."""
    chosen = [entry for entry in FAILURES if not names or entry.name in names]
    for guard in (guard for failure in chosen for guard in failure.guards):
        guard.taken_out(ROOT)  # or half an hour may pass before a wrong entry is found
    _say("| what must not happen | guard in | test | without the guard |\n|---|---|---|---|")
    unnoticed = 0
    with tempfile.TemporaryDirectory(prefix="baton-mutations-") as folder:
        judge = _Judge(Path(folder) / "baton")
        for failure in chosen:
            what = f"{failure.what} ({failure.peers})"
            for guard in failure.guards:
                is_noticed, result = judge.of(guard)
                unnoticed += not is_noticed
                _say(f"| {what} | `{guard.path}` | `{guard.test.rpartition('::')[2]}` | {result} |")
                what = ""
    _say(f"\nguards that nobody would miss: {unnoticed or 'none'}")
    return 1 if unnoticed else 0


class _Judge:
    """Tries guards in `copy`, a copy of the tree that it makes."""

    def __init__(self, copy: Path) -> None:
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        self._copy = copy
        self._guarded: dict[str, Outcome] = {}
        """By test: several guards may have the same."""

    def of(self, guard: Guard) -> tuple[bool, str]:
        """Whether somebody would notice that it is gone, and what comes of the test."""
        if guard.test not in self._guarded:
            self._guarded[guard.test] = self._tried(guard.test, MOST_S)
        guarded = self._guarded[guard.test]
        if guarded.verdict is not Verdict.PASSED:
            return False, f"**does not pass with it**: {guarded.verdict.value}"
        without = self._without(guard, max(LEAST_S, 10 * guarded.took_s))
        return without.verdict in (Verdict.FAILED, Verdict.HUNG), WITHOUT[without.verdict]

    def _without(self, guard: Guard, limit_s: float) -> Outcome:
        file = self._copy / guard.path
        whole = file.read_text(encoding="utf-8")
        file.write_text(guard.taken_out(self._copy), encoding="utf-8")
        try:
            return self._tried(guard.test, limit_s)
        finally:
            file.write_text(whole, encoding="utf-8")

    def _tried(self, test: str, limit_s: float) -> Outcome:
        with trial(self._copy, test) as run:
            outcome = run.outcome(limit_s)
        sys.stderr.write(f"{outcome.took_s:.0f} s, {outcome.verdict.value}: {outcome.said}\n")
        sys.stderr.flush()
        return outcome


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a command's answer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    known = [entry.name for entry in FAILURES]
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(known)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"NAME is {', '.join(sorted(unknown))}; accepted: {', '.join(known)}")
    sys.exit(main(arguments.names))
