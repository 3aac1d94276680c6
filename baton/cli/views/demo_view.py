"""The demo's outputs side by side as they arrive, and a table of promised and delivered latencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from baton.cli.views.demo_prompts import DemoPrompt
from baton.cli.views.summary import broken_promises
from baton.types import Event, Finished, Queued, Tokens

_NARROWEST_PANEL = 38


@dataclass(slots=True)
class Answer:
    """The state and output of one request."""

    prompt: DemoPrompt
    text: str = ""
    state: str = "sent"
    finished: Finished | None = None
    error: str = ""

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


class SideBySide:
    """All answers as a grid that fits the terminal; each panel shows the end of its answer."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = max(1, min(3, options.max_width // _NARROWEST_PANEL))
        rows = -(-len(self._answers) // columns)
        height = max(4, min(12, (console.height - 1) // rows))
        width = options.max_width // columns
        grid = Table.grid()
        for start in range(0, len(self._answers), columns):
            shown = self._answers[start : start + columns]
            grid.add_row(*(self._panel(answer, width, height, console) for answer in shown))
        yield grid

    def _panel(self, answer: Answer, width: int, height: int, console: Console) -> Panel:
        style = {"streaming": "green", "done": "cyan", "failed": "red"}.get(answer.state, "dim")
        body = Text.assemble((answer.prompt.shown, "bold"), answer.text, (answer.error, "red"))
        lines = body.wrap(console, width - 4)[-(height - 2) :]
        return Panel(
            Text("\n").join(lines),
            title=Text(answer.prompt.title, style="bold", overflow="ellipsis"),
            title_align="left",
            subtitle=Text(answer.state, style=style),
            subtitle_align="right",
            border_style=style,
            width=width,
            height=height,
        )


class LineByLine:
    """For what is not a terminal: every answer's lines as they become whole, with its number before them."""

    def __init__(self, console: Console, width: int = 72) -> None:
        self._console = console
        self._width = width
        self._pending: dict[int, str] = {}

    def say(self, number: int, text: str) -> None:
        *lines, rest = self._wrap(self._pending.get(number, "") + text)
        for line in lines:
            self._print(number, line)
        self._pending[number] = rest

    def end(self, number: int) -> None:
        if rest := self._pending.pop(number, ""):
            self._print(number, rest)

    def _wrap(self, text: str) -> list[str]:
        lines: list[str] = []
        for line in text.split("\n"):
            rest = line
            while len(rest) > self._width:
                cut = rest.rfind(" ", 1, self._width) + 1 or self._width
                lines.append(rest[:cut].rstrip())
                rest = rest[cut:]
            lines.append(rest)
        return lines

    def _print(self, number: int, line: str) -> None:
        if not line.strip():
            return
        self._console.print(Text(f"[{number}] {line}"), soft_wrap=True)


def results(answers: Sequence[Answer]) -> RenderableType:
    """Promised and delivered, and where the time went, in 80 columns; below it what failed and why."""
    title = "Promised → delivered, and where the time went (ms)"
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("#", justify="right")
    for name in ("TTFT", "TPOT"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("kept", no_wrap=True)
    for name in ("queue", "prefill", "handoff", "decode", "relay", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, answer in enumerate(answers, 1):
        table.add_row(str(number), *_cells(answer))
    failures = [
        Text(f"{number}: {answer.error}", style="red")
        for number, answer in enumerate(answers, 1)
        if answer.error
    ]
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
