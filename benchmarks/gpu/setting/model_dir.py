"""A model's directory without weights, for workers that draw their weights and for their router."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.gpu.setting.sizes import ModelShape


def write(shape: ModelShape, directory: Path) -> Path:
    """Write config.json and a tokenizer with a token for each id: bytes first, then made-up words."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(dict(shape.config), indent=1), encoding="utf-8")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[: shape.vocab]
    words = (f"w{number}" for number in range(shape.vocab - len(alphabet)))
    vocab = {token: place for place, token in enumerate([*alphabet, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory
