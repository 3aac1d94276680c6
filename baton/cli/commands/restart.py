"""`baton restart`: replace the processes of a fleet of `baton up` while it serves."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.text import Text

from baton.cli.exits import OK
from baton.fleet.checkout import find_checkout
from baton.fleet.rundir import runs_of
from baton.fleet.running import ask_restart


async def run(args: argparse.Namespace) -> int:
    console = Console()
    async for replaced in ask_restart(args.run_dir or runs_of(find_checkout())):
        times = f"left in {replaced.left_s:.1f} s, replaced in {replaced.took_s:.1f} s"
        console.print(Text.assemble(("✓", "green"), " ", (f"{replaced.name:<10} ", "bold"), times))
    console.print(Text("All services are new; Redis and the launcher run on."))
    return OK
