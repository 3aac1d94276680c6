"""A model that writes given texts, for the programs of others: which one, a message of the user's says.

Each token's successor is fixed by the weights, and the chat template ends a prompt with the token that begins
a script. So an agent gets a real call of its own tool, and an answer after the tool's result. Other than in
tests/script_model.py, scripts have turns, and the words are the demo model's, so that an agent's prompt of
80 kB fits into the context.

A grammar forces tokens that are in no script, and the model does not find back from them. So arguments of
forced calls have one value each.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer

from tests.fleets import DEMO_MODEL

CONTEXT = 65_536
_HIDDEN = 512
_HEAD_DIM = 64
_MARGIN = 40.0
"""How much more likely, as a logit, a token's successor is than any other token: sampling changes nothing."""
_PIECE = 6
_END = "<|end|>"

Scripts = Mapping[str, Sequence[str]]
"""Texts by name: the first answers the message that says `script NAME.`, the next what follows it."""


def write_scripted_model(scripts: Scripts, folder: Path) -> Path:
    """Write the model's folder, which has the demo model's words, template and format of calls."""
    folder.mkdir(parents=True)
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    turns = [(_start(name, turn), text) for name, texts in scripts.items() for turn, text in enumerate(texts)]
    tokenizer.add_special_tokens([AddedToken(start, special=True) for start, _ in turns])
    successors = _successors(turns, tokenizer)
    tokenizer.save(str(folder / "tokenizer.json"))
    vocab = -(-tokenizer.get_vocab_size() // 64) * 64
    save_file(_weights(successors, vocab), folder / "model.safetensors", {"format": "pt"})
    config = json.loads((DEMO_MODEL / "config.json").read_text(encoding="utf-8"))
    config |= {"hidden_size": _HIDDEN, "vocab_size": vocab, "max_position_embeddings": CONTEXT}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    config |= {"head_dim": _HEAD_DIM, "intermediate_size": 64, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shutil.copy(DEMO_MODEL / "generation_config.json", folder)
    words = json.loads((DEMO_MODEL / "tokenizer_config.json").read_text(encoding="utf-8"))
    words["model_max_length"] = CONTEXT
    words["extra_special_tokens"] += [start for start, _ in turns]
    (folder / "tokenizer_config.json").write_text(json.dumps(words), encoding="utf-8")
    template = (DEMO_MODEL / "chat_template.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(_template(scripts) + template + _BEGIN, encoding="utf-8")
    return folder


def _start(name: str, turn: int) -> str:
    return f"<|script {name} {turn}|>"


def _template(scripts: Scripts) -> str:
    """Return the template's head, which finds the newest script named and how many turns it has had."""
    lengths = json.dumps({name: len(texts) for name, texts in scripts.items()})
    return f"{{%- set scripts = {lengths} %}}{_FIND}"


_FIND = (
    "{%- set at = namespace(script=none, turn=0) %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'assistant' %}{%- set at.turn = at.turn + 1 %}{%- endif %}"
    "{%- for name in scripts %}"
    "{%- if message.role == 'user' and ('script ' ~ name ~ '.') in (message.content or '') %}"
    "{%- set at.script = name %}{%- set at.turn = 0 %}{%- endif %}"
    "{%- endfor %}{%- endfor %}"
)
_BEGIN = (
    "{%- if add_generation_prompt %}"
    "{%- set name = at.script or (scripts | list)[0] %}"
    "{{- '<|script ' ~ name ~ ' ' ~ ([at.turn, scripts[name] - 1] | min) ~ '|>' }}"
    "{%- endif %}"
)


def _successors(turns: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> dict[int, int]:
    """Add the tokens of each text; return which token follows which, from the one that begins the text."""
    known = set(tokenizer.get_vocab())
    cut = []
    for start, text in turns:
        pieces = _cut(text, known)
        known.update(pieces)
        cut.append([start, *pieces, _END])
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for _, *pieces, _ in cut for piece in pieces])
    ids = tokenizer.get_vocab()
    return {ids[token]: ids[after] for tokens in cut for token, after in pairwise(tokens)}


def _cut(text: str, known: Collection[str]) -> list[str]:
    """Return the pieces of a text, short ones, so that it streams. Each is a token that nothing else has."""
    for size in range(min(_PIECE, len(text)), len(text) + 1):
        piece, rest = text[:size], text[size:]
        is_marker = piece[0] == "<" and piece[-1] == ">"  # a grammar takes it for the marker of calls
        if piece in known or is_marker:
            continue
        if not rest:
            return [piece]
        if following := _cut(rest, {*known, piece}):
            return [piece, *following]
    return []


def _weights(successors: Mapping[int, int], vocab: int) -> dict[str, torch.Tensor]:
    """Return weights that do nothing but name each token's successor, by random directions of the tokens."""
    codes = torch.randint(0, 2, (vocab, _HIDDEN), generator=torch.Generator().manual_seed(1)) * 2.0 - 1.0
    head = torch.zeros(vocab, _HIDDEN)
    for token, successor in successors.items():
        head[successor] += codes[token] * (_MARGIN / _HIDDEN)
    layer = "model.layers.0."
    weights = {
        "model.embed_tokens.weight": codes,
        "lm_head.weight": head,
        "model.norm.weight": torch.ones(_HIDDEN),
        layer + "input_layernorm.weight": torch.ones(_HIDDEN),
        layer + "post_attention_layernorm.weight": torch.ones(_HIDDEN),
        layer + "self_attn.o_proj.weight": torch.zeros(_HIDDEN, _HEAD_DIM),
        layer + "mlp.down_proj.weight": torch.zeros(_HIDDEN, 64),
    }
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        weights[f"{layer}{name}.weight"] = torch.zeros(64, _HIDDEN)
    return {name: tensor.half() for name, tensor in weights.items()}
