"""`baton status`: the live state of the fleet, or of all that run on this machine."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing

from rich.console import Console, Group, RenderableType
from rich.live import Live

from baton.async_client import AsyncClient
from baton.cli.exits import OK
from baton.cli.target import client_of, targets_of
from baton.cli.views.status_view import render
from baton.types.snapshots import FleetFacts, FleetSnapshot
from baton.wire.fields import rounded


@dataclasses.dataclass(frozen=True, slots=True)
class Watched:
    """A fleet that is watched; `gateways` are URLs."""

    facts: FleetFacts
    snapshots: AsyncGenerator[FleetSnapshot, None]
    gateways: Sequence[str]


async def run(args: argparse.Namespace) -> int:
    console = Console()
    async with AsyncExitStack() as stack:
        fleets: list[Watched] = []
        for target in targets_of(args):
            client = await stack.enter_async_context(client_of(AsyncClient, args, target=target))
            snapshots = await stack.enter_async_context(aclosing(client.watch(args.interval_s)))
            fleets.append(Watched(await client.describe(), snapshots, target.gateways))
        if args.json:
            async for seen in _seen(fleets):
                for fleet, snapshot in zip(fleets, seen, strict=True):
                    told = {"model": fleet.facts.model_name} | dataclasses.asdict(snapshot)
                    print(json.dumps(rounded(told)), flush=True)
                if args.once:
                    break
        elif args.once or not console.is_terminal:
            console.print(await anext(_views(fleets)))
        else:
            await show_live(_views(fleets), console)
    return OK


async def _seen(fleets: Sequence[Watched]) -> AsyncGenerator[list[FleetSnapshot], None]:
    """Yield a snapshot of each fleet, again and again."""
    while True:
        yield list(await asyncio.gather(*(anext(fleet.snapshots) for fleet in fleets)))


async def _views(fleets: Sequence[Watched]) -> AsyncGenerator[RenderableType, None]:
    async for seen in _seen(fleets):
        pairs = zip(fleets, seen, strict=True)
        yield Group(*(render(fleet.facts, snapshot, fleet.gateways) for fleet, snapshot in pairs))


async def show_live(views: AsyncIterator[RenderableType], console: Console) -> None:
    """Show views on another screen, where an echoed Ctrl-C disturbs nothing, and leave the last one."""
    shown: RenderableType = ""
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            async for shown in views:
                live.update(shown, refresh=True)
    finally:
        console.print(shown)
