"""Pieces of text add up to the tokenizer's own decoding, and no piece has half a character."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from model_output.text.detokenizer import PROMPT_TAIL, Detokenizer
from tests.model_output.text.tokenizers_zoo import ALL, token_id

AS_TRANSFORMERS: dict[str, Any] = {
    name: PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
    for name, tokenizer in ALL.items()
}
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


def pieces(
    tokenizer: Tokenizer, token_ids: list[int], *, skip: bool = True, prompt: Sequence[int] = ()
) -> list[str]:
    stream = Detokenizer(tokenizer).stream(prompt, skip_special_tokens=skip)
    return [*(stream.push(token) for token in token_ids), stream.flush()]


@settings(max_examples=500)
@given(st.data(), NAMES, st.booleans())
def test_pieces_add_up_to_the_decoding_of_all_tokens(data: st.DataObject, name: str, skip: bool) -> None:
    token_ids = data.draw(token_lists(ALL[name]))
    text = ALL[name].decode(token_ids, skip_special_tokens=skip)
    assert "".join(pieces(ALL[name], token_ids, skip=skip)) == text


@settings(max_examples=1000)
@given(st.data(), NAMES, st.booleans())
def test_an_output_is_what_transformers_decodes_beyond_the_prompt(
    data: st.DataObject, name: str, skip: bool
) -> None:
    tokenizer = ALL[name]
    prompt, output = data.draw(token_lists(tokenizer)), data.draw(token_lists(tokenizer))
    decode = partial(AS_TRANSFORMERS[name].decode, skip_special_tokens=skip)
    before, text = str(decode(prompt)), str(decode(prompt + output))
    # A prompt that ends inside a character has a U+FFFD where the whole text may have the character.
    same = max(length for length in range(len(before) + 1) if text.startswith(before[:length]))
    assert "".join(pieces(tokenizer, output, skip=skip, prompt=prompt)) == text[same:]


def test_the_blank_before_a_completion_stays() -> None:
    tokenizer = ALL["llama_2"]
    eos, hello, world = (token_id(tokenizer, token) for token in ("<eos>", "▁Hello", "▁world"))
    assert pieces(tokenizer, [world], prompt=[hello]) == [" world", ""]
    assert pieces(tokenizer, [world], prompt=[hello, eos]) == [" world", ""]
    assert pieces(tokenizer, [world], prompt=[eos], skip=False) == [" world", ""]
    # Nothing before it has text, so it begins the text that transformers decodes.
    assert pieces(tokenizer, [world], prompt=[eos]) == ["world", ""]


@pytest.mark.parametrize("name", sorted(ALL))
def test_only_the_end_of_a_prompt_is_looked_at(name: str) -> None:
    class Counting(list[int]):
        num_read = 0

        def __getitem__(self, place: Any) -> Any:
            found = super().__getitem__(place)
            self.num_read += len(found) if isinstance(place, slice) else 1
            return found

        def __iter__(self) -> Iterator[int]:
            raise AssertionError("the whole prompt is read")

    eos = token_id(ALL[name], "<eos>")
    prompt = Counting([eos] * 10_000)
    assert "".join(pieces(ALL[name], [eos], prompt=prompt)) == ""
    assert prompt.num_read <= PROMPT_TAIL


def test_a_character_that_the_prompt_begins_is_the_outputs() -> None:
    spelt = {
        "byte_level": [_BYTE_IDS[byte] for byte in "字".encode()],
        "gemma": [token_id(ALL["gemma"], f"<0x{byte:02X}>") for byte in "字".encode()],
    }
    for name, token_ids in spelt.items():
        a = token_id(ALL[name], "a")
        for cut in (1, 2):
            prompt = [a, *token_ids[:cut]]
            assert "".join(pieces(ALL[name], [*token_ids[cut:], a], prompt=prompt)) == "字a"
            assert "".join(pieces(ALL[name], [a], prompt=prompt)) == "a"
            assert "".join(pieces(ALL[name], [], prompt=prompt)) == ""


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
    token_ids, prompt = data.draw(token_lists(ALL[name])), data.draw(token_lists(ALL[name]))
    cut = data.draw(st.integers(0, len(token_ids)))
    read = partial(pieces, ALL[name], skip=skip)
    whole = read(token_ids, prompt=prompt)
    assert read(token_ids[:cut], prompt=prompt)[:-1] == whole[:cut]
    # Routers see no more of a prompt.
    assert read(token_ids, prompt=prompt[-PROMPT_TAIL:]) == whole


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
