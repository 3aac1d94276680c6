"""`baton chat`: a conversation. Ctrl-C ends an answer; twice at the prompt, it ends the conversation."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable

from baton.chat import ChatMessage
from baton.cli.exits import OK, explain
from baton.cli.request_flags import request_of
from baton.cli.target import client_of
from baton.cli.views.summary import split_line
from baton.client import Client
from baton.errors import BatonError
from baton.types import ChoiceFinished, Finished, FinishReason, Tokens

HELP = "/reset forgets the conversation, /quit (or Ctrl-D) leaves, Ctrl-C ends an answer"


def run(args: argparse.Namespace) -> int:
    if sys.stdin.isatty():
        importlib.import_module("readline")  # imported for what it does to input(): editing and history
    with client_of(Client, args) as client:
        model = client.models()[0]
        if args.model not in ("", model.name):
            raise ValueError(f"--model is {args.model!r}: this fleet serves {model.name!r}")
        print(f"{model.name}, {model.max_context_tokens} tokens of context. {HELP}.")
        conversation = Conversation(client, args)
        read_lines(_read_line, conversation.handle)
    return OK


def _read_line() -> str:
    return input("\n> ")


def read_lines(ask: Callable[[], str], handle: Callable[[str], bool]) -> None:
    """Pass lines to `handle` until it returns False, the input ends, or Ctrl-C comes twice in a row."""
    interrupted = False
    while True:
        try:
            line = ask().strip()
            if line and not handle(line):
                return
            interrupted = False
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            if interrupted:
                print()
                return
            interrupted = True
            print("\n(Ctrl-C again leaves)")


class Conversation:
    """The messages so far; an answer that was interrupted stays in them as far as it came."""

    def __init__(self, client: Client, args: argparse.Namespace) -> None:
        self._client = client
        self._args = args
        self.messages: list[ChatMessage] = []
        self._reset()

    def handle(self, line: str) -> bool:
        """Handle one line. Return False if it ends the conversation."""
        match line:
            case "/quit" | "/exit":
                return False
            case "/reset":
                self._reset()
                print("(forgotten)")
            case _ if line.startswith("/"):
                print(HELP)
            case _:
                self._generate(line)
        return True

    def _reset(self) -> None:
        self.messages = [ChatMessage("system", self._args.system)] if self._args.system else []

    def _generate(self, line: str) -> None:
        self.messages.append(ChatMessage("user", line))
        text = ""
        reasons: list[FinishReason] = []
        try:
            stream = self._client.generate(self.messages, **request_of(self._args))
            for event in stream:
                if isinstance(event, Tokens):
                    text += event.text
                    print(event.text, end="", flush=True)
                elif isinstance(event, ChoiceFinished):
                    reasons.append(event.reason)
                elif isinstance(event, Finished):
                    end = f"\n\033[2m{split_line(event, reasons, stream.resumes)}\033[0m"
                    print(end if sys.stdout.isatty() else "")
                    if event.error:
                        print(f"baton: {event.error}", file=sys.stderr)
        except BatonError as error:
            print(f"baton: {explain(error)}", file=sys.stderr)
        except KeyboardInterrupt:
            print(" (ended)")
        if text:
            self.messages.append(ChatMessage("assistant", text))
        else:
            self.messages.pop()
