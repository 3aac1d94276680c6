"""`baton demo`: a fleet from nothing, six prompts at once, what was promised and delivered, nothing left.

Answers stand side by side as they arrive; then a table has promised and delivered times. The demo's model was
trained only on Python's documentation.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from baton.async_client import AsyncClient
from baton.cli.arguments import spec_of
from baton.cli.exits import FAILED, OK, explain
from baton.cli.views.fleet_reporter import FleetReporter
from baton.cli.views.generation_view import broken_promises
from baton.errors import BatonError
from baton.fleet import Fleet, FleetSpec
from baton.types import Event, Finished, Queued, Sampling, Slo, Stop, Timeout, Tokens
from baton.types.chat import ChatMessage, Prompt

COMPLETIONS = (
    "The list is",
    "This module provides a simple way to",
    "If the file cannot be opened, the function",
    "A dictionary can be created by",
)
QUESTIONS = ("What is a generator?", "How do I open a file?")
_NARROWEST_PANEL = 38
SLO = Slo(ttft_ms=1000, tpot_ms=60)
_SAMPLING = Sampling(temperature=0.7, top_p=0.95, seed=2)
_FRAMES_PER_S = 12


async def run(args: argparse.Namespace) -> int:
    spec, console, began = spec_of(args, args.model), Console(), time.monotonic()
    with FleetReporter(console) as report:
        async with Fleet(spec, report) as fleet:
            report.rest()
            took_s = time.monotonic() - began
            console.print(Text.assemble(("Up", "bold green"), f" in {took_s:.1f} s: {_what(spec)}\n"))
            async with AsyncClient(fleet.router_addresses, timeout=Timeout(total_s=120)) as client:
                answers = await _run_all(client, args.max_tokens, console)
            console.print(results(answers))
    return OK if all(answer.state == "done" for answer in answers) else FAILED


def _what(spec: FleetSpec) -> str:
    redis = "Redis, " if spec.redis_url is None else ""
    return f"{redis}{spec.routers} router, {spec.prefill} prefill and {spec.decode} decode worker"


async def _run_all(client: AsyncClient, max_tokens: int, console: Console) -> Sequence[Answer]:
    answers = [Answer(text) for text in COMPLETIONS] + [Answer(text, is_question=True) for text in QUESTIONS]
    streams = [_stream(client, answer, max_tokens) for answer in answers]
    if console.is_terminal:
        with Live(
            get_renderable=lambda: side_by_side(answers, console),
            console=console,
            refresh_per_second=_FRAMES_PER_S,
        ):
            await asyncio.gather(*streams)
        return answers
    for ended in asyncio.as_completed(streams):
        answer = await ended
        question = f"{answer.prompt}\n" if answer.is_question else ""
        console.print(Text.assemble(f"[{answers.index(answer) + 1}] ", question, answer.shown))
    return answers


async def _stream(client: AsyncClient, answer: Answer, max_tokens: int) -> Answer:
    stop = Stop(max_tokens=max_tokens)
    try:
        async with client.generate(answer.sent, sampling=_SAMPLING, stop=stop, slo=SLO) as stream:
            async for event in stream:
                answer.take(event)
    except BatonError as error:
        answer.fail(explain(error))
    return answer


@dataclass(slots=True)
class Answer:
    """The state and output of one request."""

    prompt: str
    is_question: bool = False
    text: str = ""
    state: str = "sent"
    finished: Finished | None = None
    error: str = ""

    @property
    def sent(self) -> Prompt:
        return [ChatMessage("user", self.prompt)] if self.is_question else self.prompt

    @property
    def shown(self) -> Text:
        """Return the text; a completion's begins with its prompt."""
        before = "" if self.is_question else self.prompt
        return Text.assemble((before, "bold"), self.text, (self.error, "red"))

    def take(self, event: Event) -> None:
        match event:
            case Queued(position=position):
                self.state = f"queued, {position} ahead"
            case Tokens(text=text):
                self.state = "streaming"
                self.text += text
            case Finished():
                self.finished = event
                self.state = "done" if not event.error else "failed"

    def fail(self, error: str) -> None:
        self.error = error
        self.state = "failed"


def side_by_side(answers: Sequence[Answer], console: Console) -> RenderableType:
    """Return a grid that fits the terminal; each panel shows the end of its answer."""
    columns = max(1, min(3, console.width // _NARROWEST_PANEL))
    rows = -(-len(answers) // columns)
    height = max(4, min(12, (console.height - 1) // rows))
    panels = [_panel(answer, console, console.width // columns, height) for answer in answers]
    grid = Table.grid()
    for start in range(0, len(panels), columns):
        grid.add_row(*panels[start : start + columns])
    return grid


def _panel(answer: Answer, console: Console, width: int, height: int) -> Panel:
    style = {"streaming": "green", "done": "cyan", "failed": "red"}.get(answer.state, "dim")
    title = answer.prompt if answer.is_question else f"{answer.prompt[:34].strip()} …"
    return Panel(
        Text("\n").join(answer.shown.wrap(console, width - 4)[-(height - 2) :]),
        title=Text(title, style="bold", overflow="ellipsis"),
        title_align="left",
        subtitle=Text(answer.state, style=style),
        subtitle_align="right",
        border_style=style,
        width=width,
        height=height,
    )


def results(answers: Sequence[Answer]) -> RenderableType:
    """Promised and delivered, and where the time went, in 80 columns; below it what failed and why."""
    title = "Promised → delivered, and where the time went (ms)"
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for name in ("#", "TTFT", "TPOT", "kept", "queue", "prefill", "handoff", "decode", "relay", "tokens"):
        table.add_column(name, justify="left" if name == "kept" else "right", no_wrap=True)
    failures = []
    for number, answer in enumerate(answers, 1):
        table.add_row(str(number), *_cells(answer))
        if answer.error:
            failures.append(Text(f"{number}: {answer.error}", style="red"))
    return Group(table, *failures)


def _cells(answer: Answer) -> list[str | Text]:
    finished = answer.finished
    if finished is None:
        return ["–", "–", Text(answer.state, style="red")]
    delivery, split = finished.delivery, finished.split
    times = (split.queue_ms, split.prefill_ms, split.handoff_ms, split.decode_ms, split.relay_ms)
    return [
        _pair(finished.promise.ttft_ms, f"{delivery.ttft_ms:.0f}"),
        _pair(finished.promise.tpot_ms, "–" if delivery.tpot_ms is None else f"{delivery.tpot_ms:.1f}"),
        _kept(finished),
        *(f"{time_ms:.1f}" if time_ms < 10 else f"{time_ms:.0f}" for time_ms in times),
        str(finished.usage.output_tokens),
    ]


def _pair(promised: int | None, delivered: str) -> str:
    return f"{'–' if promised is None else promised}→{delivered}"


def _kept(finished: Finished) -> Text:
    if finished.promise.ttft_ms is None and finished.promise.tpot_ms is None:
        return Text("–")
    broken = broken_promises(finished)
    return Text(f"no: {broken}", style="red") if broken else Text("yes", style="green")
