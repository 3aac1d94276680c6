"""The functions that a tokenizer process runs for the pool, and what encodes chats there.

Chats are encoded in these processes, since templates, schemas and arguments are programs and data from
outside. The module is apart from the pool's, since a spawned process imports all that the module of its
functions imports: without gRPC and the rest of the router, it starts in half the time.
"""

from __future__ import annotations

import hashlib
import re
import string
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

import model_output.formats
from model_output.formats import ChatFormats, NotForcible, is_reasoning_open, special_markers
from model_output.grammar.bounds import bounded
from model_output.grammar.exact_numbers import check_numbers
from model_output.grammar.kept import Kept
from model_output.grammar.refusal import GrammarRefused
from model_output.text import output
from model_output.text.detokenizer import Detokenizer
from model_output.text.model_files import FileUnusable, read_tokenizer
from model_output.text.output import Beginning, OutputRules
from model_output.text.token_sizes import most_bytes_of_a_token
from router.intake.helpers.chat_template import ChatTemplate, TemplateRefused, limit_templates
from router.intake.helpers.plain_text import ControlTokens, Marks, ids_of
from router.request import ChatRefused, Conversation, InContent, Tool
from scheduling.request import StopRules

LEAST_CHARACTERS = 1024
"""Parts are at least this long; a shorter text is not cut."""
MAX_KEPT_TOKENS = 4 << 20
"""Four bytes for each."""
ENTRY_TOKENS = 128
"""Each part counts as so many more tokens, for its name and its place."""
MAX_SHARE = 8
"""A part is not kept if so many like it would not fit."""

_tokenizer: Tokenizer | None = None


_detokenizer: Detokenizer | None = None


_encoder: ChatEncoder | None = None


_unusable: FileUnusable | None = None


def start(
    tokenizer_file: str,
    template: ChatTemplate | None,
    formats: ChatFormats,
    special_tokens_in_content: InContent,
) -> None:
    """Load what the other functions use."""
    global _tokenizer, _detokenizer, _encoder, _unusable  # noqa: PLW0603 -- one of each in a process
    try:
        _tokenizer = read_tokenizer(Path(tokenizer_file))
    except FileUnusable as error:
        # An error here would break the pool without saying why; calls raise it.
        _unusable = error
        return
    _detokenizer = Detokenizer(_tokenizer)
    if template is not None:
        limit_templates()
        try:
            template.compile()
        except TemplateRefused as error:
            found = f"has a chat template that cannot be compiled ({error})"
            _unusable = FileUnusable(Path(tokenizer_file).parent, found, "a template that jinja compiles")
            return
        _encoder = ChatEncoder(_tokenizer, template, formats, special_tokens_in_content)


def ready() -> None:
    """Return when the process has started. Raises FileUnusable if it is of no use."""
    if _unusable is not None:
        raise _unusable


def encode(text: str, add_special_tokens: bool) -> list[int]:
    """Return the token ids of a text. Raises FileUnusable if there is no tokenizer."""
    if _unusable is not None:
        raise _unusable
    assert _tokenizer is not None, "the pool's initializer has run"
    return ids_of(_tokenizer, text, add_special_tokens=add_special_tokens)


def encode_words(words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    spellings = dict.fromkeys(spelling for word in words for spelling in (word, " " + word.lstrip(" ")))
    encoded = (tuple(encode(spelling, add_special_tokens=False)) for spelling in spellings)
    return tuple(dict.fromkeys(token_ids for token_ids in encoded if token_ids))


def encode_chat(chat: Conversation, has_format: bool, most_bytes: int | None, tenant: str) -> EncodedPrompt:
    ready()
    assert _encoder is not None, "the pool has a template"
    return _encoder.encode(chat, has_format=has_format, most_bytes=most_bytes, tenant=tenant)


def longest_token() -> int | None:
    """Return the most bytes of text that one token stands for; None if that has no known bound."""
    assert _tokenizer is not None, "the pool's initializer has run"
    return most_bytes_of_a_token(_tokenizer)


def decode(token_ids: list[int], skip_special_tokens: bool) -> str:
    assert _tokenizer is not None, "the pool's initializer has run"
    return str(_tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens))


