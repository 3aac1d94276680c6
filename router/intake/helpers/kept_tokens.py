"""The tokens of parts of earlier prompts, since each turn of a conversation sends all turns before it again.

A text is cut before control tokens. These are found before a tokenizer does anything else, so what stands on
either side of such a cut becomes the same tokens as in the whole. That needs control tokens that do not take
in spaces before them, do not depend on the letter before them, and cannot begin inside another one; texts are
not cut before others. Each tenant has what is kept to itself: the time of an answer must not say what others
have sent.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterable, Iterator

from tokenizers import AddedToken, Tokenizer

from model_output.grammar.kept import Kept
from router.intake.plain_text.plain_tokenizer import ids_of

LEAST_CHARACTERS = 1024
"""Parts are at least this long; a shorter text is not cut."""
MAX_KEPT_CHARACTERS = 16 << 20
"""Characters of the parts that are kept, some four for a token, which takes four bytes."""


class KeptTokens:
    """A tokenizer that remembers the parts of the last prompts."""

    def __init__(self, tokenizer: Tokenizer, most_characters: int = MAX_KEPT_CHARACTERS) -> None:
        self._tokenizer = tokenizer
        self._cuts = _cuts(tokenizer)
        self._kept = Kept[tuple[str, bytes], "array[int]"](most_characters)

    def ids_of(self, text: str, tenant: str) -> list[int]:
        """Return the ids of a tenant's text, which are those that the tokenizer returns for it."""
        if len(text) <= LEAST_CHARACTERS or self._cuts is None:
            return ids_of(self._tokenizer, text)
        ids: list[int] = []
        for part in _parts(text, self._cuts):
            ids.extend(self._ids_of_part(part, tenant))
        return ids

    def _ids_of_part(self, part: str, tenant: str) -> Iterable[int]:
        # Whoever found two texts of the same digest could have one read as the other.
        name = tenant, hashlib.blake2b(part.encode(), digest_size=32).digest()
        kept = self._kept.get(name)
        if kept is None:
            kept = array("I", ids_of(self._tokenizer, part))
            if len(part) >= LEAST_CHARACTERS:
                self._kept.put(name, kept, len(part))
        return kept


def _cuts(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Return the pattern of control tokens before which any text may be cut; None if it has none."""
    if tokenizer.truncation is not None or tokenizer.padding is not None:
        return None
    found = [token for token in tokenizer.get_added_tokens_decoder().values() if not token.normalized]
    contents = [token.content for token in found if token.content]
    cuts = [re.escape(token.content) for token in found if _is_cut(token, contents)]
    return re.compile("|".join(cuts)) if cuts else None


def _is_cut(token: AddedToken, contents: Iterable[str]) -> bool:
    text = token.content
    return (
        bool(re.match(r"[^\w\s]", text))
        and not token.lstrip
        and not token.single_word
        and not any(_begins_inside(text, other) for other in contents)
    )


def _begins_inside(text: str, other: str) -> bool:
    """Return whether an occurrence of `text` can begin within one of `other`, behind its first character."""
    ends = (other[place:] for place in range(1, len(other)))
    return any(end.startswith(text) or text.startswith(end) for end in ends)


def _parts(text: str, cuts: re.Pattern[str]) -> Iterator[str]:
    """Cut a text, in the same places whatever follows."""
    begin = 0
    for found in cuts.finditer(text):
        if found.start() - begin >= LEAST_CHARACTERS:
            yield text[begin : found.start()]
            begin = found.start()
    yield text[begin:]
