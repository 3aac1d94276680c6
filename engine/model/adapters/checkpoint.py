"""Reads LoRA adapters as peft writes them, and refuses what would be computed wrongly.

A file `adapter_config.json` and a file `adapter_model.safetensors` with two matrices for each adapted layer:
`base_model.model.<layer>.lora_A.weight` [rank, inputs] and `...lora_B.weight` [outputs, rank].
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from engine.errors import AdapterRefused
from kernels.native.adapters import MAX_RANK

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
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


def read_adapter(name: str, path: Path) -> AdapterFiles:
    """Read an adapter. Raises AdapterRefused, naming the first field that is not accepted."""
    for file in (CONFIG, WEIGHTS):
        if not (path / file).is_file():
            raise AdapterRefused(name, path, file, "is missing", "what peft's save_pretrained writes")
    config = _read_config(name, path)
    _check_config(name, path, config)
    rank, alpha = config["r"], config["lora_alpha"]
    matrices = _read_matrices(name, path, rank)
    _check_targets(name, path, config.get("target_modules"), matrices)
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return AdapterFiles(name, path, _digest(path), rank, scale, matrices)


def _read_config(name: str, path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise AdapterRefused(name, path, CONFIG, f"is not JSON ({error})", "a JSON object") from error
    if not isinstance(config, dict):
        raise AdapterRefused(name, path, CONFIG, f"holds a {type(config).__name__}", "a JSON object")
    return config


def _is_empty(value: object) -> bool:
    return not value


def _is_rank(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_RANK


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


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


def _read_matrices(name: str, path: Path, rank: int) -> dict[str, tuple[Tensor, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    try:
        with safetensors.safe_open(path / WEIGHTS, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
    except (safetensors.SafetensorError, OSError) as error:
        raise AdapterRefused(
            name, path, WEIGHTS, f"cannot be read ({error})", "a complete safetensors file"
        ) from error
    for key, tensor in tensors.items():
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


def _check_targets(name: str, path: Path, targets: object, layers: Mapping[str, object]) -> None:
    """Raise AdapterRefused if a module that the config lists has no matrices; a pattern is not checked."""
    if not isinstance(targets, list):
        return
    for target in targets:
        if not any(layer == target or layer.endswith(f".{target}") for layer in layers):
            found = sorted({layer.rpartition(".")[2] for layer in layers})
            accepted = f"modules that {WEIGHTS} has: {', '.join(found)}"
            raise AdapterRefused(name, path, "target_modules", f"has {target!r}", accepted)


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in (CONFIG, WEIGHTS):
        content = (path / file).read_bytes()
        digest.update(f"{file}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
