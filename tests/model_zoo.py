"""Tiny random models of every listed family and of some others, and transformers' own answer to compare with.

    directory = build("gemma2", tmp_path / "gemma2", seed=1)
    expected = stock_generate(directory, prompt, num_tokens=10)

All have a vocabulary of 97 ids: <pad>, <s>, </s>, then the printable ASCII characters from the space to `}`,
one id each; 256 positions; and weights large enough that logits spread and greedy choices have no near-ties.
They are made for float64, where correct implementations agree to far more digits than a choice depends on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

VOCAB_SIZE = 97
MAX_CONTEXT = 256
PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
WINDOW = 6
SPECIAL = ("<pad>", "<s>", "</s>")
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}|{% endfor %}assistant: "

_HYBRID = ["sliding_attention", "full_attention"] * 2
_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": MAX_CONTEXT,
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "tie_word_embeddings": False,
}
_PLAIN_HEADS = {"head_dim": None, "num_key_value_heads": None}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True)
class Case:
    """A family, its config's changes to the common one (None removes a field) and what it shows."""

    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    window: bool = False
    softcap: bool = False
    sinks: bool = False
    tied: bool = False
    """Logits read the embedding back: it is kept small, or every token would answer itself."""


CASES: dict[str, Case] = {
    "llama": Case("llama"),
    "llama_tied": Case("llama", {"tie_word_embeddings": True}, tied=True),
    "llama_rope": Case("llama", {"rope_scaling": _LLAMA3_ROPE}),
    "mistral": Case("mistral", {"sliding_window": WINDOW}, window=True),
    "qwen2": Case("qwen2"),
    "qwen2_window": Case(
        "qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}, window=True
    ),
    "qwen3": Case("qwen3"),
    "gemma2": Case(
        "gemma2",
        {
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 30.0,
            "query_pre_attn_scalar": 16,
            "layer_types": _HYBRID,
        },
        window=True,
        softcap=True,
    ),
    "gemma3_text": Case(
        "gemma3_text",
        {"sliding_window": WINDOW, "query_pre_attn_scalar": 16, "layer_types": _HYBRID},
        window=True,
    ),
    "phi3": Case("phi3", {"sliding_window": WINDOW}, window=True),
    "mixtral": Case("mixtral", {**_MOE, "sliding_window": None}),
    "qwen3_moe": Case(
        "qwen3_moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,
        },
    ),
    "gpt_oss": Case(
        "gpt_oss",
        {**_MOE, "sliding_window": WINDOW, "layer_types": _HYBRID, "rope_scaling": _YARN_ROPE},
        window=True,
        sinks=True,
    ),
    "opt": Case("opt", {**_PLAIN_HEADS, "ffn_dim": 96, "word_embed_proj_dim": 64}),
    "gpt2": Case(
        "gpt2",
        {
            **_PLAIN_HEADS,
            "hidden_size": None,
            "num_hidden_layers": None,
            "num_attention_heads": None,
            "max_position_embeddings": None,
            "n_embd": 64,
            "n_layer": 4,
            "n_head": 4,
            "n_positions": MAX_CONTEXT,
            "n_inner": 96,
        },
    ),
    "granite": Case(
        "granite",
        {
            "attention_multiplier": 0.2,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
    ),
    "olmo2": Case("olmo2"),
}
UNLISTED: dict[str, Case] = {
    # Its embeddings and norms are scaled.
    "gemma": Case("gemma"),
    # Attention and MLP side by side, one product for query, key and value, a part of each head rotated.
    "gpt_neox": Case("gpt_neox", _PLAIN_HEADS),
    # Windows in three of four layers, the fourth without positions.
    "cohere2": Case("cohere2", {"sliding_window": WINDOW}, window=True),
    "olmoe": Case("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    # Keys wider than values, both made of one latent.
    "deepseek_v3": Case(
        "deepseek_v3",
        {
            "head_dim": 8,
            "num_key_value_heads": 4,
            "q_lora_rank": 32,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
        },
    ),
}
"""Served once they are proven."""


def build(name: str, directory: Path, seed: int = 1, **changes: Any) -> Path:
    """Write the model directory of a case: config, float64 weights, tokenizer, chat template.

    `changes` are those of the case's config.
    """
    case = (CASES | UNLISTED)[name]
    values = {key: value for key, value in (_BASE | case.config | changes).items() if value is not None}
    if "sliding_window" in case.config:
        values["sliding_window"] = case.config["sliding_window"]
    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.for_model(case.model_type, **values)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64)
        _spread(model, tied=case.tied or config.tie_word_embeddings)
    model.save_pretrained(directory)
    save_tokenizer(directory)
    return directory


@torch.no_grad()
def _spread(model: torch.nn.Module, *, tied: bool) -> None:
    for name, parameter in model.named_parameters():
        if "sinks" in name:
            parameter.normal_()
        elif parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        elif not (tied and "embed" in name):
            parameter.mul_(8.0)


def save_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer without merges, as transformers and `tokenizers` both load it."""
    characters = [chr(code) for code in range(ord(" "), ord("}") + 1)]
    # The byte-level alphabet writes the space as Ġ and printable characters as themselves.
    pieces = ["Ġ" if character == " " else character for character in characters]
    vocab = {piece: index for index, piece in enumerate([*SPECIAL, *pieces])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": SPECIAL[PAD_ID],
        "bos_token": SPECIAL[BOS_ID],
        "eos_token": SPECIAL[EOS_ID],
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


@dataclass(frozen=True)
class Generated:
    """Greedy tokens and the logits each was chosen from, [num_tokens, VOCAB_SIZE] float64."""

    tokens: list[int]
    logits: Tensor


@lru_cache(maxsize=4)
def load_stock(directory: Path) -> Any:
    """The model as transformers runs it.

    Its fused attention computes in float64 throughout, but ignores soft caps and sinks: those families need
    the eager one, which rounds Gemma 2's softmax to float32.
    """
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    eager = config["model_type"] in ("gemma2", "gpt_oss")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=torch.float64,
        attn_implementation="eager" if eager else "sdpa",
        # The default, torch's grouped product, has no float64.
        experts_implementation="eager",
        local_files_only=True,
    )
    model.generation_config.eos_token_id = None
    return model.eval()


@torch.inference_mode()
def stock_generate(directory: Path, prompt: Sequence[int], num_tokens: int) -> Generated:
    """Return what transformers' `generate` makes of `prompt` alone, greedily, the end of sequence ignored."""
    model = load_stock(directory)
    ids = torch.tensor([list(prompt)])
    sequence = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False
    )
    # `generate` rounds the logits it returns to float32; a pass over the finished sequence does not.
    logits = model(sequence[:, :-1], logits_to_keep=num_tokens, use_cache=False).logits[0]
    return Generated(sequence[0, len(prompt) :].tolist(), logits)
