"""The architectures that are served: the config of a file's model, and transformers' names of its tensors.

llama.cpp converts what transformers' save_pretrained writes, and changes some of it, which is undone when
tensors are read:

- In `llama` and `granite`, the rows of each head of query and key are in another order: rows that RoPE turns
  together are neighbours, instead of half a head apart.
- In the norms of Gemma, 1 is added to the weights, instead of when they are used.
- Frequencies of Llama 3's RoPE are a tensor, `rope_freqs`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gguf_model.errors import GgufUnusable, shown
from gguf_model.header import Header
from gguf_model.keys import Keys

EMBEDDING, HEAD, FREQUENCIES = "token_embd.weight", "output.weight", "rope_freqs.weight"
Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a tensor of a file belongs, and how its rows and numbers differ there."""

    name: str
    """transformers' name."""
    shape: tuple[int, ...]
    heads: int = 0
    """Number of heads whose rows are in llama.cpp's order; 0 if rows are in transformers'."""
    added: int = 0
    """A number that was added to each of its own."""


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A file's model: its config.json, and where each tensor belongs."""

    header: Header
    config: Config
    targets: Mapping[str, Target]


@dataclass(frozen=True, slots=True)
class _File:
    """A file, and the config that all architectures have in common."""

    header: Header
    keys: Keys
    config: Config


@dataclass(frozen=True, slots=True)
class _Architecture:
    model_type: str
    class_name: str
    layers: tuple[str, ...]
    """The tensors of a layer, by the names of _LAYER."""
    own_config: Callable[[_File], Config]
    """Returns what the config has besides sizes and RoPE."""
    turns_heads: bool = False
    added: int = 0


_LAYER = {
    "attn_norm": ("input_layernorm", "H"),
    "attn_q": ("self_attn.q_proj", "QH"),
    "attn_k": ("self_attn.k_proj", "KH"),
    "attn_v": ("self_attn.v_proj", "KH"),
    "attn_qkv": ("self_attn.qkv_proj", "AH"),
    "attn_output": ("self_attn.o_proj", "HQ"),
    "attn_q_norm": ("self_attn.q_norm", "D"),
    "attn_k_norm": ("self_attn.k_norm", "D"),
    "whole_q_norm": ("self_attn.q_norm", "Q"),
    "whole_k_norm": ("self_attn.k_norm", "K"),
    "post_attention_norm": ("post_attention_layernorm", "H"),
    "ffn_norm": ("post_attention_layernorm", "H"),
    "pre_ffn_norm": ("pre_feedforward_layernorm", "H"),
    "post_ffw_norm": ("post_feedforward_layernorm", "H"),
    "ffn_gate": ("mlp.gate_proj", "FH"),
    "ffn_up": ("mlp.up_proj", "FH"),
    "ffn_gate_up": ("mlp.gate_up_proj", "GH"),
    "ffn_down": ("mlp.down_proj", "HF"),
}
"""transformers' name, and the sizes of each dimension by the letters of `_sizes`."""
_IN_FILES = {
    "whole_q_norm": "attn_q_norm",
    "whole_k_norm": "attn_k_norm",
    "pre_ffn_norm": "ffn_norm",
    "ffn_gate_up": "ffn_up",
}
"""Names in files of tensors of _LAYER that mean something else in other architectures."""
_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
_MLP = ("ffn_gate", "ffn_up", "ffn_down")
_PLAIN = ("attn_norm", *_ATTENTION, "ffn_norm", *_MLP)
_HEAD_NORMS = ("attn_q_norm", "attn_k_norm")
_SANDWICH = ("attn_norm", *_ATTENTION, "post_attention_norm", "pre_ffn_norm", *_MLP, "post_ffw_norm")


