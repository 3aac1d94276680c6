"""`baton status`: the live state of the fleet, or of all that run on this machine, on the terminal."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from baton.async_client import AsyncClient
from baton.cli.exits import OK
from baton.cli.target import client_of, targets_of
from baton.types import snapshots
from baton.wire.fields import rounded

_BAR_WIDTH = 12
SILENT_S = 5.0
"""Seconds of silence after which a starting worker may stand still; before, the machine may just be busy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Watched:
    """A fleet that is watched; `gateways` are URLs."""

    facts: snapshots.FleetFacts
    watch: AsyncGenerator[snapshots.FleetSnapshot, None]
    gateways: Sequence[str]


async def run(args: argparse.Namespace) -> int:
    console = Console()
    async with AsyncExitStack() as stack:
        fleets: list[Watched] = []
        for target in targets_of(args):
            client = await stack.enter_async_context(client_of(AsyncClient, args, target=target))
            watch = await stack.enter_async_context(aclosing(client.watch(args.interval_s)))
            fleets.append(Watched(await client.describe(), watch, target.gateways))
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


async def _seen(fleets: Sequence[Watched]) -> AsyncGenerator[list[snapshots.FleetSnapshot], None]:
    """Yield a snapshot of each fleet, again and again."""
    while True:
        yield list(await asyncio.gather(*(anext(fleet.watch) for fleet in fleets)))


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


def render(
    facts: snapshots.FleetFacts, snapshot: snapshots.FleetSnapshot, gateways: Sequence[str] = ()
) -> RenderableType:
    title = Text.assemble(("Baton ", "bold"), facts.model_name, (f"  {facts.architecture}", "dim"))
    if facts.deterministic:
        title.append("  deterministic", "green")
    below = Text(f"{snapshot.router_id} · {facts.placement} · up {_duration(snapshot.uptime_s)}")
    workers = sorted(snapshot.workers, key=lambda one: (one.role != "prefill", one.worker_id))
    body = Group(
        _workers(workers, facts.block_size),
        *(_starting(worker) for worker in snapshot.starting),
        Text(),
        *_computing(workers),
        *_tiers(workers),
        *_adapters(workers),
        _queue(snapshot.queue),
        _counters(snapshot.counters),
        _promises(snapshot.counters),
        *(Text(f"http      {url}") for url in gateways),
    )
    return Panel(body, title=title, title_align="left", subtitle=below, subtitle_align="left", width=80)


def state_of(worker: snapshots.WorkerState) -> tuple[str, str]:
    """In a word, and its colour."""
    if not worker.connected:
        return "lost", "red"
    if worker.draining:
        return "draining", "yellow"
    return ("busy", "green") if worker.running or worker.waiting else ("idle", "cyan")


def cost_of(cost: snapshots.CostState | None) -> Text:
    """How far over the predicted cost 19 of 20 steps stay; `fixed` while costs are not trusted to plan by."""
    if cost is None:
        return Text("–", style="dim")
    return Text(f"×{cost.ratio_q95:.2f}", style="green") if cost.is_trusted else Text("fixed", style="yellow")


def bar(used: int, cached: int, total: int, width: int = _BAR_WIDTH) -> Text:
    """Blocks in use, then free ones that still hold a prefix, then the rest. What is not nothing shows."""
    if total == 0:
        return Text("·" * width, style="dim")
    filled = _cells(used, total, width)
    kept = min(width - filled, _cells(cached, total, width))
    colour = "red" if used > 0.9 * total else "yellow" if used > 0.7 * total else "green"
    rest = width - filled - kept
    return Text.assemble(("█" * filled, colour), ("▒" * kept, "blue"), ("·" * rest, "dim"))


