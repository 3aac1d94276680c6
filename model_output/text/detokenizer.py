"""Decode tokens one at a time, so that the pieces add up to exactly the tokenizer's text of all tokens.

A token may end inside a character; its bytes wait until the character is complete or turns out to be invalid.
For byte-level vocabularies (GPT-2, Llama 3, Qwen and most others), a table of each token's bytes and an
incremental UTF-8 decoder suffice. For every other decoder, the tokenizer itself decodes a short window of
tokens together with the tokens that precede it, since decoders treat the beginning of a text differently.
In both cases the cost of a token does not depend on how many came before.

The text of an output is what the tokenizer's text of prompt and output has more than its text of the prompt:
the blank before a word belongs to the output, and so does a character that the prompt has only begun. For
that, a stream looks at the end of the prompt.
"""

from __future__ import annotations

import codecs
import contextlib
import enum
import json
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol, Self

from tokenizers import Tokenizer

from model_output.text.model_files import read_tokenizer

PROMPT_TAIL = 64
"""The last tokens of a prompt that a stream looks at, to find one that has text."""

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


class TextStream(Protocol):
    """Turns the tokens of one output into text."""

    def push(self, token_id: int) -> str:
        """Return the text that this token makes certain; it may be empty or include earlier tokens' text."""
        ...

    def flush(self) -> str:
        """Return the rest, incomplete characters as U+FFFD. Push nothing afterwards."""
        ...


class Detokenizer:
    """The tables of one tokenizer, which its streams share."""

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read the `tokenizer.json` of a model. Raises FileUnusable."""
        return cls(read_tokenizer(path))

    def __init__(self, tokenizer: Tokenizer) -> None:
        decoder: dict[str, Any] = json.loads(tokenizer.to_str()).get("decoder") or {}
        table = _ByteTable if decoder.get("type") == "ByteLevel" else _PieceTable
        self._without_special = table(tokenizer, _special_ids(tokenizer))
        self._with_special = table(tokenizer, frozenset())

    def stream(self, prompt_token_ids: Sequence[int] = (), *, skip_special_tokens: bool = True) -> TextStream:
        """Start the text that follows a prompt, of which the last `PROMPT_TAIL` tokens are enough.

        Special tokens, such as end-of-sequence, have no text if they are skipped.
        """
        table = self._without_special if skip_special_tokens else self._with_special
        tail = prompt_token_ids[-PROMPT_TAIL:]
        return _ByteStream(table, tail) if isinstance(table, _ByteTable) else _WindowStream(table, tail)

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of one token by itself; none if the id is beyond the tokenizer's vocabulary."""
        return self._with_special[token_id]


class _ByteTable:
    """The bytes of each token of a byte-level vocabulary, looked up once."""

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._bytes: dict[int, bytes] = {}
        self.whole: dict[int, str] = {}
        """Texts of the tokens seen so far whose bytes are whole characters."""

    def __getitem__(self, token_id: int) -> bytes:
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._look_up(token_id)
            with contextlib.suppress(UnicodeDecodeError):  # it may begin or end inside a character
                self.whole[token_id] = data.decode()
        return data

    def last_bytes(self, token_ids: Sequence[int]) -> bytes:
        """Return the last bytes of a text, as many as a character may have."""
        data = b""
        for token_id in reversed(token_ids):
            data = self[token_id] + data
            if len(data) >= _MAX_CHARACTER_BYTES:
                break
        return data[-_MAX_CHARACTER_BYTES:]

    def _look_up(self, token_id: int) -> bytes:
        token = None if token_id in self._skipped else self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        try:
            return bytes(_BYTE_OF_CHARACTER[character] for character in token)
        except KeyError:
            return token.encode()  # an added token stands for its own text


