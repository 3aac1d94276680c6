"""`baton status`: the live state of the fleet."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from rich.console import Console, RenderableType
from rich.live import Live

from baton.async_client import AsyncClient
from baton.cli.exits import OK
from baton.cli.target import client_of, target_of
from baton.cli.views.status_view import render
from baton.types.snapshots import FleetFacts, FleetSnapshot
from baton.wire.fields import rounded


async def run(args: argparse.Namespace) -> int:
    console, target = Console(), target_of(args)
    async with (
        client_of(AsyncClient, args, target=target) as client,
        aclosing(client.watch(args.interval_s)) as snapshots,
    ):
        if args.json:
            async for snapshot in snapshots:
                print(json.dumps(rounded(dataclasses.asdict(snapshot))), flush=True)
                if args.once:
                    break
        elif args.once or not console.is_terminal:
            console.print(render(await client.describe(), await anext(snapshots), target.gateways))
        else:
            await show_live(await client.describe(), snapshots, console, target.gateways)
    return OK


async def show_live(
    facts: FleetFacts, snapshots: AsyncIterator[FleetSnapshot], console: Console, gateways: Sequence[str] = ()
) -> None:
    """Show snapshots on another screen, where an echoed Ctrl-C disturbs nothing, and leave the last one."""
    shown: RenderableType = ""
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            async for snapshot in snapshots:
                shown = render(facts, snapshot, gateways)
                live.update(shown, refresh=True)
    finally:
        console.print(shown)
