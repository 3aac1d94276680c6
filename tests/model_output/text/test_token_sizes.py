"""No text has fewer tokens than its bytes say, for any tokenizer of which a bound is stated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from model_output.text.token_sizes import most_bytes_of_a_token
from tests.model_output.text import tokenizers_zoo

DEMO_MODEL = Path(__file__).parents[3] / "demo_model"
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
BLANKS = ["ĠĠ", "ĠĠĠĠ", "ĠĠĠĠĠĠĠĠ"]
TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(st.sampled_from([" ", "  " * 8, "\n", "a", "é", "<eos>", "ự", "👍", "ᾂ"]), max_size=40).map(
        "".join
    ),
)


def byte_level(splits: pre_tokenizers.PreTokenizer | None = None) -> Tokenizer:
    tokens = [*ALPHABET, *BLANKS]
    merges = [(token[: len(token) // 2], token[len(token) // 2 :]) for token in BLANKS]
    tokenizer = Tokenizer(models.BPE({token: place for place, token in enumerate(tokens)}, merges))
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits is None)
    tokenizer.pre_tokenizer = last if splits is None else pre_tokenizers.Sequence([splits, last])
    tokenizer.add_special_tokens([AddedToken("<eos>")])
    return tokenizer


def like_llama_3() -> Tokenizer:
    return byte_level(pre_tokenizers.Split(Regex(r"\s+|\S"), "isolated"))


def like_qwen() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def like_llama_2() -> Tokenizer:
    tokens = ["<unk>", "▁", "▁▁", "▁▁▁▁", *"abé", *BYTES]
    merges = [("▁", "▁"), ("▁▁", "▁▁")]
    vocab = {token: place for place, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


BOUNDED: dict[str, tuple[Callable[[], Tokenizer], int]] = {
    "the demo model": (lambda: Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json")), 16),
    "like Llama 3": (like_llama_3, 8),
    "like Qwen": (like_qwen, 24),
    "like Llama 2": (like_llama_2, 12),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_a_text_has_at_least_as_many_tokens_as_its_bytes_say(name: str) -> None:
    make, expected = BOUNDED[name]
    tokenizer = make()
    most = most_bytes_of_a_token(tokenizer)
    assert most == expected

    @given(TEXTS)
    def holds(text: str) -> None:
        num_tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
        assert num_tokens * expected >= len(text.encode())

    holds()


def with_strips() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True)])
    return tokenizer


def without_all_bytes() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({token: place for place, token in enumerate(ALPHABET[:99])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def with_lower_case() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    return tokenizer


def truncating() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.enable_truncation(9)
    return tokenizer


def dropping() -> Tokenizer:
    return byte_level(pre_tokenizers.Split(" ", "removed"))


@pytest.mark.parametrize(
    "tokenizer",
    [
        with_strips(),
        without_all_bytes(),
        with_lower_case(),
        truncating(),
        dropping(),
        *tokenizers_zoo.ALL.values(),
    ],
)
def test_what_may_drop_text_has_no_bound(tokenizer: Tokenizer) -> None:
    bound = most_bytes_of_a_token(tokenizer)
    if bound is not None:
        text = " a\x00漢" * 99
        assert len(tokenizer.encode(text, add_special_tokens=False).ids) * bound >= len(text.encode())
