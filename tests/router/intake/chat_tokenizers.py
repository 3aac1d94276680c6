"""Small tokenizers of the kinds that chat models have, with the control tokens of a template."""

from __future__ import annotations

import re
from collections.abc import Callable

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tests.fleets import DEMO_MODEL

_MARKER = re.compile(r"<\|\w+\|>|</?\w+>|\[/?[A-Z_]+\]")
_CHARACTERS = [chr(code) for code in range(33, 127)] + ["é", "漢", "\n"]


def _tags(source: str) -> list[str]:
    return sorted(
        {*_MARKER.findall(source), "<s>", "</s>", "<|end|>", "<|user|>", "<|system|>", "<think>", "</think>"}
    )


def byte_level(source: str) -> Tokenizer:
    """Return the demo model's, with more control tokens: special ones, and tags that are not (Qwen's way)."""
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    tags = _tags(source)
    tokenizer.add_special_tokens([tag for tag in tags if "|" in tag or "[" in tag])
    tokenizer.add_tokens(
        [AddedToken(tag, normalized=False) for tag in tags if "|" not in tag and "[" not in tag]
    )
    return tokenizer


def sentence_piece(source: str) -> Tokenizer:
    """Return one like Phi-3's: ▁ before each stretch, control tokens that take spaces away."""
    words = ["▁", *_CHARACTERS, "ab", "▁a", "▁ab", "us", "er", "user"]
    merges = [
        ("a", "b"),
        ("▁", "a"),
        ("▁", "ab"),
        ("u", "s"),
        ("e", "r"),
        ("us", "er"),
        ("<", "s"),
        ("<s", ">"),
    ]
    tags = _tags(source)
    pieces = dict.fromkeys(["<unk>", *tags, *words, *map("".join, merges)])
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: place for place, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    tokenizer.add_special_tokens(
        [AddedToken(tag, rstrip="e" in tag, lstrip="s" in tag, normalized=False) for tag in tags]
    )
    return tokenizer


def unigram(source: str) -> Tokenizer:
    """Return one whose vocabulary has the control tokens as pieces, which its model finds in any text."""
    tags = _tags(source)
    pieces = [("<unk>", 0.0), *((tag, 0.0) for tag in tags), ("▁", -2.0)]
    pieces += [(char, -3.0) for char in _CHARACTERS] + [("▁ab", -2.5), ("user", -2.5)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken(tag, normalized=False) for tag in tags])
    return tokenizer


def folding(source: str) -> Tokenizer:
    """Return one that finds control tokens in other spellings, since it folds letters first."""
    tags = _tags(source.lower())
    letters = {char: place for place, char in enumerate(dict.fromkeys(["?", "▁", *_CHARACTERS]))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[], unk_token="?"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.add_special_tokens([AddedToken(tag, normalized=True) for tag in tags])
    return tokenizer


def not_special(source: str) -> Tokenizer:
    """Return one like DeepSeek's, whose tokens of turns are no special ones."""
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    stated = [AddedToken(tag, normalized=False, special=False) for tag in _tags(source)]
    tokenizer.add_tokens([*stated, AddedToken("  ", normalized=False), AddedToken("<b>", normalized=False)])
    return tokenizer


KINDS: dict[str, Callable[[str], Tokenizer]] = {
    "byte level": byte_level,
    "sentence piece": sentence_piece,
    "unigram": unigram,
    "folding": folding,
    "not special": not_special,
}
