"""`baton generate`: one prompt, its continuation streamed to stdout."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable

from baton.async_client import AsyncClient
from baton.chat import Chat, ChatMessage, Prompt
from baton.cli.exits import FAILED, OK
from baton.cli.request_flags import request_of
from baton.cli.target import client_of
from baton.cli.views.summary import split_line
from baton.stream import GenerationStream
from baton.types import ChoiceFinished, Event, Finished, FinishReason, Tokens


async def run(args: argparse.Namespace) -> int:
    async with client_of(AsyncClient, args, args.timeout_s) as client:
        stream = client.generate(
            prompt_of(args),
            **request_of(args),
            request_id=args.request_id,
            truncate_prompt_tokens=args.truncate_prompt_tokens,
        )
        return await _show(stream, print_json if args.json else TextPrinter(args.n or 1))


def prompt_of(args: argparse.Namespace) -> Prompt:
    """Return the prompt from the arguments or stdin."""
    text = sys.stdin.read() if args.prompt == "-" else args.prompt
    return Chat([ChatMessage("user", text)], dict(args.template_argument)) if args.chat else text


async def _show(stream: GenerationStream, show: Callable[[Event], None]) -> int:
    reasons: list[FinishReason] = []
    async with stream:
        async for event in stream:
            show(event)
            if isinstance(event, ChoiceFinished):
                reasons.append(event.reason)
            elif isinstance(event, Finished):
                print(split_line(event, reasons, stream.resumes), file=sys.stderr)
                if event.error:
                    print(f"baton: {event.error}", file=sys.stderr)
    return FAILED if FinishReason.FAILED in reasons else OK


def print_json(event: Event) -> None:
    print(json.dumps({"event": type(event).__name__, **dataclasses.asdict(event)}), flush=True)


class TextPrinter:
    """Print a single choice as it arrives, and several choices one by one as each finishes."""

    def __init__(self, num_choices: int) -> None:
        self._texts = [""] * num_choices

    def __call__(self, event: Event) -> None:
        if isinstance(event, Tokens):
            if len(self._texts) == 1:
                print(event.text, end="", flush=True)
            self._texts[event.choice] += event.text
        elif isinstance(event, ChoiceFinished):
            print(
                "" if len(self._texts) == 1 else f"[{event.choice}] {self._texts[event.choice]}", flush=True
            )
