"""`baton restart`: replace the processes of a fleet of `baton up` while it serves."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.text import Text

from baton.cli.exits import OK
from baton.cli.running import run_to_the_end
from baton.fleet.checkout import find_checkout
from baton.fleet.control import ask_restart
from baton.fleet.rundir import runs_of


def run(args: argparse.Namespace) -> int:
    return run_to_the_end(_restart(args.run_dir or runs_of(find_checkout()), Console()))


async def _restart(run_dirs: Path, console: Console) -> int:
    async for replaced in ask_restart(run_dirs):
        times = f"left in {replaced.left_s:.1f} s, replaced in {replaced.took_s:.1f} s"
        console.print(Text.assemble(("✓", "green"), " ", (f"{replaced.name:<11}", "bold"), times))
    console.print(Text("All routers and workers are new; Redis and the launcher run on."))
    return OK
