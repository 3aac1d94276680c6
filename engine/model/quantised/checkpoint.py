"""The quantised checkpoints that are served: numbers of 8 or 4 bits of compressed-tensors, AWQ and GPTQ.

Activations are computed in floats, whether a checkpoint says that they may have 8 bits (W8A8) or not.
Anything that would be misread is refused by the field that declares it. So is a `kv_cache_scheme`, with one
scale for a tensor or a head, set when the checkpoint was made: `--quantisation kv8` and `kvfp8` compute one
for each token and head.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.errors import ModelRefused

PACKED, PLAIN, FLOATS = "pack-quantized", "int-quantized", "float-quantized"
METHODS = ("compressed-tensors", "awq", "gptq", "gguf")

# Accepted fields of a group's weights, by its form; None stands for a field that is absent or null.
_WEIGHTS: dict[str, dict[str, tuple[object, ...]]] = {
    PACKED: {"num_bits": (8, 4), "type": ("int",), "strategy": ("channel", "group")},
    PLAIN: {"num_bits": (8,), "type": ("int",), "strategy": ("channel", "group")},
    FLOATS: {"num_bits": (8,), "type": ("float",), "strategy": ("channel", "tensor")},
}
_ALL_WEIGHTS: dict[str, tuple[object, ...]] = {
    "dynamic": (False, None),
    "actorder": (False, None, "static", "weight"),
}


def check_quantised(directory: Path, found: object) -> None:
    """Raise ModelRefused if a config.json has a `quantization_config` that is not served."""
    if found is None or found is False:
        return
    for field, value, accepted in _rules(found):
        if value not in accepted:
            names = ", ".join("absent" if choice is None else str(choice) for choice in accepted)
            raise ModelRefused(directory, f"quantization_config{field}", f"is {value!r}", names)


def _rules(found: object) -> Iterator[tuple[str, object, tuple[object, ...]]]:
    """Yield (field, found value, accepted values)."""
    config: dict[str, Any] = found if isinstance(found, dict) else {"quant_method": found}
    yield ".quant_method", config.get("quant_method"), METHODS
    of_method = {"awq": _awq_rules, "gptq": _gptq_rules, "gguf": _no_rules}
    yield from of_method.get(config["quant_method"], _compressed_rules)(config)


def _awq_rules(config: dict[str, Any]) -> Iterator[tuple[str, object, tuple[object, ...]]]:
    yield ".bits", config.get("bits"), (4,)
    yield ".version", str(config.get("version", "gemm")).lower(), ("gemm",)
    yield ".zero_point", config.get("zero_point", True), (True,)


def _gptq_rules(config: dict[str, Any]) -> Iterator[tuple[str, object, tuple[object, ...]]]:
    yield ".bits", config.get("bits"), (4, 8)
    yield ".checkpoint_format", config.get("checkpoint_format"), ("gptq", "gptq_v2", None, "")


def _no_rules(_: dict[str, Any]) -> Iterator[tuple[str, object, tuple[object, ...]]]:
    """Every type of tensors that `gguf_model` accepts is served."""
    yield from ()


def _compressed_rules(config: dict[str, Any]) -> Iterator[tuple[str, object, tuple[object, ...]]]:
    form = config.get("format")
    yield ".format", form, tuple(_WEIGHTS)
    yield ".quantization_status", config.get("quantization_status"), ("compressed", None)
    yield ".kv_cache_scheme", config.get("kv_cache_scheme"), (None,)
    yield ".sparsity_config.format", _of(config.get("sparsity_config"), "format"), ("dense", None)
    yield ".transform_config.config_groups", _of(config.get("transform_config"), "config_groups"), ({}, None)
    groups = config.get("config_groups")
    yield ".config_groups", "absent" if not groups else "there", ("there",)
    for name, group in (groups or {}).items():
        place = f".config_groups.{name}"
        yield f"{place}.format", _of(group, "format"), (config["format"], None)
        yield f"{place}.output_activations", _of(group, "output_activations"), (None,)
        for field, accepted in (_WEIGHTS[config["format"]] | _ALL_WEIGHTS).items():
            yield f"{place}.weights.{field}", _of(_of(group, "weights"), field), accepted


def _of(mapping: object, key: str) -> object:
    return mapping.get(key) if isinstance(mapping, dict) else None
