"""The functions that a tokenizer process runs for the pool.

It is a module of its own, since a spawned process imports all that the module of its functions imports:
without gRPC and the rest of the router, it starts in half the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from model_output.formats import ChatFormats
from model_output.text import output
from model_output.text.detokenizer import Detokenizer
from model_output.text.model_files import FileUnusable, read_tokenizer
from model_output.text.output import Beginning, OutputRules
from model_output.text.token_sizes import most_bytes_of_a_token
from router.intake.helpers.chat_encoder import ChatEncoder, EncodedPrompt
from router.intake.helpers.chat_template import ChatTemplate, TemplateRefused
from router.intake.helpers.template_limits import limit_templates
from router.intake.plain_text.plain_tokenizer import ids_of
from router.request import Conversation, InContent
from scheduling.request import StopRules

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
    assert _encoder is not None, "checked before"
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
