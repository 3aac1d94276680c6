"""`baton status`: the live state of the fleet."""

from __future__ import annotations

import argparse
import dataclasses
import json
from contextlib import aclosing

from rich.console import Console
from rich.live import Live

from baton.async_client import AsyncClient
from baton.cli.exits import OK
from baton.cli.running import async_client_of, run_to_the_end
from baton.cli.views.status_view import render


def run(args: argparse.Namespace) -> int:
    return run_to_the_end(_status(args, Console()))


async def _status(args: argparse.Namespace, console: Console) -> int:
    async with async_client_of(args) as client:
        if args.json:
            await _print_json(client, args.interval_s, once=args.once)
        elif args.once or not console.is_terminal:
            await _print_once(client, console)
        else:
            await _live(client, args.interval_s, console)
    return OK


async def _print_json(client: AsyncClient, interval_s: float, *, once: bool) -> None:
    async with aclosing(client.watch(interval_s)) as snapshots:
        async for snapshot in snapshots:
            print(json.dumps(dataclasses.asdict(snapshot)), flush=True)
            if once:
                return


async def _print_once(client: AsyncClient, console: Console) -> None:
    facts = await client.describe()
    async with aclosing(client.watch()) as snapshots:
        console.print(render(facts, await anext(snapshots)))


async def _live(client: AsyncClient, interval_s: float, console: Console) -> None:
    facts = await client.describe()
    with Live(console=console, auto_refresh=False) as live:
        async with aclosing(client.watch(interval_s)) as snapshots:
            async for snapshot in snapshots:
                live.update(render(facts, snapshot), refresh=True)
