"""Pieces of text add up to the tokenizer's own decoding, and no piece has half a character."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from output_text.detokenizer import Detokenizer
from tests.output_text.tokenizers_zoo import ALL, token_id

NAMES = st.sampled_from(sorted(ALL))


def _byte_ids() -> dict[int, int]:
    """The byte-level vocabulary's token of each byte that UTF-8 uses, found by spelling all leading bytes."""
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    codes = [*range(0x800), *range(0x800, 0xD800, 0x40), *range(0xE000, 0x110000, 0x40)]
    ids = {}
    for code in codes:
        spelt = spell.pre_tokenize_str(chr(code))[0][0]
        for byte, character in zip(chr(code).encode(), spelt, strict=True):
            ids[byte] = token_id(ALL["byte_level"], character)
    return ids


_BYTE_IDS = _byte_ids()


def token_lists(tokenizer: Tokenizer, max_size: int = 30) -> st.SearchStrategy[list[int]]:
    # Two ids past the end: a model's vocabulary is often padded beyond its tokenizer's.
    return st.lists(st.integers(0, tokenizer.get_vocab_size() + 1), max_size=max_size)


def pieces(tokenizer: Tokenizer, token_ids: list[int], *, skip: bool = True) -> list[str]:
    stream = Detokenizer(tokenizer).stream(skip_special_tokens=skip)
    return [*(stream.push(token) for token in token_ids), stream.flush()]


@settings(max_examples=500)
@given(st.data(), NAMES, st.booleans())
def test_pieces_add_up_to_the_decoding_of_all_tokens(data: st.DataObject, name: str, skip: bool) -> None:
    token_ids = data.draw(token_lists(ALL[name]))
    text = ALL[name].decode(token_ids, skip_special_tokens=skip)
    assert "".join(pieces(ALL[name], token_ids, skip=skip)) == text


@settings(max_examples=300)
@given(st.text(max_size=20))
def test_text_spelt_in_bytes_never_shows_half_a_character(text: str) -> None:
    spelt = {
        "byte_level": [_BYTE_IDS[byte] for byte in text.encode()],
        "gemma": [token_id(ALL["gemma"], f"<0x{byte:02X}>") for byte in text.encode()],
    }
    for name, token_ids in spelt.items():
        assert ALL[name].decode(token_ids) == text
        parts = pieces(ALL[name], token_ids)
        assert "".join(parts) == text
        assert sum(part.count("\ufffd") for part in parts) == text.count("\ufffd")


@given(st.data(), NAMES, st.booleans())
def test_a_piece_depends_on_the_tokens_before_it_alone(data: st.DataObject, name: str, skip: bool) -> None:
    token_ids = data.draw(token_lists(ALL[name]))
    cut = data.draw(st.integers(0, len(token_ids)))
    assert pieces(ALL[name], token_ids[:cut], skip=skip)[:-1] == pieces(ALL[name], token_ids, skip=skip)[:cut]


def test_whole_characters_are_not_held_back() -> None:
    tokenizer = ALL["byte_level"]
    token_ids = [token_id(tokenizer, token) for token in ("Hello", "a", "b")]
    assert pieces(tokenizer, token_ids) == ["Hello", "a", "b", ""]


def test_a_character_comes_with_its_last_token() -> None:
    tokenizer = ALL["byte_level"]
    emoji = next(p for p in range(tokenizer.get_vocab_size()) if tokenizer.decode([p]) == "👍")
    head, tail = emoji + 1, emoji + 2
    assert pieces(tokenizer, [head, tail, head]) == ["", "👍", "", "\ufffd"]


def test_special_tokens_have_text_only_if_asked_for_and_added_ones_do() -> None:
    for tokenizer in ALL.values():
        eos, think = token_id(tokenizer, "<eos>"), token_id(tokenizer, "<think>")
        assert pieces(tokenizer, [eos]) == ["", ""]
        assert "<eos>" in pieces(tokenizer, [eos], skip=False)[0]
        assert "<think>" in "".join(pieces(tokenizer, [think]))


class Counted:
    """A tokenizer that counts the tokens it is asked to decode."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.num_decoded = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)

    def decode(self, token_ids: list[int], **arguments: bool) -> str:
        self.num_decoded += len(token_ids)
        return self._tokenizer.decode(token_ids, **arguments)


@pytest.mark.parametrize("name", sorted(ALL))
def test_the_cost_of_a_token_does_not_grow_with_the_text(name: str) -> None:
    counted = Counted(ALL[name])
    stream = Detokenizer(cast(Tokenizer, counted)).stream()
    size = counted._tokenizer.get_vocab_size()
    for place in range(4000):
        stream.push(place % size)
    stream.flush()
    # Twice as context and once for itself.
    assert counted.num_decoded <= 3 * 4000
