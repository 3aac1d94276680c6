"""Writes GGUF files by the package of llama.cpp, of models in transformers' format.

`write` also saves the model that the file's numbers stand for, in float32, so that transformers can say what
the logits are. Names, keys and numbers come from the package; what llama.cpp's converter does besides is
here: it puts the rows of heads in another order and adds 1 to Gemma's norms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

Kind = gguf.GGMLQuantizationType
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
}
K_KINDS = (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K)
FLOATS = (Kind.F32, Kind.F16, Kind.BF16)
FILE, DEQUANTISED = "tiny.gguf", "dequantised"
Values = dict[str, Any]


def write(
    source: Path,
    target: Path,
    kind: Kind | Callable[[str], Kind],
    change: Callable[[gguf.GGUFWriter], None] = lambda _: None,
) -> Path:
    """Write `target`/tiny.gguf and its model in transformers' format, `target`/dequantised; return the file.

    `kind` is that of all matrices, or of each by its name in the file. Rows that are no multiple of its
    blocks become F16, as under llama.cpp.
    """
    target.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(target / FILE, gguf.MODEL_ARCH_NAMES[architecture])
    _add_config(writer, config)
    _add_tokenizer(writer, source)
    change(writer)
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        own = f"{names.get_name(name.rpartition('.')[0])}.{name.rpartition('.')[2]}"
        order, added = _order(name, len(tensor), config), float(_is_gemma_norm(name, config))
        array = tensor.float().numpy()[order] + np.float32(added)
        stored, wanted = _stored(array, _kind_of(own, array, kind))
        writer.add_tensor(own, stored, raw_dtype=_kind_of(own, array, kind))
        weights[name] = torch.from_numpy(wanted[np.argsort(order)] - np.float32(added)).contiguous()
    if config["rope_parameters"].get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _factors_of_llama3(source))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _save(source, target / DEQUANTISED, weights)
    return target / FILE


def random_blocks(kind: Kind, rows: int, inputs: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return rows of blocks of any bytes, whose scales are float16 from 2^-9 to 2^-7 with either sign."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (rows, inputs // block, size), dtype=np.uint8)
    places = {Kind.Q6_K: (208,), Kind.Q4_0: (0,), Kind.Q5_0: (0,), Kind.Q8_0: (0,)}.get(kind, (0, 2))
    for place in places:
        scales = generator.uniform(2**-9, 2**-7, blocks.shape[:2]) * generator.choice(
            (-1, 1), blocks.shape[:2]
        )
        blocks[..., place : place + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def _kind_of(name: str, array: np.ndarray[Any, Any], kind: Kind | Callable[[str], Kind]) -> Kind:
    wanted = kind if isinstance(kind, Kind) else kind(name)
    if array.ndim == 1:
        return Kind.F32
    return wanted if array.shape[1] % gguf.GGML_QUANT_SIZES[wanted][0] == 0 else Kind.F16


def _stored(array: np.ndarray[Any, Any], kind: Kind) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return what a file holds, and the float32 numbers that it stands for."""
    if kind in K_KINDS:  # the package reads these, but does not make them
        stored = random_blocks(kind, len(array), array.shape[1], seed=len(array))
        # As large as those of the model.
        scale = np.abs(array).mean() / np.abs(gguf.dequantize(stored, kind)).mean()
        stored = _rescaled(stored, kind, scale)
    else:
        stored = gguf.quantize(array, kind)
    return stored, gguf.dequantize(stored, kind).astype(np.float32)


def _rescaled(stored: np.ndarray[Any, Any], kind: Kind, scale: float) -> np.ndarray[Any, Any]:
    blocks = stored.reshape(len(stored), -1, gguf.GGML_QUANT_SIZES[kind][1]).copy()
    for place in (208,) if kind is Kind.Q6_K else (0, 2):
        numbers = blocks[..., place : place + 2].copy().view(np.float16) * np.float16(scale)
        blocks[..., place : place + 2] = numbers.view(np.uint8)
    return blocks.reshape(len(stored), -1)


def _order(name: str, rows: int, config: Values) -> np.ndarray[Any, Any]:
    """Return the row of transformers' tensor that each row of the file's is."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    leaf = name.split(".")[-2]
    if config["model_type"] not in {"llama", "granite"} or leaf not in heads:
        return np.arange(rows)
    half = rows // heads[leaf] // 2
    order = [
        head * 2 * half + which * half + pair
        for head in range(heads[leaf])
        for pair in range(half)
        for which in range(2)
    ]
    return np.array(order)


def _is_gemma_norm(name: str, config: Values) -> bool:
    return config["model_type"].startswith("gemma") and name.endswith("norm.weight")


def _factors_of_llama3(source: Path) -> np.ndarray[Any, Any]:
    """Return what transformers divides the frequencies of plain RoPE by."""
    config = transformers.AutoConfig.from_pretrained(source)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    theta = config.rope_parameters["rope_theta"]
    plain = theta ** -(torch.arange(len(scaled), dtype=torch.float64) / len(scaled))
    factors: np.ndarray[Any, Any] = (plain / scaled.double()).float().numpy()
    return factors


def _add_config(writer: gguf.GGUFWriter, config: Values) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if config["model_type"] in {"gemma2", "gemma3_text", "phi3"}:
        writer.add_sliding_window(config["sliding_window"])
    if config["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config["model_type"] == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])


def _add_tokenizer(writer: gguf.GGUFWriter, source: Path) -> None:
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    whole = json.loads((source / "tokenizer.json").read_text())
    config = json.loads((source / "tokenizer_config.json").read_text())
    special = {each["id"] for each in whole["added_tokens"]}
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda each: each[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in tokens])
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if number in special else kinds.NORMAL for _, number in tokens])
    writer.add_token_merges([" ".join(merge) for merge in whole["model"]["merges"]])
    for name, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id)):
        add(dict(tokens)[config[f"{name}_token"]])
    template = source / "chat_template.jinja"
    writer.add_chat_template(template.read_text() if template.exists() else config["chat_template"])


def _save(source: Path, target: Path, weights: Mapping[str, torch.Tensor]) -> None:
    target.mkdir()
    for path in source.iterdir():
        if path.suffix in {".json", ".jinja"}:
            (target / path.name).write_bytes(path.read_bytes())
    save_file(dict(weights), target / "model.safetensors", metadata={"format": "pt"})
