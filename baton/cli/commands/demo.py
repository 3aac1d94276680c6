"""`baton demo`: a fleet from nothing, six prompts at once, what was promised and delivered, nothing left."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from baton.async_client import AsyncClient
from baton.cli.arguments import spec_of
from baton.cli.exits import FAILED, OK, explain
from baton.cli.views.demo_view import COMPLETIONS, QUESTIONS, Answer, results, side_by_side
from baton.cli.views.fleet_reporter import FleetReporter
from baton.errors import BatonError
from baton.fleet import Fleet, FleetSpec
from baton.types import Sampling, Slo, Stop, Timeout

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
