"""Read the texts of a call's choices, in which each family of models writes calls and reasoning its own way.

Deltas are a function of the tokens before. So a call that resumes reads the text of the tokens that its
client has, and goes on with exactly the deltas that the client lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from model_output.formats import ChatFormats, Delta, OutputParser, Tool
from model_output.grammar.exact_numbers import schema_of
from scheduling.request import FinishReason, Matched


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read the texts of a request's choices.

    formats         how they write calls and reasoning; empty names if they are nothing but content
    reasoning_open  the prompt ends inside reasoning
    tools           the tools that calls may name
    has_format      the content is calls or one text in an output format
    received        the text of the tokens that the client has, by choice
    """

    formats: ChatFormats = field(default_factory=ChatFormats)
    reasoning_open: bool = False
    tools: tuple[Tool, ...] = ()
    has_format: bool = False
    received: Mapping[int, str] = field(default_factory=dict)

    @property
    def has_deltas(self) -> bool:
        """Return True if texts may say more than content."""
        return bool(self.formats.tools or self.formats.reasoning)


class OutputReader:
    """Reads the texts of one call's choices as they come, from what its client has on."""

    __slots__ = ("_parsers", "_request_id", "has_deltas", "reading")

    def __init__(self, reading: Reading, request_id: str) -> None:
        """The ids of calls are made of `request_id` and the choice, so they are the same in every session."""
        self.reading = reading
        self.has_deltas = reading.has_deltas
        self._request_id = request_id
        self._parsers: dict[int, OutputParser] = {}

    def read(self, choice: int, text: str) -> list[Delta]:
        """Return what more text of a choice says. Only for texts with `has_deltas`."""
        return self._parser(choice).feed(text)

    def end(self, choice: int, reason: FinishReason, matched: Matched | None) -> list[Delta]:
        """Return the rest of what a choice says, which has ended. Only for texts with `has_deltas`."""
        return self._parser(choice).finish(_cut_before(reason, matched))

    def has_cut_call(self, choice: int) -> bool:
        """Return True if the arguments of a call broke off. Only for texts with `has_deltas`."""
        return self._parser(choice).has_cut_call

    def seed_of(self, choice: int) -> str:
        """Return the name of a choice, of which the ids of its calls are made."""
        return f"{self._request_id}/{choice}"

    def _parser(self, choice: int) -> OutputParser:
        parser = self._parsers.get(choice)
        if parser is None:
            reading = self.reading
            parser = self._parsers[choice] = OutputParser(
                reading.formats,
                reading.tools,
                seed=self.seed_of(choice),
                reasoning_open=reading.reasoning_open,
                has_format=reading.has_format,
            )
            parser.feed(reading.received.get(choice, ""))
        return parser


def _cut_before(reason: FinishReason, matched: Matched | None) -> str | None:
    """Return the stop string before which an output was cut off, or nothing where none is known.

    None if the model ended it, which a stop token counts as.
    """
    matched = matched or Matched()
    if reason is FinishReason.EOS or matched.stop_token_id is not None:
        return None
    return matched.stop_string or ""


def tool_to_read(name: str, parameters: str) -> Tool:
    """Return a tool whose parameters, a JSON text that has been checked, are parsed if a call needs them."""
    return Tool(name, parameters=_LazySchema(parameters))


class _LazySchema(Mapping[str, Any]):
    """A schema of which only notations without quotes need the types."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _schema(self) -> Mapping[str, Any]:
        try:
            found = schema_of(self._text or "{}")
        except RecursionError:  # the checks had more of the stack left: without types, a value says its own
            return {}
        return found if isinstance(found, dict) else {}

    def __getitem__(self, key: str) -> Any:
        return self._schema[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schema)

    def __len__(self) -> int:
        return len(self._schema)
