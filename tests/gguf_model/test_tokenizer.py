"""Tokenizers of GGUF files cut texts as those do that they were made of."""

from __future__ import annotations

import heapq
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gguf_model.errors import GgufUnusable
from gguf_model.header import Header
from gguf_model.tokenizer import tokenizer_files

DEMO = Path(__file__).resolve().parents[2] / "demo_model"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def header_of(**values: Any) -> Header:
    named = {f"tokenizer.{name.replace('__', '.')}": value for name, value in values.items()}
    return Header(Path("a.gguf"), named, {})


def read(header: Header, size: int) -> tuple[Tokenizer, dict[str, Any], dict[str, Any]]:
    files = tokenizer_files(header, size)
    tokenizer = Tokenizer.from_str(json.dumps(files["tokenizer.json"]))
    return tokenizer, files["tokenizer_config.json"], files["generation_config.json"]


def demo_header(**more: Any) -> Header:
    whole = json.loads((DEMO / "tokenizer.json").read_text())
    tokens = sorted(whole["model"]["vocab"], key=whole["model"]["vocab"].get)
    special = {each["content"] for each in whole["added_tokens"]}
    values = {
        "ggml__model": "gpt2",
        "ggml__pre": "gpt-2",
        "ggml__tokens": tokens,
        "ggml__token_type": [CONTROL if token in special else NORMAL for token in tokens],
        "ggml__merges": [" ".join(merge) for merge in whole["model"]["merges"]],
        "ggml__bos_token_id": 0,
        "ggml__eos_token_id": 1,
    }
    return header_of(**(values | more))


BYTES, BYTES_CONFIG, BYTES_ENDS = read(demo_header(chat_template="{{ messages }}"), 2048)
OWN = Tokenizer.from_file(str(DEMO / "tokenizer.json"))


@settings(deadline=None)
@given(st.text(st.one_of(st.sampled_from("the list is 0123\n\t.,<|end|>'s "), st.characters()), max_size=60))
def test_bytes_are_merged_as_by_the_tokenizer_of_the_model(text: str) -> None:
    assert BYTES.encode(text).ids == OWN.encode(text).ids
    assert BYTES.decode(BYTES.encode(text).ids) == OWN.decode(OWN.encode(text).ids)


def test_special_tokens_template_and_ends_come_from_the_file() -> None:
    assert BYTES.encode("<|user|>the<|end|>").ids == OWN.encode("<|user|>the<|end|>").ids
    assert BYTES_CONFIG["bos_token"] == "<|bos|>"
    assert BYTES_CONFIG["chat_template"] == "{{ messages }}"
    # <|end|> is the end of a turn by its name.
    assert BYTES_ENDS == {"eos_token_id": [1, 2]}


def test_a_file_asks_for_tokens_before_and_after_a_text() -> None:
    both, _, _ = read(demo_header(ggml__add_bos_token=True, ggml__add_eos_token=True), 2048)
    assert both.encode("the").ids == [0, *OWN.encode("the").ids, 1]
    assert both.encode("the", add_special_tokens=False).ids == OWN.encode("the").ids


def test_sampling_comes_from_the_file() -> None:
    header = demo_header()
    values = dict(header.values) | {"general.sampling.temp": 0.5, "general.sampling.top_k": 20}
    _, _, generation = read(Header(header.path, values, {}), 2048)
    assert generation == {"eos_token_id": [1, 2], "temperature": 0.5, "top_k": 20}


WORDS = ["▁the", "▁list", "is", "th", "▁t", "▁th", "he", "li", "st", "▁li", "list", "▁l"]
LETTERS = [*"▁thelis", "é"]
SPM = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *WORDS, *LETTERS, "\n\n"]
KINDS = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(WORDS) + len(LETTERS)), USER]
SCORES = [-float(number) for number in range(len(SPM))]


