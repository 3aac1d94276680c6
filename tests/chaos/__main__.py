"""`python -m tests.chaos --minutes 10`: burn a fleet, add to the running tally, and print it.

Exit codes: 0 when nothing was lost, repeated, changed or leaked, else 1, and the services' logs are kept.
What is planned depends on the seed and on the tally that the run began from; both are written down with it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console

from tests.chaos.arena import CHECKOUT
from tests.chaos.burn import Orders, burn
from tests.chaos.plan import LANES
from tests.chaos.tally import Tally

TALLY = CHECKOUT / "benchmarks" / "chaos_tally.json"


def main() -> int:
    """The process's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, metavar="M")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--max-faults", type=int, default=10**9, metavar="N")
    parser.add_argument("--tally", type=Path, default=TALLY, metavar="FILE", help="added to")
    parser.add_argument("--lanes", nargs="*", choices=LANES, default=list(LANES), help="what strikes (all)")
    args = parser.parse_args()
    # Started in the background by a script it would be ignored, and what was counted lost.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    console = Console()
    total, mine = Tally.load(args.tally), Tally()
    told = {"commit": _commit(), "machine": _machine(), "seed": args.seed, "began_from": total.digest}
    orders = Orders(args.seed, args.minutes * 60, args.max_faults, args.lanes)
    folder = Path(tempfile.mkdtemp(prefix="baton-chaos-run-"))
    with (
        console.status("starting") as status,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        try:
            runner.run(burn(folder, orders, total, mine, status.update))
        except KeyboardInterrupt:
            console.print("interrupted; what was counted so far is kept")
        finally:
            mine.runs.append(told | {"minutes": round(mine.minutes, 1), "streams": mine.streams})
            total.merge(mine)
            total.save(args.tally)
    console.rule("this run")
    mine.show(console)
    console.rule("all runs")
    total.show(console)
    if mine.bad:
        console.print(f"the services' logs: {folder}", soft_wrap=True)
        return 1
    shutil.rmtree(folder)
    return 0


def _commit() -> str:
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    return said.stdout.strip() or "unknown"


def _machine() -> str:
    return f"{os.cpu_count()} x {platform.machine()}, {platform.system()} {platform.release()}"


if __name__ == "__main__":
    sys.exit(main())
