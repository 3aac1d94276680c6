"""The tokens of parts of earlier prompts, since each turn of a conversation sends all turns before it again.

A text is cut before control tokens of the chat template. A tokenizer finds these before it does anything
else, so what stands on either side of such a cut becomes the same tokens as in the whole. That needs control
tokens that do not take in spaces before them, do not depend on the letter before them, and neither begin
inside another one nor are the beginning of one that does; texts are not cut before others. Each tenant has
what is kept to itself: the time of an answer must not say what others have sent.
"""

from __future__ import annotations

import hashlib
import re
import string
from array import array
from collections.abc import Collection, Iterable, Iterator

from tokenizers import AddedToken, Tokenizer

from model_output.grammar.kept import Kept
from router.intake.plain_text.plain_tokenizer import ids_of

LEAST_CHARACTERS = 1024
"""Parts are at least this long; a shorter text is not cut."""
MAX_KEPT_TOKENS = 4 << 20
"""Four bytes for each."""
ENTRY_TOKENS = 128
"""Each part counts as so many more tokens, for its name and its place."""
MAX_SHARE = 8
"""A part is not kept if so many like it would not fit."""


class KeptTokens:
    """A tokenizer that remembers the parts of the last prompts, which a chat template has written.

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