def spm_header(**more: Any) -> Header:
    values = {
        "ggml__model": "llama",
        "ggml__tokens": SPM,
        "ggml__token_type": KINDS,
        "ggml__scores": SCORES,
        "ggml__bos_token_id": 1,
        "ggml__eos_token_id": 2,
        "ggml__unknown_token_id": 0,
    }
    return header_of(**(values | more))


def merged(text: str) -> list[int]:
    """SentencePiece's BPE: merge, as long as there is one, the pair whose whole has the highest score."""
    pieces = list(text)
    ids = {token: number for number, token in enumerate(SPM) if KINDS[number] == NORMAL}
    while True:
        pairs = [
            (-SCORES[ids[left + right]], place)
            for place, (left, right) in enumerate(pairwise(pieces))
            if left + right in ids
        ]
        if not pairs:
            break
        _, place = heapq.nsmallest(1, pairs)[0]
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    found: list[int] = []
    for piece in pieces:
        found += [ids[piece]] if piece in ids else [3 + byte for byte in piece.encode()]
    return found


PIECES, _, _ = read(spm_header(), len(SPM))
UNPREFIXED, _, _ = read(spm_header(ggml__add_space_prefix=False, ggml__add_bos_token=False), len(SPM))


@settings(deadline=None)
@given(st.text("theliso é\n", max_size=30).filter(lambda text: "\n\n" not in text))
def test_pieces_are_merged_by_their_scores(text: str) -> None:
    spaced = text.replace(" ", "▁")
    assert UNPREFIXED.encode(text).ids == merged(spaced)
    assert UNPREFIXED.decode(UNPREFIXED.encode(text).ids) == text
    if text:
        assert PIECES.encode(text).ids == [1, *merged("▁" + spaced)]
        assert PIECES.decode(PIECES.encode(text).ids) == text


def test_tokens_of_users_are_found_first() -> None:
    ids = UNPREFIXED.encode("th\n\nis").ids
    assert ids == [*merged("th"), len(SPM) - 1, *merged("is")]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ggml__model": "t5"}, "has in tokenizer.ggml.model 't5'; accepted: gpt2, llama"),
        ({"ggml__model": None}, "has in tokenizer.ggml.model None"),
        ({"ggml__pre": "mystery"}, "has in tokenizer.ggml.pre 'mystery'; accepted: llama-bpe"),
        ({"ggml__tokens": ["a"]}, "has in tokenizer.ggml.tokens 1 entries; accepted: 2048, the rows of"),
        ({"ggml__tokens": ["a"] * 2048}, "has in tokenizer.ggml.tokens 'a' twice"),
        ({"ggml__tokens": 3}, "has in tokenizer.ggml.tokens 3; accepted: a list of str"),
        ({"ggml__token_type": ["x"] * 2048}, "accepted: a list of int"),
        ({"ggml__merges": ["abc"]}, "has in tokenizer.ggml.merges 'abc'; accepted: two tokens"),
        ({"ggml__merges": ["t qq"]}, "has in tokenizer.ggml.merges 't qq'"),
        ({"ggml__eos_token_id": 2048}, "has in tokenizer.ggml.eos_token_id 2048; accepted: a token from"),
        ({"ggml__bos_token_id": -1}, "has in tokenizer.ggml.bos_token_id -1"),
        ({"ggml__add_bos_token": 1}, "has in tokenizer.ggml.add_bos_token 1; accepted: true or false"),
        ({"chat_template": 5}, "has the tokenizer.chat_template 5; accepted: a text"),
    ],
)  # fmt: skip
def test_what_is_no_tokenizer_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(GgufUnusable) as refused:
        tokenizer_files(demo_header(**change), 2048)
    assert sentence in str(refused.value)


def test_a_piece_that_would_take_long_to_cut_is_refused() -> None:
    header = spm_header(ggml__tokens=[*SPM[:-2], "x" * 1000, SPM[-1]])
    with pytest.raises(GgufUnusable, match=r"has in tokenizer.ggml.tokens a piece of 1000 characters"):
        tokenizer_files(header, len(SPM))