def read_model(header: Header) -> GgufModel:
    """Return the model of a file. Raises `GgufUnusable`, naming what is not served."""
    name = header.values.get("general.architecture")
    if not isinstance(name, str) or name not in _ARCHITECTURES:
        raise GgufUnusable(
            header.path, f"has the general.architecture {shown(name)}", f"one of {', '.join(_ARCHITECTURES)}"
        )
    if header.values.get("split.count", 0) not in {0, 1}:
        fault = f"is one of {shown(header.values['split.count'])} parts (split.count)"
        raise GgufUnusable(header.path, fault, "a whole model in one file, as llama-gguf-split --merge makes")
    architecture, keys = _ARCHITECTURES[name], Keys(header, name)
    config = _config(header, keys, architecture)
    config |= architecture.own_config(_File(header, keys, config))
    keys.check_all_read()
    targets = _targets(architecture, config, header)
    _check_tensors(header, targets, has_factors=config["rope_parameters"].get("rope_type") == "llama3")
    return GgufModel(header, config, targets)


def _config(header: Header, keys: Keys, architecture: _Architecture) -> Config:
    embedding = header.tensors.get(EMBEDDING)
    if embedding is None or len(embedding.shape) != 2:
        raise GgufUnusable(header.path, f"has no tensor {EMBEDDING} of two dimensions", "a language model")
    heads, hidden = keys.size("attention.head_count"), keys.size("embedding_length")
    head_dim = keys.size("attention.key_length", max(1, hidden // heads))
    if keys.size("attention.value_length", head_dim) != head_dim:
        raise keys.refuse("attention.value_length", f"{head_dim}, as of keys")
    rotated = keys.size("rope.dimension_count", head_dim)
    if rotated != head_dim and architecture.model_type != "phi3":
        raise keys.refuse("rope.dimension_count", str(head_dim))
    config: Config = {
        "model_type": architecture.model_type,
        "architectures": [architecture.class_name],
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": keys.size("feed_forward_length"),
        "num_hidden_layers": keys.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": keys.size("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": HEAD not in header.tensors,
        "dtype": _dtype(header),
        "rope_parameters": _rope(keys),
    }
    if rotated != head_dim:
        config["partial_rotary_factor"] = rotated / head_dim
    kinds = sorted({each.type.name for each in header.tensors.values() if not each.type.is_float})
    return config | ({"quantization_config": {"quant_method": "gguf", "types": kinds}} if kinds else {})


def _dtype(header: Header) -> str:
    """Return the type of matrices; scales of groups are float16."""
    kinds = {each.type.name for each in header.tensors.values() if len(each.shape) > 1}
    return {"BF16": "bfloat16", "F32": "float32"}.get(kinds.pop() if len(kinds) == 1 else "", "float16")


def _rope(keys: Keys) -> Config:
    kind = keys.name("rope.scaling.type", "none", ("none", "linear", "yarn"))
    rope: Config = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base", 10_000.0)}
    factor = keys.number("rope.scaling.factor", 1.0)
    if kind == "none" or factor == 1.0:
        return rope
    if kind == "yarn":
        original = keys.size("rope.scaling.original_context_length", keys.size("context_length"))
        rope["original_max_position_embeddings"] = original
    return rope | {"rope_type": kind, "factor": factor}


def _llama(file: _File) -> Config:
    has_biases = [f"blk.0.{name}.bias" in file.header.tensors for name in ("attn_q", "ffn_gate")]
    own = dict(zip(("attention_bias", "mlp_bias"), has_biases, strict=True))
    return own | _llama3_rope(file.header, file.config)


def _llama3_rope(header: Header, config: Config) -> Config:
    """Return the RoPE of Llama 3 if the file's frequencies are divided by its factors.

    They are 1 up to a wavelength of a fourth of the original context, `factor` from a whole one on, and in
    between the inverse is interpolated (Llama 3.1's reference code, apply_scaling).
    """
    place = header.tensors.get(FREQUENCIES)
    if place is None:
        return {}
    half, theta, original = config["head_dim"] // 2, config["rope_parameters"]["rope_theta"], 8192
    if place.type.name != "F32" or place.shape != (half,):
        fault = f"has the tensor {FREQUENCIES} of the type {place.type.name} and shape {place.shape}"
        raise GgufUnusable(header.path, fault, f"F32 and {(half,)}")
    with header.path.open("rb") as file:
        file.seek(place.offset)
        factors = struct.unpack(f"<{half}f", file.read(place.num_bytes))
    factor, frequencies = max(factors), [theta ** (-i / half) for i in range(half)]
    own = [_llama3_factor(2 * math.pi / each, factor, original) for each in frequencies]
    if not all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(factors, own, strict=True)):
        fault = f"has the tensor {FREQUENCIES} with factors {shown(factors)}"
        raise GgufUnusable(header.path, fault, "those of Llama 3 for 8192 positions")
    if config["rope_parameters"]["rope_type"] != "default":
        raise GgufUnusable(header.path, f"has {FREQUENCIES} and rope.scaling.type", "one of them")
    rope = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": original}
    whole = {"rope_type": "llama3", "factor": float(f"{factor:.6g}"), "rope_theta": theta}
    return {"rope_parameters": whole | rope}


def _llama3_factor(wavelength: float, factor: float, original: int) -> float:
    if wavelength < original / 4:
        return 1.0
    if wavelength > original:
        return factor
    smooth = (original / wavelength - 1) / 3
    return 1 / ((1 - smooth) / factor + smooth)


def _granite(file: _File) -> Config:
    keys = file.keys
    own = {
        "attention_multiplier": keys.number("attention.scale"),
        "embedding_multiplier": keys.number("embedding_scale", 1.0),
        "residual_multiplier": keys.number("residual_scale", 1.0),
        "logits_scaling": keys.number("logit_scale", 1.0),
    }
    return own | _llama(file)


def _nothing(_: _File) -> Config:
    return {}


def _phi3(file: _File) -> Config:
    keys, config = file.keys, file.config
    original = keys.size("rope.scaling.original_context_length", config["max_position_embeddings"])
    window = keys.size("attention.sliding_window") if keys.has("attention.sliding_window") else None
    return {
        "original_max_position_embeddings": original,
        "sliding_window": window,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _gemma2(file: _File) -> Config:
    keys, config = file.keys, file.config
    return {
        "attn_logit_softcapping": keys.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.number("final_logit_softcapping", 30.0),
        "sliding_window": keys.size("attention.sliding_window", 4096),
        "query_pre_attn_scalar": _gemma_scalar(config, layers=46),
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _gemma3(file: _File) -> Config:
    keys, config = file.keys, file.config
    local = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa", 10_000.0)}
    whole = config["rope_parameters"]
    if not keys.has("rope.freq_base"):
        whole = whole | {"rope_theta": 1_000_000.0}
    if keys.size("attention.sliding_window_pattern", 6) != 6:
        raise keys.refuse("attention.sliding_window_pattern", "6")
    softcap = keys.number("final_logit_softcapping") if keys.has("final_logit_softcapping") else None
    return {
        "rope_parameters": {"full_attention": whole, "sliding_attention": local},
        "sliding_window": keys.size("attention.sliding_window", 1024),
        "final_logit_softcapping": softcap,
        "query_pre_attn_scalar": _gemma_scalar(config, layers=62),
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": [
            "full_attention" if number % 6 == 5 else "sliding_attention"
            for number in range(min(config["num_hidden_layers"], len(file.header.tensors)))
        ],
    }


def _gemma_scalar(config: Config, layers: int) -> int:
    """Return what queries are scaled by: files do not say it, but only the model of 27B has its own."""
    if config["num_hidden_layers"] != layers:
        return int(config["head_dim"])
    return int(config["hidden_size"] // config["num_attention_heads"])


_ARCHITECTURES = {
    "llama": _Architecture("llama", "LlamaForCausalLM", _PLAIN, _llama, turns_heads=True),
    "granite": _Architecture("granite", "GraniteForCausalLM", _PLAIN, _granite, turns_heads=True),
    "qwen2": _Architecture("qwen2", "Qwen2ForCausalLM", _PLAIN, _nothing),
    "qwen3": _Architecture("qwen3", "Qwen3ForCausalLM", (*_PLAIN, *_HEAD_NORMS), _nothing),
    "phi3": _Architecture(
        "phi3",
        "Phi3ForCausalLM",
        ("attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_gate_up", "ffn_down"),
        _phi3,
    ),
    "gemma2": _Architecture("gemma2", "Gemma2ForCausalLM", _SANDWICH, _gemma2, added=1),
    "gemma3": _Architecture("gemma3_text", "Gemma3ForCausalLM", (*_SANDWICH, *_HEAD_NORMS), _gemma3, added=1),
    "olmo2": _Architecture(
        "olmo2",
        "Olmo2ForCausalLM",
        (*_ATTENTION, "whole_q_norm", "whole_k_norm", "post_attention_norm", *_MLP, "post_ffw_norm"),
        _nothing,
    ),
}


def _targets(architecture: _Architecture, config: Config, header: Header) -> dict[str, Target]:
    sizes = _sizes(config)
    targets = {
        EMBEDDING: Target("model.embed_tokens.weight", (sizes["V"], sizes["H"])),
        "output_norm.weight": Target("model.norm.weight", (sizes["H"],), added=architecture.added),
    }
    if HEAD in header.tensors:
        targets[HEAD] = Target("lm_head.weight", (sizes["V"], sizes["H"]))
    biased = set(_ATTENTION) if config.get("attention_bias") else set()
    biased |= set(_MLP) if config.get("mlp_bias") else set()
    biased |= {"attn_q", "attn_k", "attn_v"} if architecture.model_type == "qwen2" else set()
    # The tensors decide how many layers are looked for, not the claim of a key.
    for number in range(min(config["num_hidden_layers"], len(header.tensors))):
        for leaf in architecture.layers:
            name, letters = _LAYER[leaf]
            shape = tuple(sizes[letter] for letter in letters)
            turned = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
            heads = turned.get(leaf, 0) if architecture.turns_heads else 0
            added = architecture.added if len(shape) == 1 else 0
            place, own = f"blk.{number}.{_IN_FILES.get(leaf, leaf)}", f"model.layers.{number}.{name}"
            targets[f"{place}.weight"] = Target(f"{own}.weight", shape, heads, added)
            if leaf in biased:
                targets[f"{place}.bias"] = Target(f"{own}.bias", shape[:1], heads)
    return targets


def _sizes(config: Config) -> dict[str, int]:
    head_dim, hidden, inner = config["head_dim"], config["hidden_size"], config["intermediate_size"]
    query, key = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    return {
        "V": config["vocab_size"], "H": hidden, "F": inner, "G": 2 * inner, "D": head_dim, "Q": query,
        "K": key, "A": query + 2 * key,
    }  # fmt: skip


def _check_tensors(header: Header, targets: Mapping[str, Target], *, has_factors: bool) -> None:
    """Raise `GgufUnusable` unless the file has just these tensors, of these shapes, and Llama 3's factors."""
    for name, target in targets.items():
        place = header.tensors.get(name)
        if place is None:
            raise GgufUnusable(header.path, f"lacks the tensor {shown(name)}", "every tensor of its model")
        if place.shape != target.shape:
            fault = f"has the tensor {shown(name)} of the shape {place.shape}"
            raise GgufUnusable(header.path, fault, f"{target.shape}, by its keys")
        if len(place.shape) == 1 and not place.type.is_float:
            fault = f"has the tensor {shown(name)} of the type {place.type.name}"
            raise GgufUnusable(header.path, fault, "F32, F16 or BF16 for norms and biases")
    for name in header.tensors:
        if name not in targets and not (name == FREQUENCIES and has_factors):
            fault = f"has the tensor {shown(name)}, which is none of its model's"
            raise GgufUnusable(header.path, fault, "the tensors that its keys describe")
