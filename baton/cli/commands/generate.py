"""`baton generate`: one prompt, its continuation streamed to stdout."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from baton.async_client import AsyncClient
from baton.cli.exits import FAILED, OK
from baton.cli.request_flags import chat_of, request_of
from baton.cli.target import client_of
from baton.cli.views.generation_view import MessageView, split_line
from baton.parsing import ChoiceDelta, ParsedEvent
from baton.stream import GenerationStream
from baton.types import ChoiceFinished, Event, Finished, FinishReason
from baton.types.chat import ChatMessage, Prompt
from baton.wire.fields import rounded

E = TypeVar("E")


async def run(args: argparse.Namespace) -> int:
    async with client_of(AsyncClient, args, args.timeout_s) as client:
        stream = client.generate(
            prompt_of(args),
            **request_of(args),
            request_id=args.request_id,
            truncate_prompt_tokens=args.truncate_prompt_tokens,
        )
        if args.json:
            return await _show(stream, aiter(stream), print_json)
        return await _show(stream, stream.parsed(), TextPrinter(args.n or 1))


def prompt_of(args: argparse.Namespace) -> Prompt:
    """Return the prompt from the arguments or stdin."""
    text = sys.stdin.read() if args.prompt == "-" else args.prompt
    return chat_of(args, [ChatMessage("user", text)]) if args.chat or args.tools else text


async def _show(stream: GenerationStream, events: AsyncGenerator[E, None], show: Callable[[E], None]) -> int:
    reasons: list[FinishReason] = []
    async with aclosing(events):
        async for event in events:
            show(event)
            if isinstance(event, ChoiceFinished):
                reasons.append(event.reason)
            elif isinstance(event, Finished):
                print(split_line(event, reasons, stream.resumes), file=sys.stderr)
                if event.error:
                    print(f"baton: {event.error}", file=sys.stderr)
    return FAILED if FinishReason.FAILED in reasons else OK


def print_json(event: Event) -> None:
    print(json.dumps({"event": type(event).__name__, **rounded(dataclasses.asdict(event))}), flush=True)


class TextPrinter:
    """Print a single choice as it arrives, and several choices one by one as each finishes."""

    def __init__(self, num_choices: int) -> None:
        self._views = [MessageView(styled=sys.stdout.isatty()) for _ in range(num_choices)]
        self._texts = [""] * num_choices

    def __call__(self, event: ParsedEvent) -> None:
        if isinstance(event, ChoiceDelta):
            self._add(event.choice, self._views[event.choice].more(event.delta))
        elif isinstance(event, ChoiceFinished):
            self._add(event.choice, self._views[event.choice].end())
            print(
                "" if len(self._texts) == 1 else f"[{event.choice}] {self._texts[event.choice]}", flush=True
            )

    def _add(self, choice: int, text: str) -> None:
        if len(self._texts) == 1:
            print(text, end="", flush=True)
        self._texts[choice] += text
