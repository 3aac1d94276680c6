"""A Llama that writes given texts, split into tokens as a test wants it.

    directory = build(tmp_path / "model", {"cut": Script(["<tool", "_call>"])})

Its weights are set by hand: the next token is a function of the newest one alone, whatever came before. A
chat whose last message contains the name of a script is answered with it, and so is a prompt that ends with
`begin(name)`. What is no part of a script is followed by the end.

The tokenizer is one like Llama 2's: "▁" begins words, unknown characters are bytes, and its decoder drops the
blank before a text. Several tokens may have the same text. A byte-level one is like Llama 3's: a token may
end inside a character, and no two have the same text. Prompts are encoded character by character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

EOS, BOS, END, TOOL = "</s>", "<s>", "<|end|>", "<|tool|>"
ENDS = {"generation_config": EOS, "config": EOS, "tokenizer_config": EOS}
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>", TOOL)
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_CHARACTERS = [chr(code) for code in range(ord("!"), 0x7F)]
_WIDTH, _HEADS, _HEAD_SIZE = 64, 2, 64
_CERTAIN = 4.0
"""The weight of what follows: behind the norm, its logit leaves no chance to any other."""


@dataclass(frozen=True, slots=True)
class Script:
    """The tokens that the model writes, by their texts; `<0xC3>` is a byte, within a text too if byte-level.

    opens    what a prompt ends with, such as "<think>", within the token that begins the script
    after    the token that begins it in place of one of its own, such as the last letter of a prompt
    end      the token that ends it
    """

    pieces: Sequence[str]
    opens: str = ""
    after: str = ""
    end: str = EOS


def begin(name: str) -> str:
    """Return the text with which a prompt asks for a script that has neither `opens` nor `after`."""
    return f"<S:{name}>"


def build(
    directory: Path,
    scripts: Mapping[str, Sequence[str] | Script],
    *,
    template_shows: str = "<tool_call> <think>",
    ends: Mapping[str, str] = ENDS,
    special: Sequence[str] = (),
    byte_level: bool = False,
) -> Path:
    """Write a checkpoint and return its directory.

    `template_shows` are the markers by which the fleet learns how the model writes; `ends` are the tokens
    that the files name as the end of a sequence; `special` are more special tokens, which pieces may be.
    """
    found = {
        name: script if isinstance(script, Script) else Script(script) for name, script in scripts.items()
    }
    writer = _Writer(found, special, byte_level=byte_level)
    directory.mkdir(parents=True, exist_ok=True)
    writer.tokenizer.save(str(directory / "tokenizer.json"))
    weights = {name: weight.half().contiguous() for name, weight in _weights(writer).items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    ids = {name: {"eos_token_id": writer.id(token)} for name, token in ends.items()}
    own = {"eos_token": ends["tokenizer_config"]} if "tokenizer_config" in ends else {}
    for name, fields in {
        "config": _config(writer) | ids.get("config", {}),
        "generation_config": ids.get("generation_config", {}),
        "tokenizer_config": own | {"bos_token": BOS, "tokenizer_class": "PreTrainedTokenizerFast"},
    }.items():
        (directory / f"{name}.json").write_text(json.dumps(fields), encoding="utf-8")
    template = _template(found, template_shows)
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    return directory


class _Writer:
    """The tokenizer of some scripts, and what follows each token."""

    def __init__(
        self, scripts: Mapping[str, Script], more_special: Sequence[str], *, byte_level: bool
    ) -> None:
        self.next: dict[int, int] = {}
        special = [
            EOS,
            BOS,
            END,
            *_ROLES,
            *more_special,
            *(begin(name) for name, script in scripts.items() if not script.opens),
        ]
        opens = [begin(name) + script.opens for name, script in scripts.items() if script.opens]
        if byte_level:
            vocab, spelt = _byte_level_vocab(scripts, special)
            self.tokenizer = _byte_level_tokenizer(vocab)
        else:
            vocab, spelt = _sentence_piece_vocab(scripts, special)
            self.tokenizer = _sentence_piece_tokenizer(vocab)
        _add_tokens(self.tokenizer, special, opens)
        for name, script in scripts.items():
            first = script.after or begin(name) + script.opens
            ids = [self.id(token) for token in (first, *spelt[name], script.end)]
            for token_id, following in pairwise(ids):
                assert self.next.setdefault(token_id, following) == following, (
                    f"{name}: a token with two ways"
                )
        # Grammars see the texts of tokens as they are: scripts for them have no token twice.
        self.size = -(-self.tokenizer.get_vocab_size() // _WIDTH) * _WIDTH

    def id(self, token: str) -> int:
        found = self.tokenizer.token_to_id(token)
        assert found is not None, token
        return found


def _sentence_piece_vocab(
    scripts: Mapping[str, Script], special: Sequence[str]
) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return the ids of tokens, and the tokens of each script."""
    known = dict.fromkeys(["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *_CHARACTERS])
    spelt = {
        name: [
            piece if piece in special else _unlike(known, piece.replace(" ", "▁")) for piece in script.pieces
        ]
        for name, script in scripts.items()
    }
    return {token: place for place, token in enumerate(known)}, spelt


def _unlike(known: dict[str, None], piece: str) -> str:
    """Return the token of a piece, and add it: one of its own, unless it is a byte."""
    if _BYTE.fullmatch(piece):
        return piece
    token, count = piece, 0
    while token in known:
        count += 1
        token = f"⟦{count}⟧{piece}"
    known[token] = None
    return token


def _byte_level_vocab(
    scripts: Mapping[str, Script], special: Sequence[str]
) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return the ids of tokens, and the tokens of each script."""
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    known = dict.fromkeys(sorted(pre_tokenizers.ByteLevel.alphabet()))
    spelt = dict[str, list[str]]()
    for name, script in scripts.items():
        pieces = [_bytes_of(piece) for piece in script.pieces if piece not in special]
        ((letters, _),) = spell.pre_tokenize_str(b"".join(pieces).decode())
        ends = list(accumulate(map(len, pieces), initial=0))  # a byte is one letter
        tokens = iter([letters[start:end] for start, end in pairwise(ends)])
        spelt[name] = [piece if piece in special else next(tokens) for piece in script.pieces]
        known.update(dict.fromkeys(token for token in spelt[name] if token not in special))
    return {token: place for place, token in enumerate(known)}, spelt


def _bytes_of(piece: str) -> bytes:
    parts = re.split(f"({_BYTE.pattern})", piece)
    return b"".join(bytes([int(part[3:5], 16)]) if _BYTE.fullmatch(part) else part.encode() for part in parts)


def _sentence_piece_tokenizer(vocab: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(Regex("⟦[0-9]+⟧"), ""),
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def _byte_level_tokenizer(vocab: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, special: Sequence[str], opens: Sequence[str]) -> None:
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in opens])
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(f"{BOS} $A", None, [(BOS, bos)])


def _weights(writer: _Writer) -> dict[str, torch.Tensor]:
    """Return weights whose layer adds nothing: the head sees a token's embedding, and knows the next."""
    size = writer.size
    head = torch.zeros(size, size)
    end = writer.id(EOS)
    for token_id in range(size):
        head[writer.next.get(token_id, end), token_id] = _CERTAIN
    layer, width = "model.layers.0.", _HEADS * _HEAD_SIZE
    return {
        "model.embed_tokens.weight": torch.eye(size),
        "lm_head.weight": head,
        "model.norm.weight": torch.ones(size),
        layer + "input_layernorm.weight": torch.ones(size),
        layer + "post_attention_layernorm.weight": torch.ones(size),
        layer + "self_attn.q_proj.weight": torch.zeros(width, size),
        layer + "self_attn.k_proj.weight": torch.zeros(_HEAD_SIZE, size),
        layer + "self_attn.v_proj.weight": torch.zeros(_HEAD_SIZE, size),
        layer + "self_attn.o_proj.weight": torch.zeros(size, width),
        layer + "mlp.gate_proj.weight": torch.zeros(_WIDTH, size),
        layer + "mlp.up_proj.weight": torch.zeros(_WIDTH, size),
        layer + "mlp.down_proj.weight": torch.zeros(size, _WIDTH),
    }


def _config(writer: _Writer) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float16",
        "hidden_act": "silu",
        "hidden_size": writer.size,
        "intermediate_size": _WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": 1,
        "head_dim": _HEAD_SIZE,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "vocab_size": writer.size,
        "bos_token_id": writer.id(BOS),
    }


def _template(scripts: Mapping[str, Script], shows: str) -> str:
    """Return a template that shows these markers, and asks for the script that the last message names."""
    chosen = "".join(
        f"{{%- if '{name}' in said -%}}{begin(name)}{script.opens}{{%- endif -%}}"
        for name, script in scripts.items()
        if not script.after
    )
    return (
        f"{{#- {shows} -#}}"
        "{%- if tools -%}<|system|>{{ tools | tojson }}{%- endif -%}"
        "{%- for message in messages -%}<|{{ message.role }}|>{{ message.content }}"
        f"{{%- if not loop.last or add_generation_prompt -%}}{END}{{%- endif -%}}{{%- endfor -%}}"
        "{%- if add_generation_prompt -%}<|assistant|>"
        f"{{%- set said = messages[-1].content -%}}{chosen}{{%- endif -%}}"
    )
