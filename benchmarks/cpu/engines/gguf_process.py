"""Writes a Llama checkpoint as a GGUF file, which llama.cpp reads, in .venv-openvino: `MODEL FILE FORM`.

FORM is Q8_0 or Q4_0, blocks of 32 numbers with a scale of 16 bits. The last layer of a Q4_0 file has Q8_0:
llama.cpp's own tool writes Q6_K there, which the package gguf cannot. Tokens have made-up names, since loads
are token ids.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEAD = "lm_head.weight"


def write(model_dir: str, file: str, form: str) -> None:
    """Write the file; raise ValueError for a model that is no Llama with its own last layer."""
    import gguf  # noqa: PLC0415  (the environment of tests does not have it)
    from safetensors import safe_open  # noqa: PLC0415

    config = json.loads(Path(model_dir, "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama" or config["tie_word_embeddings"]:
        raise ValueError(f"model_type is {config['model_type']}; accepted: llama, without tied embeddings")
    layers = config["num_hidden_layers"]
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    writer = gguf.GGUFWriter(file, "llama")
    _add_config(writer, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    for path in sorted(Path(model_dir).glob("*.safetensors")):
        with safe_open(str(path), "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (it is no mapping)
                weight = tensors.get_tensor(name).float().numpy()
                part = name.split(".")[-2]
                if part in heads:
                    weight = interleaved(weight, heads[part])
                kind = gguf.GGMLQuantizationType[_form_of(name, weight.ndim, form)]
                target = names.get_name(name, try_suffixes=(".weight",))
                assert target is not None, f"{name} is no tensor of a Llama"
                writer.add_tensor(target, gguf.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(weight: Any, num_heads: int) -> Any:
    """Return the rows [heads * dim, in] of a rotated projection in llama.cpp's order.

    transformers rotates output i of a head together with i + dim / 2, llama.cpp 2 * i with 2 * i + 1.
    """
    rows, inputs = weight.shape
    return weight.reshape(num_heads, 2, -1, inputs).swapaxes(1, 2).reshape(rows, inputs)


def _form_of(name: str, num_dims: int, form: str) -> str:
    if num_dims == 1:
        return "F32"
    return "Q8_0" if name == HEAD else form


def _add_config(writer: Any, config: dict[str, Any]) -> None:
    dim = config["head_dim"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"w{number}" for number in range(config["vocab_size"])])
    writer.add_token_merges(["w 0"])  # an empty list is refused


def main(argv: Sequence[str]) -> None:
    write(*argv)


if __name__ == "__main__":
    main(sys.argv[1:])
