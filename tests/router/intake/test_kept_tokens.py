"""A prompt that is put together from parts of earlier ones has the tokens of the whole."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from router.intake.helpers import tokenizer_process
from router.intake.helpers.plain_text import ids_of
from router.intake.helpers.tokenizer_process import KeptTokens
from tests.router.intake.chat_templates import TEMPLATES
from tests.router.intake.chat_tokenizers import KINDS

CONTROL = ("<|user|>", "<|end|>", "<|system|>", "</s>", "<s>", "<think>", "</think>")
WRITTEN = " ".join(CONTROL)
OTHERS = ("<|", "|>", "ab", " ", "\n", "  ", "us", "er", "é", "[INST]", "漢 a")
TEXTS = st.lists(st.sampled_from([*CONTROL, *OTHERS]), max_size=40).map("".join)


@lru_cache
def tokenizer_of(kind: str) -> Tokenizer:
    return KINDS[kind](TEMPLATES["llama"])


def plain(*added: AddedToken) -> Tokenizer:
    vocabulary = {char: place for place, char in enumerate("<|>abx ▁Ġ?")}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary | {"aa": 10}, merges=[("a", "a")], unk_token="?"))
    tokenizer.add_tokens(list(added))
    return tokenizer


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_process, "LEAST_CHARACTERS", 8)


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(TEXTS, min_size=1, max_size=6))
@settings(deadline=None)
def test_each_turn_has_the_tokens_of_its_whole_prompt(kind: str, turns: list[str]) -> None:
    tokenizer = tokenizer_of(kind)
    kept, text = KeptTokens(tokenizer, WRITTEN), ""
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
    tokenizer = plain(*added)
    if splits is not None:
        tokenizer.pre_tokenizer = splits
    kept, text = KeptTokens(tokenizer, "".join(token.content for token in added)), ""
    for more in texts:
        text += more
        assert kept.ids_of(text, "") == ids_of(tokenizer, text)


@pytest.mark.parametrize(
    ("longer", "text"),
    [
        (AddedToken("<a", lstrip=True, normalized=False), "b" * 9 + "   <a"),
        (AddedToken("<xb", single_word=True, normalized=False), "b" * 9 + "<xb"),
    ],
)
def test_no_cut_is_the_beginning_of_a_token_that_looks_back(longer: AddedToken, text: str) -> None:
    tokenizer = plain(AddedToken(longer.content[:-1], normalized=False), longer)
    assert KeptTokens(tokenizer, longer.content).ids_of(text, "") == ids_of(tokenizer, text)


def test_thousands_of_added_tokens_cost_nothing() -> None:
    """Some tokenizers have them in reserve. Texts are cut before those that the template writes."""
    tokenizer = plain(*(AddedToken(f"<unused{place}>", normalized=False) for place in range(6000)))
    kept = KeptTokens(tokenizer, "<unused7>")
    assert kept._cuts is not None
    assert kept._cuts.pattern == "<unused7>"


def test_what_is_kept_is_bounded_and_each_tenants_own(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []

    def counted(tokenizer: Tokenizer, text: str) -> list[int]:
        encoded.append(text)
        return ids_of(tokenizer, text)

    monkeypatch.setattr(tokenizer_process, "ids_of", counted)
    kept = KeptTokens(
        tokenizer_of("byte level"), WRITTEN, most_tokens=320 + 20 * tokenizer_process.ENTRY_TOKENS
    )
    first = "<|user|>" + "ab " * 10
    ends = "<|end|>"

    def parts(text: str, tenant: str) -> list[str]:
        encoded.clear()
        assert kept.ids_of(text + ends, tenant) == ids_of(tokenizer_of("byte level"), text + ends)
        assert encoded.pop() == ends
        return list(encoded)

    assert parts(first, "a") == [first]
    assert parts(first, "a") == []
    assert parts(first, "b") == [first], "another tenant's time must not tell"
    for place in range(40):
        parts(f"{first}{place}", "b")
    assert parts(first, "a") == [first], "it made room"
    long = "<|user|>" + "ab " * 1000
    assert parts(long, "a") == [long]
    assert parts(long, "a") == [long], "it would take the room of all others"


def test_a_long_conversation_costs_its_last_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    num_encoded = 0

    def counted(tokenizer: Tokenizer, text: str) -> list[int]:
        nonlocal num_encoded
        num_encoded += len(text)
        return ids_of(tokenizer, text)

    monkeypatch.undo()
    monkeypatch.setattr(tokenizer_process, "ids_of", counted)
    kept = KeptTokens(tokenizer_of("byte level"), WRITTEN)
    text = "".join("<|user|>" + f"w{place} " * 400 + "<|end|>\n" for place in range(100))
    kept.ids_of(text, "")
    num_encoded = 0
    kept.ids_of(text + "<|user|>more<|end|>\n", "")
    assert num_encoded < 3000