class _ByteStream:
    def __init__(self, table: _ByteTable, tail: Sequence[int]) -> None:
        self._table = table
        self._whole = table.whole
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # Wherever these bytes begin, what is left is the character that the prompt does not complete.
        self._decoder.decode(table.last_bytes(tail))
        self._is_inside_character = bool(self._decoder.getstate()[0])
        self._is_of_prompt = self._is_inside_character
        """The prompt has begun the character. If it stays incomplete, its U+FFFD is in the prompt's text."""

    def push(self, token_id: int) -> str:
        if not self._is_inside_character:
            text = self._whole.get(token_id)
            if text is not None:
                return text
        return self._decode(self._table[token_id])

    def flush(self) -> str:
        return self._decode(b"", is_end=True)

    def _decode(self, data: bytes, *, is_end: bool = False) -> str:
        text = self._decoder.decode(data, is_end)
        self._is_inside_character = bool(self._decoder.getstate()[0])
        if self._is_of_prompt and text:
            self._is_of_prompt = False
            return text.removeprefix("\ufffd")
        return text


class _Kind(enum.Enum):
    SILENT = "silent"
    """A skipped special token, or a token beyond the tokenizer's vocabulary."""
    BYTE = "byte"
    """One raw byte. A run of bytes is decoded when it ends: a later byte can make earlier ones invalid."""
    PIECE = "piece"


class _PieceTable:
    """A tokenizer, and the kind of each token, looked up once."""

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._kinds: dict[int, _Kind] = {}

    def kind(self, token_id: int) -> _Kind:
        kind = self._kinds.get(token_id)
        if kind is None:
            kind = self._kinds[token_id] = self._look_up(token_id)
        return kind

    def __getitem__(self, token_id: int) -> bytes:
        kind = self.kind(token_id)
        if kind is _Kind.SILENT:
            return b""
        if kind is _Kind.BYTE:
            return bytes([int(str(self._tokenizer.id_to_token(token_id))[1:-1], 16)])
        # After itself, since decoders drop the space before the first token of a text.
        return self.decode([token_id, token_id])[len(self.decode([token_id])) :].encode()

    def window(self, tail: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the last tokens of a prompt that have text: one piece, and the bytes that follow it."""
        run: list[int] = []
        for token_id in reversed(tail):
            kind = self.kind(token_id)
            if kind is _Kind.PIECE:
                return [token_id], run[::-1]
            if kind is _Kind.BYTE:
                run.append(token_id)
        # If the run is longer than the tail, the tail may begin inside a character.
        while len(tail) == PROMPT_TAIL and run and 0x80 <= self[run[-1]][0] < 0xC0:
            run.pop()
        return [], run[::-1]

    def decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=bool(self._skipped))

    def _look_up(self, token_id: int) -> _Kind:
        token = None if token_id in self._skipped else self._tokenizer.id_to_token(token_id)
        if token is None:
            return _Kind.SILENT
        return _Kind.BYTE if _BYTE_TOKEN.fullmatch(token) else _Kind.PIECE


class _WindowStream:
    def __init__(self, table: _PieceTable, tail: Sequence[int]) -> None:
        self._table = table
        self._settled, self._pending = table.window(tail)
        self._of_prompt = self._text() if self._pending else ""
        """The text of pending tokens of the prompt, unless what follows gives them another one."""

    def push(self, token_id: int) -> str:
        kind = self._table.kind(token_id)
        if kind is _Kind.SILENT:
            return ""
        self._pending.append(token_id)
        return "" if kind is _Kind.BYTE else self._settle()

    def flush(self) -> str:
        return self._settle() if self._pending else ""

    def _settle(self) -> str:
        text = self._text()
        # Only what follows the last settled token is needed as the next window's context.
        self._settled, self._pending = self._pending, []
        if self._of_prompt:
            text, self._of_prompt = _beyond(self._of_prompt, text), ""
        return text

    def _text(self) -> str:
        before = self._table.decode(self._settled) if self._settled else ""
        return self._table.decode(self._settled + self._pending)[len(before) :]


def _beyond(before: str, text: str) -> str:
    """Return what follows the beginning that both have in common."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(before, text, strict=False))
    return text[sum(1 for _ in same) :]


def _special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)


def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's table: printable bytes stand for themselves, the others follow from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + rank): byte for rank, byte in enumerate(others)})
    return table


_BYTE_OF_CHARACTER = _byte_of_character()
_MAX_CHARACTER_BYTES = 4
