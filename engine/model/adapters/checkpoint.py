"""Reads LoRA adapters as peft writes them, and refuses what would be computed wrongly.

A file `adapter_config.json` and a file `adapter_model.safetensors` with two matrices for each adapted layer:
`base_model.model.<layer>.lora_A.weight` [rank, inputs] and `...lora_B.weight` [outputs, rank].
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import AdapterRefused
from kernels.native.adapters import MAX_RANK
from model_output.text.model_files import FileUnusable, parse_object, read_regular

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
MAX_CONFIG_BYTES = 1 << 20
MAX_NUMBER = 1e30
_TENSOR = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<kind>[AB])\.weight")


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter whose files were read and checked, without regard to a model."""

    name: str
    path: Path
    digest: str
    """A digest of both files, as 32 hexadecimal digits: equal ones compute the same over the same base."""
    rank: int
    scale: float
    matrices: Mapping[str, tuple[Tensor, Tensor]]
    """A [rank, inputs] and B [outputs, rank] of each adapted layer, by the layer's name in the model."""

    @property
    def num_weights(self) -> int:
        """Return the numbers in all matrices."""
        return sum(matrix.numel() for pair in self.matrices.values() for matrix in pair)


def read_adapter(name: str, path: Path, max_weights_bytes: int | None = None) -> AdapterFiles:
    """Read an adapter. Raises AdapterRefused, naming the first field that is not accepted."""
    # Each file is read once: it may be written to meanwhile, and the digest is of what is checked and served.
    try:
        config_content = _content(name, path, CONFIG, MAX_CONFIG_BYTES)
        config = parse_object(path / CONFIG, config_content)
        weights_content = _content(name, path, WEIGHTS, max_weights_bytes)
    except FileUnusable as error:
        raise AdapterRefused(name, path, error.path.name, error.found, error.accepted) from error
    _check_config(name, path, config)
    rank, alpha = config["r"], config["lora_alpha"]
    matrices = _parsed_matrices(name, path, rank, weights_content)
    _check_targets(name, path, config.get("target_modules"), matrices)
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return AdapterFiles(name, path, _digest(config_content, weights_content), rank, scale, matrices)


def _content(name: str, path: Path, file: str, max_bytes: int | None) -> bytearray:
    try:
        return read_regular(path / file, max_bytes)
    except (FileNotFoundError, NotADirectoryError) as error:
        accepted = "what peft's save_pretrained writes"
        raise AdapterRefused(name, path, file, "is missing", accepted) from error


def _is_empty(value: object) -> bool:
    return not value


def _is_rank(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_RANK


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_NUMBER


_ABSENT = "false, empty or absent"
_FIELDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "peft_type": (lambda value: value == "LORA", "LORA"),
    "r": (_is_rank, f"1 to {MAX_RANK}"),
    "lora_alpha": (_is_number, "a number"),
    "bias": (lambda value: value in (None, "none"), "none"),
    "use_dora": (_is_empty, _ABSENT),
    "use_qalora": (_is_empty, _ABSENT),
    "lora_bias": (_is_empty, _ABSENT),
    "modules_to_save": (_is_empty, _ABSENT),
    "trainable_token_indices": (_is_empty, _ABSENT),
    "target_parameters": (_is_empty, _ABSENT),
    "layer_replication": (_is_empty, _ABSENT),
    "alora_invocation_tokens": (_is_empty, _ABSENT),
    "rank_pattern": (_is_empty, "one rank for all layers (empty or absent)"),
    "alpha_pattern": (_is_empty, "one alpha for all layers (empty or absent)"),
    # These ways to begin change the weights of the base as well.
    "init_lora_weights": (
        lambda value: not isinstance(value, str) or not re.match("pissa|olora|corda|loftq|lora_ga", value),
        "a way to begin that leaves the base as it is, such as true",
    ),
}


def _check_config(name: str, path: Path, config: Mapping[str, Any]) -> None:
    for field, (is_accepted, accepted) in _FIELDS.items():
        value = config.get(field)
        if not is_accepted(value):
            raise AdapterRefused(name, path, field, f"is {value!r}", accepted)


def _parsed_matrices(
    name: str, path: Path, rank: int, content: bytearray
) -> dict[str, tuple[Tensor, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    try:
        tensors = dict(_tensors_in(content))
    except Exception as error:  # a foreign header may say anything, and torch refuses numbers by any error
        reason = str(error).partition("\n")[0]
        raise AdapterRefused(
            name, path, WEIGHTS, f"cannot be read ({reason})", "a complete safetensors file"
        ) from error
    for key, tensor in sorted(tensors.items()):
        match = _TENSOR.fullmatch(key)
        if match is None:
            accepted = "base_model.model.<layer>.lora_A.weight and lora_B.weight"
            raise AdapterRefused(name, path, WEIGHTS, f"has a tensor {key}", accepted)
        kind, layer = match["kind"], match["layer"]
        if tensor.ndim != 2 or not tensor.is_floating_point() or tensor.shape[kind == "B"] != rank:
            shape = f"[{rank}, inputs]" if kind == "A" else f"[outputs, {rank}]"
            was = f"has shape {list(tensor.shape)} and type {tensor.dtype}"
            raise AdapterRefused(name, path, key, was, f"a floating-point {shape}, as r is {rank}")
        found.setdefault(layer, {})[kind] = tensor
    for layer, pair in found.items():
        if len(pair) == 1:
            missing = "lora_B" if "A" in pair else "lora_A"
            raise AdapterRefused(name, path, f"{layer}.{missing}", "is missing", "both matrices of a layer")
    if not found:
        raise AdapterRefused(name, path, WEIGHTS, "has no tensors", "two matrices for each adapted layer")
    return {layer: (pair["A"], pair["B"]) for layer, pair in sorted(found.items())}


def _tensors_in(content: bytearray) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a safetensors file, over its content.

    The library's own reader copies all of it at once while it keeps other Python threads from running, those
    of steps included.
    """
    (length,) = struct.unpack_from("<Q", content)
    begin = 8 + length
    for key, field in json.loads(content[8:begin]).items():
        if key == "__metadata__":
            continue
        dtype, shape, (first, end) = _DTYPES[field["dtype"]], field["shape"], field["data_offsets"]
        count = math.prod(shape)
        if not 0 <= first <= end <= len(content) - begin or end - first != count * dtype.itemsize:
            raise ValueError(f"{key} is said to be at {first} to {end} of {len(content) - begin} bytes")
        if count == 0:
            yield key, torch.empty(shape, dtype=dtype)
        else:
            yield key, torch.frombuffer(content, dtype=dtype, count=count, offset=begin + first).view(shape)


def _check_targets(name: str, path: Path, targets: object, layers: Mapping[str, object]) -> None:
    """Raise AdapterRefused if a module that the config lists has no matrices; a pattern is not checked."""
    if not isinstance(targets, list):
        return
    for target in targets:
        if not any(layer == target or layer.endswith(f".{target}") for layer in layers):
            found = sorted({layer.rpartition(".")[2] for layer in layers})
            accepted = f"modules that {WEIGHTS} has: {', '.join(found)}"
            raise AdapterRefused(name, path, "target_modules", f"has {target!r}", accepted)


def _digest(config_content: bytearray, weights_content: bytearray) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file, content in ((CONFIG, config_content), (WEIGHTS, weights_content)):
        digest.update(f"{file}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
