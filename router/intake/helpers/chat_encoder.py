"""Encode a chat: its prompt's tokens, and the grammar and notation of the calls that it asks for.

It runs in the tokenizer processes, since templates, schemas and arguments are programs and data from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tokenizers import Tokenizer

import model_output.formats
from model_output.formats import ChatFormats, NotForcible, is_reasoning_open, special_markers
from model_output.grammar.bounds import bounded
from model_output.grammar.exact_numbers import check_numbers
from model_output.grammar.refusal import GrammarRefused
from router.intake.helpers.chat_template import ChatTemplate, TemplateRefused
from router.intake.helpers.kept_tokens import KeptTokens
from router.intake.plain_text.control_tokens import ControlTokens, Marks
from router.request import ChatRefused, Conversation, InContent, Tool


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt's tokens, and what its output is like."""

    token_ids: list[int]
    formats: ChatFormats = field(default_factory=ChatFormats)
    """How the output writes tool calls and reasoning, if it may."""
    reasoning_open: bool = False
    has_special_markers: bool = False
    """It writes them with special tokens."""
    calls_grammar: str = ""
    """The Lark grammar that the output must follow, so that its calls are as asked for."""
    around_format: str = ""
    """The Lark grammar of an output in a format with what may come before it or in its place: reasoning, and
    calls. Empty if there is nothing but the format."""


class PromptTooLong(Exception):
    """A prompt has more bytes than so many tokens can stand for."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(num_bytes)
        self.num_bytes = num_bytes


class ChatEncoder:
    """Encodes chats for one model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        formats: ChatFormats,
        special_tokens_in_content: InContent = InContent.TEXT,
    ) -> None:
        self._tokens = KeptTokens(tokenizer, template.written)
        self._template = template
        self._formats = formats
        self._control = ControlTokens(tokenizer, template.written, formats, special_tokens_in_content)
        added = tokenizer.get_added_tokens_decoder()
        self._special = {token.content: token_id for token_id, token in added.items() if token.special}
        self._markers = self._special | {
            token.content: token_id
            for token_id, token in added.items()
            if token.content.startswith("<") and token.content.endswith(">")
        }
        """Tokens that grammars have to name by their ids. llguidance takes any added token in angle brackets,
        such as Qwen's `<tool_call>`, for a special one, which the same text in a grammar does not match."""

    def encode(
        self, chat: Conversation, *, has_format: bool = False, most_bytes: int | None = None, tenant: str = ""
    ) -> EncodedPrompt:
        """Return an encoded chat, whose output may have a format.

        Raises `TemplateRefused`, `ChatRefused` naming a field, or `PromptTooLong` for a rendered chat of more
        than `most_bytes`.
        """
        schemas = chat.schemas()
        marks = self._control.marks_for(chat)
        text = self._template.render(chat, schemas, marks)
        num_bytes = _check_shown(chat, text if marks is None else marks.restored(text))
        if most_bytes is not None and num_bytes > most_bytes:
            raise PromptTooLong(num_bytes)
        continued = chat.messages[-1].content if chat.options.continue_final_message else ""
        if marks is not None and continued:
            continued = marks.content(chat.messages[-1].role, continued)
        is_open = is_reasoning_open(self._formats, text, continued)
        formats = self._formats if chat.shown_tools else replace(self._formats, tools="")
        grammar = partial(self._grammar, chat, schemas, reasoning_open=is_open)
        calls_grammar = around_format = ""
        if chat.forces_a_call:
            calls_grammar = grammar(model_output.formats.forced_calls, formats)
        elif has_format:
            # What continues a message goes on in it, without thinking again.
            goes_on = chat.options.continue_final_message and not is_open
            around = replace(formats, reasoning="") if goes_on else formats
            around_format = grammar(model_output.formats.around_format, around)
        elif chat.guides_calls:
            calls_grammar = grammar(model_output.formats.guided_calls, formats)
        return EncodedPrompt(
            self._tokens_of(text, marks, tenant),
            formats,
            is_open,
            bool(special_markers(formats, self._special)),
            calls_grammar,
            around_format,
        )

    def _tokens_of(self, text: str, marks: Marks | None, tenant: str) -> list[int]:
        # The template writes the special tokens itself.
        return self._tokens.ids_of(text, tenant) if marks is None else marks.encode(text)

    def _grammar(
        self,
        chat: Conversation,
        schemas: Sequence[dict[str, Any]],
        write: Callable[..., str],
        formats: ChatFormats,
        *,
        reasoning_open: bool,
    ) -> str:
        """Return a grammar with the calls that are asked for. Raises `ChatRefused`."""
        asked = [
            (tool, schema)
            for tool, schema in zip(chat.tools, schemas, strict=True)
            if chat.shown_tools and chat.named_tool in {None, tool.name}
        ]
        for tool, schema in asked:
            _check_numbers(tool, schema, f"chat.tools[{chat.tools.index(tool)}].parameters")
        try:
            tools = [
                model_output.formats.Tool(tool.name, tool.description, bounded(schema), tool.strict)
                for tool, schema in asked
            ]
            return write(
                formats,
                tools,
                parallel=chat.parallel_tool_calls is not False and chat.named_tool is None,
                reasoning_open=reasoning_open,
                special_tokens=self._markers,
            )
        except (NotForcible, RecursionError) as error:
            why = error if isinstance(error, NotForcible) else "one is nested too deeply"
            names = ", ".join(tool.name for tool, _ in asked)
            raise ChatRefused("chat.tools", names, f"schemas that can be guaranteed ({why})") from None


def _check_numbers(tool: Tool, schema: dict[str, Any], where: str) -> None:
    try:
        check_numbers(schema)
    except GrammarRefused as refused:
        raise ChatRefused(where, tool.parameters, f"a schema that can be guaranteed ({refused})") from None


def _check_shown(chat: Conversation, text: str) -> int:
    """Return the number of bytes of a rendered chat, which must show all that it has to."""
    for place, tool in enumerate(chat.shown_tools):
        if tool.name not in text:
            raise ChatRefused(
                f"chat.tools[{place}]", tool.name, "unset: the model's chat template does not show it here"
            )
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise TemplateRefused(f"the rendered chat is not valid Unicode: {error.reason}") from None
