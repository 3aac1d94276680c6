"""A tokenizer that reads the texts of control tokens as text, and knows these tokens by other names.

A tokenizer finds a control token wherever its text stands. Here the tokens have secret names instead, in the
list of added tokens as well as in the vocabulary and in the merges. So nothing that a caller writes becomes a
control token, and a text without any is split as by the tokenizer itself: prefixes, normalisation and merges
reach across the places where control tokens are spelled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer


def ids_of(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
    """Return the ids of a text, without its tokens' places in it, which take two thirds of the time."""
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return list(encoding.ids)


class PlainTokenizer:
    """A copy of `tokenizer` in which tokens have the names of `names`."""

    def __init__(self, tokenizer: Tokenizer, names: Mapping[str, str]) -> None:
        stated = json.loads(tokenizer.to_str())
        for token in stated["added_tokens"]:
            token["content"] = names.get(token["content"], token["content"])
        stated["model"] = _renamed(stated["model"], names)
        self._tokenizer = Tokenizer.from_str(json.dumps(stated))
        self._token_ids: dict[int, int] = {}
        """The id of each added token in `tokenizer`, by its id here."""
        for token_id, token in tokenizer.get_added_tokens_decoder().items():
            own_id = self._tokenizer.token_to_id(names.get(token.content, token.content))
            assert own_id is not None, f"{token.content!r} is an added token of the copy too"
            if own_id != token_id:
                self._token_ids[own_id] = token_id

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text that has control tokens by their names here."""
        ids = ids_of(self._tokenizer, text)
        if not self._token_ids:
            return ids
        return [self._token_ids.get(token_id, token_id) for token_id in ids]


def _renamed(model: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a model that has pieces by other names, and no merges that make or use these."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        changed: dict[str, Any] = {
            "vocab": {names.get(piece, piece): place for piece, place in vocabulary.items()}
        }
    else:  # Unigram has its pieces in the order of their ids
        changed = {"vocab": [[names.get(piece, piece), score] for piece, score in vocabulary]}
    if "merges" in model:
        changed["merges"] = [merge for merge in model["merges"] if not _touches(merge, names)]
    if model.get("unk_token") in names:
        changed["unk_token"] = names[model["unk_token"]]
    return model | changed


def _touches(merge: str | list[str], names: Mapping[str, str]) -> bool:
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first in names or second in names or first + second in names
