"""Small tokenizers of the kinds that real checkpoints have, built in memory."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def token_id(tokenizer: Tokenizer, token: str) -> int:
    place = tokenizer.token_to_id(token)
    assert place is not None
    return place


def byte_level() -> Tokenizer:
    """Return a tokenizer like that of Llama 3: tokens are bytes, and some are parts of characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["Hello world stop", " and", "ñ", "漢字", "👍"]
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = [spell.pre_tokenize_str(piece)[0][0] for piece in pieces]
    # The first two bytes of the emoji: a token that ends inside a character.
    tokens = [*alphabet, *words, words[-1][:2], words[-1][2:], words[0][:5]]
    tokenizer = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return _with_added_tokens(tokenizer)


def sentence_piece(*, strips: bool) -> Tokenizer:
    """Return one like Mistral's (`strips`) or Gemma's: ▁ begins words, rare characters are bytes."""
    words = ["▁", "▁Hello", "▁world", "stop", "▁▁", "a", "b", "é", "▁字", "\ufffd"]
    tokens = ["<unk>", *words, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: place for place, token in enumerate(tokens)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    return _with_added_tokens(tokenizer)


def metaspace(prepend_scheme: str) -> Tokenizer:
    """Return one like T5's and XLM-R's, whose decoder drops the blank of the first token alone."""
    words = ["▁", "▁Hello", "▁world", "stop", "▁▁", "a", "b", "é", "▁字"]
    vocab = [("<unk>", 0.0), *((word, -1.0) for word in words)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    return _with_added_tokens(tokenizer)


def word_piece() -> Tokenizer:
    tokens = ["[UNK]", "hello", "##ing", "world", ",", ".", "##s", "stop", "é"]
    tokenizer = Tokenizer(
        models.WordPiece(vocab={token: place for place, token in enumerate(tokens)}, unk_token="[UNK]")
    )
    tokenizer.decoder = decoders.WordPiece()
    return _with_added_tokens(tokenizer)


def one_byte_tokens(num_tokens: int) -> Tokenizer:
    """Return a tokenizer whose tokens are the first bytes of the byte-level alphabet, from ! on."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:num_tokens]
    tokenizer = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(alphabet)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _with_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True), AddedToken("<pad>", special=True)])
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("naïve 漢")])
    return tokenizer


ALL = {
    "byte_level": byte_level(),
    "llama_2": sentence_piece(strips=True),
    "gemma": sentence_piece(strips=False),
    "metaspace_always": metaspace("always"),
    "metaspace_first": metaspace("first"),
    "metaspace_never": metaspace("never"),
    "word_piece": word_piece(),
}
