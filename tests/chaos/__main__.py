"""`python -m tests.chaos --minutes 10`: burn a fleet, add to the running tally, and print it.

Exit codes: 0 when nothing was lost, repeated, changed or leaked, else 1, and the services' logs are kept.
What is planned depends on the seed and on the tally that the run began from; both are written down with it.
Where it can, the command runs itself anew in a network of its own, so that each process has one as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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

from tests.chaos.arena import CHECKOUT, GATEWAYS, ROUTERS, WORKERS
from tests.chaos.burn import Orders, burn
from tests.chaos.network import Network, apart, why_not
from tests.chaos.plan import LANES
from tests.chaos.redis_clock import can_jump
from tests.chaos.tally import Tally

TALLY = CHECKOUT / "benchmarks" / "chaos_tally.json"
WITHOUT_NETWORKS = "no packets are lost between two processes: the proxies hold their messages up instead"
WITHOUT_CLOCK = "Redis's clock does not jump: there is no C compiler"


def main() -> int:
    """The process's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, metavar="M")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--max-faults", type=int, default=10**9, metavar="N")
    parser.add_argument("--tally", type=Path, default=TALLY, metavar="FILE", help="added to")
    parser.add_argument("--lanes", nargs="*", choices=LANES, default=list(LANES), help="what strikes (all)")
    parser.add_argument(
        "--network",
        choices=("auto", "own", "shared"),
        default="auto",
        help="own: this process is in a network of its own; shared: it stays in this one (own where it can)",
    )
    args = parser.parse_args()
    left_out = [] if can_jump() else [WITHOUT_CLOCK]
    if args.network == "auto":
        reason = why_not()
        if not reason:
            own = [sys.executable, "-m", "tests.chaos", *sys.argv[1:], "--network", "own"]
            os.execvp(apart()[0], [*apart(), *own])
        left_out.append(f"{WITHOUT_NETWORKS} ({reason})")
    elif args.network == "shared":
        left_out.append(WITHOUT_NETWORKS)
    # Started in the background by a script it would be ignored, and what was counted lost.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    console = Console()
    for missing in left_out:
        console.print(f"left out: {missing}", soft_wrap=True)
    total, mine = Tally.load(args.tally), Tally()
    orders = Orders(args.seed, args.minutes * 60, args.max_faults, args.lanes)
    told = {
        "commit": _commit(),
        "machine": _machine(),
        "seed": args.seed,
        "began_from": total.digest,
        "placement": orders.placement,
        "network": args.network,
    }
    folder = Path(tempfile.mkdtemp(prefix="baton-chaos-run-"))
    networks = Network((*GATEWAYS, *ROUTERS, *WORKERS)) if args.network == "own" else None
    with (
        networks or contextlib.nullcontext(),
        console.status("starting") as status,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        try:
            runner.run(burn(folder, orders, total, mine, status.update, networks))
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
