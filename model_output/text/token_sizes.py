"""How much text one token can stand for: a longer text has more tokens, which need not be counted.

A text of B bytes has at least B / L tokens if no token stands for more than L bytes. That is so for byte-pair
encodings that know every byte, as nearly all language models have them. Where a tokenizer may drop text, or
make one unknown token of a whole word, or where a token takes the blanks around it, there is no bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

NFC_SHRINKS_TO = 3
"""Composing characters makes a text shorter by less than this factor: the most is 8 bytes to 3."""
_KEEPING = {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"}
"""Pre-tokenizers that only part a text, unless what they find is removed."""

Json = Mapping[str, Any]


def most_bytes_of_a_token(tokenizer: Tokenizer) -> int | None:
    """Return the most bytes of a text that become one token; None if the tokenizer has no known bound."""
    document = json.loads(tokenizer.to_str())
    model, added = document["model"], document["added_tokens"]
    normalizers = list(_flat(document["normalizer"], "normalizers"))
    splitters = list(_flat(document["pre_tokenizer"], "pretokenizers"))
    shrinks = [_shrinks_to(normalizer) for normalizer in normalizers]
    keeps_all = (
        model["type"] == "BPE"
        and document["truncation"] is None
        and all(shrinks)
        and all(part["type"] in _KEEPING and part.get("behavior") != "Removed" for part in splitters)
        and not any(token["lstrip"] or token["rstrip"] for token in added)
    )
    if not keeps_all:
        return None
    if any(part["type"] == "ByteLevel" for part in splitters):
        # Each character of a token is a byte. There are 256 of them.
        sizes = [len(text) for text in model["vocab"]]
        knows_all = sum(len(text) == 1 for text in model["vocab"]) >= 256
    else:
        sizes = [len(text.encode()) for text in model["vocab"]]
        knows_all = bool(model["byte_fallback"]) and all(
            f"<0x{byte:02X}>" in model["vocab"] for byte in range(256)
        )
    if not knows_all:
        return None
    shrink = max((factor for factor in shrinks if factor), default=1)
    return shrink * max(sizes + [len(token["content"].encode()) for token in added])


def _flat(part: Json | None, inner: str) -> Iterator[Json]:
    """Return the parts of a sequence, or a part alone."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for each in part[inner]:
        yield from _flat(each, inner)


def _shrinks_to(normalizer: Json) -> int:
    """Return the factor by which a text has fewer bytes afterwards, at most; 0 if none is known."""
    if normalizer["type"] == "NFC":
        return NFC_SHRINKS_TO
    if normalizer["type"] == "Prepend":
        return 1
    if normalizer["type"] == "Replace":
        pattern = normalizer["pattern"].get("String")
        return int(pattern is not None and len(normalizer["content"].encode()) >= len(pattern.encode()))
    return 0
