"""`python -m tests.chaos --minutes 10`: burn a fleet, add to the running tally, and print it.

Exit codes: 0 when nothing was lost, repeated, changed or leaked, else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from tests.chaos.burn import burn
from tests.chaos.tally import Tally

TALLY = Path(__file__).parents[2] / "benchmarks" / "chaos_tally.json"


def main() -> int:
    """The process's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, metavar="M")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--max-faults", type=int, default=10**9, metavar="N")
    parser.add_argument("--tally", type=Path, default=TALLY, metavar="FILE", help="added to")
    args = parser.parse_args()
    console = Console()
    total, mine = Tally.load(args.tally), Tally()
    mine.struck.update(total.struck)  # what has struck least goes on
    known = total.struck.copy()
    with (
        tempfile.TemporaryDirectory(prefix="baton-chaos-run-") as folder,
        console.status("starting") as status,
    ):
        try:
            asyncio.run(
                burn(Path(folder), args.seed, args.minutes * 60, args.max_faults, mine, status.update)
            )
        except KeyboardInterrupt:
            console.print("interrupted; what was counted so far is kept")
        finally:
            mine.struck -= known
            total.merge(mine)
            total.save(args.tally)
    console.rule("this run")
    mine.show(console)
    console.rule("all runs")
    total.show(console)
    return 1 if mine.bad else 0


if __name__ == "__main__":
    sys.exit(main())
