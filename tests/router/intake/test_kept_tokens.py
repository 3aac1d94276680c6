"""A prompt that is put together from parts of earlier ones has the tokens of the whole."""

from __future__ import annotations

import time
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from router.intake.helpers import kept_tokens
from router.intake.helpers.kept_tokens import KeptTokens
from router.intake.plain_text.plain_tokenizer import ids_of
from tests.router.intake.chat_templates import TEMPLATES
from tests.router.intake.chat_tokenizers import KINDS

PIECES = [
    "<|user|>",
    "<|end|>",
    "<|system|>",
    "</s>",
    "<s>",
    "<think>",
    "</think>",
    "<|",
    "|>",
    "ab",
    " ",
    "\n",
]
TEXTS = st.lists(st.sampled_from([*PIECES, "  ", "us", "er", "é", "[INST]", "漢 a"]), max_size=40).map(
    "".join
)


@lru_cache
def tokenizer_of(kind: str) -> Tokenizer:
    return KINDS[kind](TEMPLATES["llama"])


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_tokens, "LEAST_CHARACTERS", 8)


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(TEXTS, min_size=1, max_size=6))
@settings(deadline=None)
def test_each_turn_has_the_tokens_of_its_whole_prompt(kind: str, turns: list[str]) -> None:
    tokenizer = tokenizer_of(kind)
    kept, text = KeptTokens(tokenizer), ""
    for turn in turns:
        text += turn
        for tenant in ("a", "b", "a"):
            assert kept.ids_of(text, tenant) == ids_of(tokenizer, text)


@given(
    st.lists(
        st.builds(
            AddedToken,
            st.text("<|>ab ", min_size=1, max_size=4),
            single_word=st.booleans(),
            lstrip=st.booleans(),
            rstrip=st.booleans(),
            normalized=st.booleans(),
        ),
        max_size=6,
    ),
    st.lists(st.text("<|>ab ", max_size=12), max_size=8),
    st.sampled_from([pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.ByteLevel(), None]),
)
@settings(deadline=None, max_examples=300)
def test_whatever_tokens_there_are_none_is_cut(
    added: list[AddedToken], texts: list[str], splits: pre_tokenizers.PreTokenizer | None
) -> None:
    """Tokens that overlap, take in spaces or need a boundary are no places to cut."""
    vocabulary = {
        char: place for place, char in enumerate(["<", "|", ">", "a", "b", " ", "▁", "Ġ", "aa", "?"])
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "a")], unk_token="?"))
    if splits is not None:
        tokenizer.pre_tokenizer = splits
    tokenizer.add_tokens(added)
    kept, text = KeptTokens(tokenizer), ""
    for more in texts:
        text += more
        assert kept.ids_of(text, "") == ids_of(tokenizer, text)


def test_what_is_kept_is_bounded_and_each_tenants_own(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []

    def counted(tokenizer: Tokenizer, text: str) -> list[int]:
        encoded.append(text)
        return ids_of(tokenizer, text)

    monkeypatch.setattr(kept_tokens, "ids_of", counted)
    kept = KeptTokens(tokenizer_of("byte level"), most_characters=100)
    first, second = "<|user|>" + "ab " * 20, "<|user|>" + "us " * 20
    kept.ids_of(first, "a")
    kept.ids_of(first, "a")
    assert encoded == [first]
    kept.ids_of(first, "b")
    assert encoded == [first, first], "another tenant's time must not tell"
    kept.ids_of(second, "b")
    kept.ids_of(first, "a")
    assert encoded == [first, first, second, first], "the oldest made room"


def test_a_long_conversation_costs_its_last_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    tokenizer = tokenizer_of("byte level")
    kept, turns = (
        KeptTokens(tokenizer),
        ["<|user|>" + f"w{place} " * 400 + "<|end|>\n" for place in range(100)],
    )
    text = "".join(turns)
    kept.ids_of(text, "")
    again = text + "<|user|>more<|end|>\n"
    spent = []
    for way in (lambda: kept.ids_of(again, ""), lambda: ids_of(tokenizer, again)):
        began = time.process_time()
        found = way()
        spent.append((time.process_time() - began, found))
    assert spent[0][1] == spent[1][1]
    assert 3 * spent[0][0] < spent[1][0]
