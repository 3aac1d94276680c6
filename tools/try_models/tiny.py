"""Makes tiny random checkpoints of any model type that transformers has.

Fields of a config are made small by their names, which most types share. Every list that has an entry for
each layer is shortened, so that each kind of layer stays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

NUM_LAYERS = 4
VOCAB_SIZE = 97
MAX_CONTEXT = 256
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WINDOW = 64, 4, 2, 16, 6
INTERMEDIATE, EXPERT_SIZE, EXPERTS, TOP_K = 96, 32, 4, 2

_SIZES: dict[str, int] = {
    "vocab_size": VOCAB_SIZE,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "n_embd": HIDDEN,
    "d_model": HIDDEN,
    "embed_dim": HIDDEN,
    "emb_dim": HIDDEN,
    "embedding_size": HIDDEN,
    "word_embed_proj_dim": HIDDEN,
    "dim_model": HIDDEN,
    "hidden_size_per_layer_input": 16,
    "num_hidden_layers": NUM_LAYERS,
    "n_layer": NUM_LAYERS,
    "n_layers": NUM_LAYERS,
    "num_layers": NUM_LAYERS,
    "decoder_layers": NUM_LAYERS,
    "num_decoder_layers": NUM_LAYERS,
    "num_attention_heads": HEADS,
    "n_head": HEADS,
    "n_heads": HEADS,
    "num_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_kv_heads": KV_HEADS,
    "swa_num_attention_heads": HEADS,
    "swa_num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "d_kv": HEAD_DIM,
    "kv_channels": HEAD_DIM,
    "attention_head_dim": HEAD_DIM,
    "rotary_dim": HEAD_DIM // 2,
    "intermediate_size": INTERMEDIATE,
    "intermediate_size_mlp": INTERMEDIATE,
    "ffn_dim": INTERMEDIATE,
    "ffn_hidden_size": INTERMEDIATE,
    "decoder_ffn_dim": INTERMEDIATE,
    "d_ff": INTERMEDIATE,
    "n_inner": INTERMEDIATE,
    "dim_ff": INTERMEDIATE,
    "dff": INTERMEDIATE,
    "moe_intermediate_size": EXPERT_SIZE,
    "expert_ffn_hidden_size": EXPERT_SIZE,
    "shared_expert_intermediate_size": EXPERT_SIZE,
    "shared_intermediate_size": EXPERT_SIZE,
    "moe_shared_expert_intermediate_size": EXPERT_SIZE,
    "dense_intermediate_size": INTERMEDIATE,
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "moe_num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "num_experts_per_token": TOP_K,
    "moe_k": TOP_K,
    "moe_topk": TOP_K,
    "top_k_experts": TOP_K,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "zero_expert_num": 2,
    "max_position_embeddings": MAX_CONTEXT,
    "n_positions": MAX_CONTEXT,
    "max_seq_len": MAX_CONTEXT,
    "seq_length": MAX_CONTEXT,
    "sliding_window": WINDOW,
    "window_size": WINDOW,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "qk_head_dim": 24,
    "v_head_dim": HEAD_DIM,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_ENCODERS = (
    "bert",
    "bert-generation",
    "camembert",
    "data2vec-text",
    "electra",
    "ernie",
    "roberta",
    "roberta-prelayernorm",
    "roc_bert",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
)
_SPECIAL: dict[str, dict[str, Any]] = {
    # The default has only one of the two kinds.
    "lfm2": {"layer_types": ["conv", "full_attention"] * (NUM_LAYERS // 2)},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (NUM_LAYERS // 2)},
    # Encoders attend causally only as decoders.
    **{name: {"is_decoder": True} for name in _ENCODERS},
}
"""Fields of single types, of which the names above are not enough."""


def tiny_config(model_type: str) -> Any:
    """Return a tiny config. Raises what its class raises for values that it does not accept."""
    config_class = CONFIG_MAPPING[model_type]
    default = config_class()
    names = set(default.to_dict()) | set(default.attribute_map)
    values: dict[str, Any] = {name: size for name, size in _SIZES.items() if name in names}
    values |= _shortened(default)
    if "kv_lora_rank" in names:  # as many heads of keys as of queries, of which a part is rotated
        values |= {"head_dim": _SIZES["qk_rope_head_dim"], "num_key_value_heads": HEADS}
    return config_class(**(values | _SPECIAL.get(model_type, {})))


def _shortened(default: Any) -> dict[str, Any]:
    """Return the default's lists of layers for NUM_LAYERS layers, with each kind of layer in turn."""
    num_layers = getattr(default, "num_hidden_layers", None)
    lists = {
        name: value
        for name, value in default.to_dict().items()
        if isinstance(value, list) and len(value) == num_layers
    }
    return {name: _in_turn(value) for name, value in lists.items()}


def _in_turn(kinds: list[Any]) -> list[Any]:
    different: list[Any] = []
    for kind in kinds:
        if kind not in different:
            different.append(kind)
    return [different[index % len(different)] for index in range(NUM_LAYERS)]


def write_checkpoint(config: Any, directory: Path) -> None:
    """Write a model directory with random weights in float64, large enough that attention has preferences."""
    library: Any = transformers
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = library.AutoModelForCausalLM.from_config(config, dtype=torch.float64)
        _spread(module)
    library.utils.logging.disable_progress_bar()
    module.save_pretrained(directory)
    write_tokenizer(directory)


def write_tokenizer(directory: Path) -> None:
    vocab = {f"<{index}>": index for index in range(VOCAB_SIZE)}
    Tokenizer(models.WordLevel(vocab, unk_token="<0>")).save(str(directory / "tokenizer.json"))


@torch.no_grad()
def _spread(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        else:
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
