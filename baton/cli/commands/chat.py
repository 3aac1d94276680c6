"""`baton chat`: a conversation. Ctrl-C ends an answer; twice at the prompt, it ends the conversation."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
from collections.abc import Callable

from baton.cli.exits import OK, explain
from baton.cli.request_flags import chat_of, request_of
from baton.cli.target import client_of
from baton.cli.views.generation_view import MessageView, is_whole, shortened, split_line
from baton.client import BlockingStream, Client
from baton.errors import BatonError
from baton.parsing import ChoiceDelta
from baton.types import ChoiceFinished, Finished, FinishReason
from baton.types.chat import ChatMessage, ToolCall
from baton.types.deltas import Delta, said_by_assistant

HELP = "/reset forgets the conversation, /quit (or Ctrl-D) leaves, Ctrl-C ends an answer"


def run(args: argparse.Namespace) -> int:
    if sys.stdin.isatty():
        importlib.import_module("readline")  # imported for what it does to input(): editing and history
    with client_of(Client, args) as client:
        model = client.models()[0]
        if args.model not in ("", model.name, *model.more_names):
            raise ValueError(f"--model is {args.model!r}: this fleet serves {model.name!r}")
        print(f"{model.name}, {model.max_context_tokens} tokens of context. {HELP}.")
        conversation = Conversation(client, args)
        read_lines(lambda: input(conversation.prompt), conversation.handle)
    return OK


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
    """The messages so far; an answer that was interrupted stays in them as far as it came.

    After calls of tools, each next line is the result of one, in their order.
    """

    def __init__(self, client: Client, args: argparse.Namespace) -> None:
        self._client = client
        self._args = args
        self.messages: list[ChatMessage] = []
        self._called: list[ToolCall] = []
        self._reset()

    @property
    def prompt(self) -> str:
        """The words that ask for the next line."""
        if not self._called:
            return "\n> "
        call = self._called[0]
        return f"\n{call.name}({shortened(call.arguments)}) returns> "

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
            case _ if self._called:
                call = self._called.pop(0)
                self.messages.append(ChatMessage("tool", line, tool_call_id=call.id, name=call.name))
                if not self._called:
                    self._generate()
            case _:
                self.messages.append(ChatMessage("user", line))
                self._generate()
        return True

    def _reset(self) -> None:
        self.messages = [ChatMessage("system", self._args.system)] if self._args.system else []
        self._called = []

    def _generate(self) -> None:
        deltas: list[Delta] = []
        view = MessageView(styled=sys.stdout.isatty())
        try:
            stream = self._client.generate(chat_of(self._args, self.messages), **request_of(self._args))
            _show(stream, view, deltas)
        except BatonError as error:
            print(f"baton: {explain(error)}", file=sys.stderr)
        except KeyboardInterrupt:
            print(view.end() + " (ended)")
        message = said_by_assistant(deltas)
        self._called = [call for call in message.tool_calls if is_whole(call.arguments)]
        if message.content or self._called:
            self.messages.append(dataclasses.replace(message, tool_calls=tuple(self._called)))
        else:
            unanswered = self.messages.pop()
            if unanswered.role == "tool":
                self._called = [ToolCall(unanswered.tool_call_id, unanswered.name, "")]


def _show(stream: BlockingStream, view: MessageView, deltas: list[Delta]) -> None:
    """Print a message as it comes, and add its deltas to `deltas`."""
    reasons: list[FinishReason] = []
    for event in stream.parsed():
        if isinstance(event, ChoiceDelta):
            deltas.append(event.delta)
            print(view.more(event.delta), end="", flush=True)
        elif isinstance(event, ChoiceFinished):
            reasons.append(event.reason)
            print(view.end(), end="")
        elif isinstance(event, Finished):
            end = f"\n\033[2m{split_line(event, reasons, stream.resumes)}\033[0m"
            print(end if sys.stdout.isatty() else "")
            if event.error:
                print(f"baton: {event.error}", file=sys.stderr)