def _cells(part: int, total: int, width: int) -> int:
    return min(width, -(-part * width // total))


def _workers(workers: Sequence[snapshots.WorkerState], block_size: int) -> RenderableType:
    if not workers:
        return Text("no worker has joined yet", style="yellow")
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for name in ("worker", "state", "run", "wait", "prompt", f"KV blocks of {block_size}", "step", "cost"):
        is_number = name in {"run", "wait", "prompt", "step", "cost"}
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True)
    for worker in workers:
        table.add_row(*_row(worker))
    return table


def _row(worker: snapshots.WorkerState) -> tuple[RenderableType, ...]:
    state, colour = state_of(worker)
    blocks = Text.assemble(
        bar(worker.used_blocks, worker.cached_blocks, worker.num_blocks),
        f" {worker.used_blocks}/{worker.num_blocks}",
    )
    style = "magenta" if worker.role == "prefill" else "blue"
    return (
        Text(worker.worker_id, style=style),
        Text(state, style=colour),
        str(worker.running),
        str(worker.waiting),
        str(worker.pending_prefill_tokens),
        blocks,
        f"{worker.step_seconds * 1000:.1f} ms" if worker.step_seconds else "–",
        cost_of(worker.cost),
    )


def _computing(workers: Sequence[snapshots.WorkerState]) -> list[Text]:
    """Return a line for each way in which workers compute, naming the workers if there are several ways."""
    ways: defaultdict[str, list[str]] = defaultdict(list)
    for worker in workers:
        if worker.dtype:  # timed workers compute nothing
            ways[f"{worker.dtype}, {'native' if worker.native_ops else 'no native'} ops"].append(
                worker.worker_id
            )
    return [
        Text.assemble(("computes  ", "dim"), way, f": {', '.join(names)}" if len(ways) > 1 else "")
        for way, names in ways.items()
    ]


def _tiers(workers: Sequence[snapshots.WorkerState]) -> list[Text]:
    """Return a line with the KV blocks in host memory, and one with those on disks, if workers have some."""
    tiers = {
        "in host   ": [(worker.worker_id, worker.host_blocks) for worker in workers],
        "on disk   ": [(worker.worker_id, worker.disk_blocks) for worker in workers],
    }
    lines: list[Text] = []
    for label, held in tiers.items():
        told = ", ".join(f"{name} {num_blocks}" for name, num_blocks in held if num_blocks is not None)
        lines += [Text.assemble((label, "dim"), "KV blocks: ", told)] if told else []
    return lines


def _adapters(workers: Sequence[snapshots.WorkerState]) -> list[Text]:
    """Return a line for each worker that loads LoRA adapters, with those in its memory."""
    return [
        Text.assemble(
            ("adapters  ", "dim"),
            f"{worker.worker_id}: {len(worker.loaded_adapters)} of {worker.loadable_adapters} in memory",
            f" ({', '.join(worker.loaded_adapters)})" if worker.loaded_adapters else "",
        )
        for worker in workers
        if worker.loadable_adapters is not None
    ]


def _starting(worker: snapshots.StartingState) -> Text:
    share = "" if worker.share is None else f" {worker.share:.0%}"
    line = Text.assemble((worker.worker_id, "dim"), " ", ("starting", "yellow"), f" · {worker.phase}{share}")
    if worker.silent_s > SILENT_S:
        line.append(f" · no word for {worker.silent_s:.0f} s", "red")
    return line


def _queue(queue: snapshots.QueueState) -> Text:
    redis = ("Redis reachable", "green") if queue.redis_reachable else ("Redis out of reach", "bold red")
    return Text.assemble(
        ("queue     ", "dim"),
        f"{queue.waiting} of {queue.capacity} waiting, {queue.waiting_tokens} tokens · ",
        f"{queue.running_sessions} running · ",
        redis,
    )


def _counters(counters: snapshots.FleetCounters) -> Text:
    refused = f"{counters.refused} refused"
    return Text.assemble(
        ("requests  ", "dim"),
        f"{counters.accepted} accepted · ",
        (refused, "yellow" if counters.refused else ""),
        f" · {counters.finished} finished · {counters.cancelled} cancelled · ",
        (f"{counters.failed} failed", "red" if counters.failed else ""),
    )


def _promises(counters: snapshots.FleetCounters) -> Text:
    retried = f"{counters.retried_attempts} attempt{'' if counters.retried_attempts == 1 else 's'} repeated"
    return Text.assemble(
        ("promises  ", "dim"),
        (f"{counters.ttft_promises_kept} kept", "green"),
        " · ",
        (f"{counters.ttft_promises_broken} broken", "red" if counters.ttft_promises_broken else ""),
        f" · {counters.relayed_tokens} tokens relayed · {retried}",
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