def token_bytes(token_ids: list[int]) -> list[bytes]:
    assert _detokenizer is not None, "the pool's initializer has run"
    return [_detokenizer.bytes_of(token_id) for token_id in token_ids]


def beginning_of(
    prompt_tail: list[int], token_ids: list[int], stop: StopRules, rules: OutputRules
) -> Beginning:
    assert _detokenizer is not None, "the pool's initializer has run"
    return output.beginning_of(prompt_tail, token_ids, stop, rules, _detokenizer)


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
    """Encodes chats for one model: a prompt's tokens, and the grammar and notation of the calls asked for."""

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


class KeptTokens:
    """A tokenizer that remembers the parts of the last prompts, which a chat template has written.

    Each turn of a conversation sends all turns before it again. A text is cut before control tokens of the
    chat template. A tokenizer finds these before it does anything else, so what stands on either side of such
    a cut becomes the same tokens as in the whole. That needs control tokens that do not take in spaces before
    them, do not depend on the letter before them, and neither begin inside another one nor are the beginning
    of one that does; texts are not cut before others. Each tenant has what is kept to itself: the time of an
    answer must not say what others have sent.

    `written` are the template's own texts.
    """

    def __init__(self, tokenizer: Tokenizer, written: str, most_tokens: int = MAX_KEPT_TOKENS) -> None:
        self._tokenizer = tokenizer
        self._cuts = _cuts(tokenizer, written)
        self._most_tokens = most_tokens
        self._kept = Kept[tuple[str, bytes], "array[int]"](most_tokens)

    def ids_of(self, text: str, tenant: str) -> list[int]:
        """Return the ids of a tenant's text, which are those that the tokenizer returns for it."""
        if len(text) <= LEAST_CHARACTERS or self._cuts is None:
            return ids_of(self._tokenizer, text)
        *parts, last = _parts(text, self._cuts)
        ids: list[int] = []
        for part in parts:
            ids.extend(self._ids_of_part(part, tenant))
        # The next turn goes on in the midst of it.
        return ids + ids_of(self._tokenizer, last)

    def _ids_of_part(self, part: str, tenant: str) -> Iterable[int]:
        # Whoever found two texts of the same digest could have one read as the other.
        name = tenant, hashlib.blake2b(part.encode(), digest_size=32).digest()
        kept = self._kept.get(name)
        if kept is None:
            kept = array("I", ids_of(self._tokenizer, part))
            size = len(kept) + ENTRY_TOKENS
            if MAX_SHARE * size <= self._most_tokens:
                self._kept.put(name, kept, size)
        return kept


def _cuts(tokenizer: Tokenizer, written: str) -> re.Pattern[str] | None:
    """Return the pattern of control tokens before which any text may be cut; None if it has none."""
    if tokenizer.truncation is not None or tokenizer.padding is not None:
        return None
    found = [token for token in tokenizer.get_added_tokens_decoder().values() if not token.normalized]
    cuts = [re.escape(token.content) for token in found if token.content in written and _is_cut(token, found)]
    return re.compile("|".join(cuts)) if cuts else None


def _is_cut(token: AddedToken, all_tokens: Collection[AddedToken]) -> bool:
    text = token.content
    if text[:1] not in set(string.punctuation) - {"_"} or token.lstrip or token.single_word:
        return False
    return not any(
        _begins_inside(text, other.content)
        # Where the longer one stands, it is found instead.
        or (other.content.startswith(text) and (other.lstrip or other.single_word))
        for other in all_tokens
    )


def _begins_inside(text: str, other: str) -> bool:
    """Return whether an occurrence of `text` can begin within one of `other`, behind its first character."""
    place = other.find(text[0], 1)
    while place > 0:
        end = other[place:]
        if end.startswith(text) or text.startswith(end):
            return True
        place = other.find(text[0], place + 1)
    return False


def _parts(text: str, cuts: re.Pattern[str]) -> Iterator[str]:
    """Cut a text, in the same places whatever follows."""
    begin = 0
    for found in cuts.finditer(text):
        if found.start() - begin >= LEAST_CHARACTERS:
            yield text[begin : found.start()]
            begin = found.start()
    yield text[begin:]
